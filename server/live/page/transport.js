/** Play, record, volume, the clock, the level meter and the waveform. */

import { Player } from "./audio/player.js";
import { download } from "./presets.js";
import { all, find } from "./widgets/element.js";
import { Knob } from "./widgets/knob.js";
import { Scope } from "./widgets/scope.js";

/** A silence that is shorter is none. */
const GAP_S = 0.1;
const GAP_SHOWN_MS = 6000;

/**
 * @typedef {{connection: import("./connection.js").Connection, figures: import("./figures.js").Figures,
 *   notify: (text: string, isNote?: boolean) => void, reported: () => void}} Parts
 *   reported: twenty times a second, and where playing stops
 */

export class Transport {
  isPlaying = false;
  isRecording = false;
  #playedS = 0;
  #recordedS = 0;
  /** When it was heard last, and when it was heard again after a gap. */ #heardMs = 0;
  #resumed = { atMs: -Infinity, gapS: 0 };
  #isHeard = false;
  /** Whether it goes on by itself, as before the page was loaded again. */ #isUntouched = false;

  /** @param {Parts} parts */
  constructor({ connection, figures, notify, reported }) {
    this.connection = connection;
    this.figures = figures;
    this.notify = notify;
    this.reported = reported;
    this.player = new Player({
      status: (status) => this.#show(status),
      heard: (firstSeq, fullSeq) => figures.heard(firstSeq, fullSeq),
      interrupted: (isInterrupted) => this.#interrupted(isInterrupted),
    });
    this.scope = new Scope(/** @type {HTMLCanvasElement} */ (find("scope")), all(".meter"));
    const format = (/** @type {number} */ value) => `${Math.round(value * 100)} %`;
    const parse = (/** @type {string} */ text) => Number(text.replace(/ *%$/, "")) / 100;
    this.volume = new Knob({ label: "volume", min: 0, max: 1, default: 1, format, parse });
    this.volume.addEventListener("input", () => (this.player.volume = this.volume.value));
    find("volume").append(this.volume.root);
    find("play").addEventListener("click", () => this.#toggle());
    find("record").addEventListener("click", () => this.#toggleRecording());
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Begin a new epoch of the stream. @param {import("./connection.js").Message} ready */
  begin(ready) {
    this.player.clear(ready.sample_rate_hz, ready.channels, ready.next_sample, ready.resumed && !ready.notice);
    // A session plays when it is opened, and one that is resumed as the server was told last; where nothing was played
    // yet it waits for the first report.
    const plays = this.isPlaying && !this.player.isInterrupted;
    if (this.#playedS) this.connection.send({ type: plays ? "play" : "pause" });
  }

  /** What the page goes on with when it is loaded again. */
  get state() {
    return { playedS: this.#playedS, isPlaying: this.isPlaying };
  }

  /** Go on as before the page was loaded again; browsers may ask for a touch first. @param {Transport["state"]} state */
  restore({ playedS, isPlaying }) {
    this.#playedS = playedS;
    find("clock").textContent = clockText(playedS);
    find("hint").hidden = playedS > 0;
    this.#isUntouched = isPlaying;
    if (isPlaying) this.follow(true);
  }

  /** What is heard, in words. */
  get heardText() {
    if (!this.isPlaying) return this.#playedS ? "stopped" : "ready";
    if (this.player.isInterrupted) return `${this.#isUntouched ? "" : "sound interrupted: "}touch to go on`;
    if (!this.#isHeard) return "waiting for sound";
    const { atMs, gapS } = this.#resumed;
    return performance.now() < atMs + GAP_SHOWN_MS ? `resumed after ${gapS.toFixed(1)} s` : "live";
  }

  /** The button says what is heard, and what a click does. */
  #showButton() {
    const state = !this.isPlaying ? "stopped" : this.#isHeard ? "playing" : "waiting";
    const button = find("play");
    if (button.dataset.state === state) return;
    button.dataset.state = state;
    button.setAttribute("aria-label", { stopped: "Play", playing: "Pause", waiting: "Stop waiting" }[state]);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const isElsewhere = event.target instanceof Element && event.target.closest("button, input, textarea, select");
    if (event.code !== "Space" || isElsewhere) return;
    event.preventDefault();
    this.#toggle();
  }

  async #toggle() {
    if (this.player.isInterrupted) return; // The touch brings the sound back.
    await this.follow(!this.isPlaying);
    this.connection.send({ type: this.isPlaying ? "play" : "pause" });
  }

  /** Play or stop, without a message to the server. @param {boolean} isPlaying */
  async follow(isPlaying) {
    if (isPlaying === this.isPlaying) return;
    this.isPlaying = isPlaying;
    this.#isHeard = false;
    this.#heardMs = 0;
    this.reported();
    find("play").setAttribute("aria-pressed", String(this.isPlaying));
    this.#showButton();
    find("hint").hidden = true;
    try {
      await this.player.play(this.isPlaying, this.#isUntouched);
    } catch (error) {
      this.notify(`This browser cannot play: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** Nothing is generated meanwhile. @param {boolean} isInterrupted */
  #interrupted(isInterrupted) {
    this.#isHeard = false;
    if (!isInterrupted) this.#isUntouched = false;
    this.connection.send({ type: isInterrupted ? "pause" : "play" });
    this.#showButton();
    this.reported();
  }

  async #toggleRecording() {
    this.isRecording = !this.isRecording;
    find("record").setAttribute("aria-pressed", String(this.isRecording));
    if (this.isRecording) {
      this.#recordedS = 0;
      this.player.startRecording();
    } else {
      const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
      download(await this.player.stopRecording(), `tickrt-${time}.wav`);
    }
  }

  /** @param {boolean} isHeard since the last report */
  #hear(isHeard) {
    const now = performance.now();
    const gapS = (now - this.#heardMs) / 1000;
    if (isHeard && this.isPlaying) {
      if (!this.#isHeard && this.#heardMs && gapS > GAP_S) this.#resumed = { atMs: now, gapS };
      this.#heardMs = now;
    }
    // A report without sound is no gap yet.
    this.#isHeard = this.isPlaying && this.#heardMs > 0 && (isHeard || gapS <= GAP_S);
    this.#showButton();
  }

  /** @param {import("./audio/player.js").PlayerStatus} status */
  #show(status) {
    if (this.isPlaying) this.connection.ack(status.playheadSample, status.worstLeadS);
    this.#playedS += status.playedS;
    this.#recordedS += status.playedS;
    this.#hear(status.playedS > 0);
    find("clock").textContent = clockText(this.#playedS);
    find("record-text").textContent = this.isRecording ? clockText(this.#recordedS) : "Record";
    this.scope.level(status.peaks);
    this.figures.playerStatus(status);
    this.reported();
  }
}

/** @param {number} seconds */
function clockText(seconds) {
  return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
}
