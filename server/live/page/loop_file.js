/** The loop as a file: one pass, which repeats without a seam where it stays as it is. */

import { LoopCapture } from "./audio/loop_capture.js";
import { wavFile } from "./audio/wav.js";
import { download } from "./presets.js";
import { find } from "./widgets/element.js";

/**
 * @typedef {{canvas: import("./widgets/canvas_view.js").CanvasView, player: import("./audio/player.js").Player,
 *   isPlaying: () => boolean, isVaried: () => boolean, notify: (text: string, isNote?: boolean) => void}} Parts
 *   isVaried: whether every pass is another one
 */

/** A loop that is the same in no so many passes is saved as it is heard. */
const MOST_PASSES = 2;

export class LoopFile {
  #capture = new LoopCapture();
  /** Whether a file is to be made once a pass is there. */ #isWanted = false;
  #startSample = 0;
  /** Where what was heard ended when it was asked for. */ #askedSample = 0;

  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    find("save-loop").addEventListener("click", () => this.#want(!this.#isWanted));
  }

  /** A session begins, or goes on. @param {import("./connection.js").Message} ready */
  begin(ready) {
    this.#capture.begin(ready.sample_rate_hz, ready.channels);
    find("save-loop").hidden = ready.mode !== "loop";
    this.#want(false);
  }

  /** @param {import("./connection.js").Chunk} chunk */
  write(chunk) {
    this.#capture.write(chunk, this.parts.canvas.seconds);
  }

  /** Where a pass begins. @param {{seconds: number, sample: number}} position the canvas position of a sample */
  follow({ seconds, sample }) {
    const { canvas, player } = this.parts;
    this.#startSample = sample - Math.round((seconds - canvas.playable.start) * player.rateHz);
    if (this.#isWanted) this.#make();
  }

  /** @param {boolean} isWanted */
  #want(isWanted) {
    this.#isWanted = isWanted;
    find("save-loop").setAttribute("aria-pressed", String(isWanted));
    find("save-loop").textContent = "Save loop";
    if (!isWanted) return;
    this.#askedSample = this.#capture.heardEnd;
    if (!this.parts.isPlaying()) this.parts.notify("Press play: the loop is saved once a whole pass has come.", true);
    this.#make();
  }

  #make() {
    const { canvas, player } = this.parts;
    const lengthS = canvas.playable.end - canvas.playable.start;
    const heardS = (this.#capture.heardEnd - this.#askedSample) / player.rateHz;
    const isUnsettled = heardS > lengthS * (this.parts.isVaried() ? 1 : MOST_PASSES);
    const settled = this.#capture.take(lengthS, this.#startSample);
    const planes = settled ?? (isUnsettled ? this.#capture.take(lengthS, this.#startSample, true) : null);
    if (planes && !settled) this.parts.notify("The loop is saved as it was heard: it changes while it plays, so it may not repeat as smoothly.", true);
    if (!planes) {
      const waitedS = this.parts.isVaried() ? heardS : this.#capture.seconds;
      const share = Math.min(99, Math.round((100 * Math.max(waitedS, this.#capture.seconds)) / lengthS));
      find("save-loop").textContent = `Loop ${share} %`;
      return;
    }
    download(wavFile([planes], player.rateHz), "tickrt-loop.wav");
    this.#want(false);
  }
}
