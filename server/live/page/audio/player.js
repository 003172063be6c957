/** Playing and recording: the AudioContext and its worklet. */

import { wavFile } from "./wav.js";

/**
 * @typedef {{playheadSample: number, contextTimeS: number, isRunning: boolean, leadS: number, worstLeadS: number,
 *   underruns: number, peaks: [number, number], playedS: number}} PlayerStatus
 *   contextTimeS: when the sample of the playhead leaves the context; playedS: what was heard since the last one
 * @typedef {{status: (status: PlayerStatus) => void,
 *   heard: (firstSeq: number, fullSeq: number) => void}} PlayerHandlers
 */

const WORKLET = new URL("worklet.js", import.meta.url);
/** Audio that arrives before the first click waits in a list of at most this many chunks. */
const MAX_WAITING_CHUNKS = 40;

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
    this.#post({ type: "clear", startSample, isResumed, epoch: ++this.#epoch });
    if (this.#isOn && isOther) this.play(true);
  }

  /** @param {import("../connection.js").Chunk} chunk */
  write({ startSample, pcm, firstSeq, fullSeq }) {
    this.#post({ type: "write", startSample, pcm, firstSeq, fullSeq }, [pcm.buffer]);
  }

  /** Start or stop. The first start has to come from a click or a key: browsers ask for that. @param {boolean} on */
  async play(on) {
    this.#isOn = on;
    if (on && !this.context) await this.#open();
    if (on) await this.context?.resume();
    this.#node?.port.postMessage({ type: "play", on: this.#isOn });
  }

  async #open() {
    if (!isSecureContext) throw new Error("audio needs https, or http on localhost. The server takes a certificate.");
    const context = new AudioContext({ sampleRate: this.rateHz, latencyHint: "interactive" });
    this.context = context;
    await context.audioWorklet.addModule(WORKLET);
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
  }

  #close() {
    this.context?.close();
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
    return sample + (isRunning ? ((performance.now() - atMs) / 1000) * this.rateHz : 0);
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
