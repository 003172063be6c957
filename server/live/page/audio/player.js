/** Playing and recording: the AudioContext and its worklet, also where the system takes the sound away. */

import { wavFile } from "./wav.js";

/**
 * @typedef {{playheadSample: number, contextTimeS: number, isRunning: boolean, leadS: number, worstLeadS: number,
 *   underruns: number, peaks: [number, number], playedS: number}} PlayerStatus
 *   contextTimeS: when the sample of the playhead leaves the context; playedS: what was heard since the last one
 * @typedef {{status: (status: PlayerStatus) => void, interrupted: (isInterrupted: boolean) => void,
 *   heard: (firstSeq: number, fullSeq: number) => void}} PlayerHandlers
 *   interrupted: the system has taken the sound away (a call, sleep, a device that is unplugged), or has given it back
 */

const WORKLET = new URL("worklet.js", import.meta.url);
/** Audio that arrives before the first click waits in a list of at most this many chunks. */
const MAX_WAITING_CHUNKS = 40;
/** The audio thread reports twenty times a second. One that is silent for so long does not play. */
const REPORT_LIMIT_MS = 1000;
/** A context that says that it runs, and does not for so long, is made anew. */
const REOPEN_MS = 5000;
const REGAIN_MS = 500;
/** When the sound may come back: browsers ask for a touch, or give it to a page that is looked at. */
const TOUCHES = ["click", "keydown", "focus", "pageshow", "visibilitychange"];

export class Player {
  /** @type {AudioContext | null} */ context = null;
  /** @type {AudioWorkletNode | null} */ #node = null;
  /** @type {any[]} */ #waiting = [];
  /** @type {Float32Array[][]} */ #recorded = [];
  /** @type {((wav: Blob) => void) | null} */ #resolveRecording = null;
  /** @type {AnalyserNode | null} */ analyser = null;
  /** @type {GainNode | null} */ #gain = null;
  #volume = 1;
  #isOn = false;
  #playhead = { sample: 0, atMs: 0, contextTimeS: 0, isRunning: false };
  /** When the audio thread reported last. */ #reportedMs = 0;
  /** When that was looked at last. */ #lookedMs = 0;
  #hasPlayed = false;
  #isOpening = false;
  /** @type {AbortController | null} */ #watching = null;
  /** Where the audio that has arrived ends. */ #endSample = 0;
  /** Whether the system has taken the sound away. */ isInterrupted = false;
  /** How much is left to play. */ leadS = 0;
  /** What the audio thread reports of an older one is not of this stream. */ #epoch = 0;
  rateHz = 48000;
  channels = 2;

  /** @param {PlayerHandlers} handlers */
  constructor(handlers) {
    this.handlers = handlers;
  }

  /**
   * Go on at `startSample` of a new epoch. What is there stays where a session is resumed a little before it.
   * @param {number} rateHz
   * @param {number} channels
   * @param {number} startSample
   * @param {boolean} isResumed
   */
  clear(rateHz, channels, startSample, isResumed = false) {
    const isOther = rateHz !== this.rateHz || channels !== this.channels;
    if (this.context && isOther) this.#close();
    this.rateHz = rateHz;
    this.channels = channels;
    this.#playhead = { sample: startSample, atMs: performance.now(), contextTimeS: 0, isRunning: false };
    this.#waiting = [];
    this.#endSample = startSample;
    this.#post({ type: "clear", startSample, isResumed, epoch: ++this.#epoch });
    if (this.#isOn && isOther) this.play(true);
  }

  /** @param {import("../connection.js").Chunk} chunk */
  write({ startSample, pcm, firstSeq, fullSeq }) {
    this.#endSample = Math.max(this.#endSample, startSample + pcm.length / this.channels);
    this.#post({ type: "write", startSample, pcm, firstSeq, fullSeq }, [pcm.buffer]);
  }

  /**
   * Start or stop. The first start has to come from a click or a key: browsers ask for that.
   * @param {boolean} on
   * @param {boolean} [isUntouched] it comes from neither: the sound counts as interrupted until the browser gives it
   */
  async play(on, isUntouched = false) {
    this.#isOn = on;
    this.#watch(on);
    if (on && isUntouched) this.#interrupt(true);
    if (on && !this.context) await this.#open();
    this.#node?.port.postMessage({ type: "play", on: this.#isOn });
    if (on) await this.context?.resume();
  }

  /** While it plays: notice that the system has taken the sound, and have it back. @param {boolean} on */
  #watch(on) {
    this.#watching?.abort();
    this.#watching = null;
    if (!on) this.isInterrupted = false;
    if (!on) return;
    const { signal } = (this.#watching = new AbortController());
    const regain = () => this.#regain();
    const timer = setInterval(regain, REGAIN_MS);
    signal.addEventListener("abort", () => clearInterval(timer));
    navigator.mediaDevices?.addEventListener("devicechange", regain, { signal });
    for (const type of TOUCHES) addEventListener(type, regain, { signal, capture: true });
  }

  #regain() {
    const nowMs = performance.now();
    // A page that slept has heard no report: one is waited for from now on.
    if (nowMs > this.#lookedMs + REPORT_LIMIT_MS) this.#reportedMs = nowMs;
    this.#lookedMs = nowMs;
    if (!this.#isOn || this.#isOpening) return;
    const silentMs = nowMs - this.#reportedMs;
    const isRunning = this.context?.state === "running";
    if (isRunning && silentMs < REPORT_LIMIT_MS) return;
    if (this.#hasPlayed) this.#interrupt(true);
    const isBroken = !this.context || this.context.state === "closed" || (isRunning && silentMs > REOPEN_MS);
    // What fails now is tried again.
    (isBroken ? this.#reopen() : this.context?.resume())?.catch(() => {});
  }

  /** @param {boolean} isInterrupted */
  #interrupt(isInterrupted) {
    if (isInterrupted === this.isInterrupted) return;
    if (isInterrupted) this.#playhead = { ...this.#playhead, sample: this.playheadSample, isRunning: false };
    this.isInterrupted = isInterrupted;
    this.handlers.interrupted(isInterrupted);
  }

  /** Go on in another context, behind what has arrived: that is lost. */
  async #reopen() {
    this.#playhead.sample = Math.max(this.#playhead.sample, this.#endSample);
    this.#close();
    await this.play(true);
  }

  async #open() {
    if (!isSecureContext) throw new Error("audio needs https, or http on localhost. The server takes a certificate.");
    this.#isOpening = true;
    try {
      this.context = new AudioContext({ sampleRate: this.rateHz, latencyHint: "interactive" });
      await this.context.audioWorklet.addModule(WORKLET);
      this.#connect(this.context);
    } catch (error) {
      this.#close();
      throw error;
    } finally {
      this.#isOpening = false;
    }
  }

  /** @param {AudioContext} context */
  #connect(context) {
    const node = new AudioWorkletNode(context, "tickrt-player", {
      numberOfInputs: 0,
      outputChannelCount: [2],
      processorOptions: { channels: this.channels },
    });
    node.port.onmessage = (event) => this.#receive(event.data);
    this.#gain = new GainNode(context, { gain: this.#volume });
    this.analyser = new AnalyserNode(context, { fftSize: 2048 });
    node.connect(this.#gain).connect(context.destination);
    this.#gain.connect(this.analyser);
    node.port.postMessage({ type: "clear", startSample: this.#playhead.sample, epoch: this.#epoch });
    for (const message of this.#waiting) node.port.postMessage(message, [message.pcm.buffer]);
    this.#waiting = [];
    this.#node = node;
    this.#reportedMs = performance.now();
    context.addEventListener("statechange", () => this.#regain());
  }

  #close() {
    if (this.context?.state !== "closed") this.context?.close();
    this.context = this.#node = this.analyser = this.#gain = null;
  }

  /** @param {any} message @param {Transferable[]} transfer */
  #post(message, transfer = []) {
    if (this.#node) this.#node.port.postMessage(message, transfer);
    else if (message.type === "write" && this.#waiting.length < MAX_WAITING_CHUNKS) this.#waiting.push(message);
  }

  /** @param {any} message */
  #receive(message) {
    if (message.type !== "recorded" && message.epoch !== this.#epoch) return;
    switch (message.type) {
      case "status":
        this.#playhead = {
          sample: message.playheadSample,
          atMs: performance.now(),
          contextTimeS: message.contextTimeS,
          isRunning: message.isRunning,
        };
        this.leadS = message.leadS;
        this.#reportedMs = performance.now();
        this.#hasPlayed = true;
        if (this.context?.state === "running") this.#interrupt(false);
        this.handlers.status(message);
        break;
      case "heard":
        this.handlers.heard(message.firstSeq, message.fullSeq);
        break;
      case "recorded":
        if (message.planes) this.#recorded.push(message.planes);
        else this.#resolveRecording?.(wavFile(this.#recorded, this.rateHz));
    }
  }

  /** Where the playhead is now, in samples. */
  get playheadSample() {
    const { sample, atMs, isRunning } = this.#playhead;
    const sinceMs = Math.min(performance.now() - atMs, REPORT_LIMIT_MS);
    return sample + (isRunning ? (sinceMs / 1000) * this.rateHz : 0);
  }

  /** Whether it plays, and has audio to play. */
  get isRunning() {
    return this.#playhead.isRunning;
  }

  /** When a sample is heard, as of performance.now(). @param {number} sample */
  timeMs(sample) {
    return this.#outputMs + 1000 * (this.#playhead.contextTimeS + (sample - this.#playhead.sample) / this.rateHz);
  }

  /** The sample that is heard at a time of performance.now(). @param {number} timeMs */
  sampleAt(timeMs) {
    const { sample, contextTimeS } = this.#playhead;
    return sample + ((timeMs - this.#outputMs) / 1000 - contextTimeS) * this.rateHz;
  }

  /** When time 0 of the context was heard. */
  get #outputMs() {
    const { contextTime = 0, performanceTime = 0 } = this.context?.getOutputTimestamp() ?? {};
    if (contextTime && performanceTime) return performanceTime - 1000 * contextTime;
    return performance.now() - 1000 * (this.context?.currentTime ?? 0);
  }

  /** @param {number} volume 0 to 1, as a fader: its square is the gain */
  set volume(volume) {
    this.#volume = volume * volume;
    this.#gain?.gain.setTargetAtTime(this.#volume, this.context?.currentTime ?? 0, 0.01);
  }

  startRecording() {
    this.#recorded = [];
    this.#node?.port.postMessage({ type: "record", on: true });
  }

  /** What was played since startRecording, before the volume. @returns {Promise<Blob>} */
  stopRecording() {
    return new Promise((resolve) => {
      this.#resolveRecording = resolve;
      this.#node?.port.postMessage({ type: "record", on: false });
    });
  }
}
