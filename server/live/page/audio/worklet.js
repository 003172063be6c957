/** The audio thread: plays the ring, reports where it is, hands out what it played, and captures the microphone. */

import { AudioRing } from "./ring.js";

const { AudioWorkletProcessor, registerProcessor, sampleRate } = /** @type {any} */ (globalThis);
/** Of each call of `process`. */ const BLOCK_SAMPLES = 128;

const STATUS_S = 0.05;
const BEGIN_LEAD_S = 0.08;
const CAPTURE_SAMPLES = 4096;
/** A resumed session begins at most this much before what is played, where that stays. */
const RESUMED_S = 2;

/** Plays the stream. Messages to it: `clear`, `write`, `play`, `record`; from it: `status`, `heard`, `recorded`. */
class Player extends AudioWorkletProcessor {
  /** @param {{processorOptions: {channels: number}}} options */
  constructor(options) {
    super();
    this.ring = new AudioRing(sampleRate, options.processorOptions.channels);
    this.epoch = 0;
    this.isPlaying = false;
    this.hasBegun = false;
    this.isRecording = false;
    this.sinceStatus = 0;
    this.peaks = [0, 0];
    /** Samples since the last report that were there. */ this.played = 0;
    this.heard = { firstSeq: 0, fullSeq: 0 };
    this.port.onmessage = (/** @type {MessageEvent} */ event) => this.#receive(event.data);
  }

  /** @param {any} message */
  #receive(message) {
    switch (message.type) {
      case "clear":
        this.epoch = message.epoch;
        if (message.isResumed && this.#isNear(message.startSample)) break;
        this.ring.clear(message.startSample);
        this.hasBegun = false;
        this.heard = { firstSeq: 0, fullSeq: 0 };
        break;
      case "write":
        this.ring.write(message.startSample, message.pcm, message.firstSeq, message.fullSeq);
        break;
      case "play":
        this.isPlaying = message.on;
        break;
      case "record":
        this.isRecording = message.on;
        if (!message.on) this.port.postMessage({ type: "recorded", planes: null });
        break;
    }
  }

  /** @param {Float32Array[][]} _inputs @param {Float32Array[][]} outputs */
  process(_inputs, outputs) {
    const planes = outputs[0];
    if (this.#canPlay()) {
      this.#reportSeqs();
      const missing = this.ring.read(planes);
      this.played += planes[0].length - missing;
      planes.forEach((plane, channel) => {
        for (const sample of plane) this.peaks[channel] = Math.max(this.peaks[channel], Math.abs(sample));
      });
      if (this.isRecording) {
        this.port.postMessage({ type: "recorded", planes: planes.map((plane) => plane.slice()) });
      }
    }
    this.sinceStatus += planes[0].length;
    if (this.sinceStatus >= STATUS_S * sampleRate) this.#reportStatus();
    return true;
  }

  /** Whether what is there reaches `startSample`, or is little after it. @param {number} startSample */
  #isNear(startSample) {
    const back = this.ring.playheadSample - startSample;
    const end = Math.max(this.ring.endSample, this.ring.playheadSample);
    return this.hasBegun && startSample <= end && back <= RESUMED_S * sampleRate;
  }

  /** The first audio of an epoch waits for a short lead, so that it does not begin with an underrun. */
  #canPlay() {
    this.hasBegun ||= this.ring.lead >= BEGIN_LEAD_S * sampleRate;
    return this.isPlaying && this.hasBegun;
  }

  #reportSeqs() {
    const seqs = this.ring.seqs();
    if (!seqs || (seqs.firstSeq <= this.heard.firstSeq && seqs.fullSeq <= this.heard.fullSeq)) return;
    this.heard = { firstSeq: seqs.firstSeq, fullSeq: seqs.fullSeq };
    this.port.postMessage({ type: "heard", epoch: this.epoch, ...this.heard });
  }

  #reportStatus() {
    this.sinceStatus = 0;
    this.port.postMessage({
      type: "status",
      epoch: this.epoch,
      playheadSample: this.ring.playheadSample,
      contextTimeS: /** @type {any} */ (globalThis).currentTime + BLOCK_SAMPLES / sampleRate,
      isRunning: this.isPlaying && this.hasBegun,
      leadS: this.ring.lead / sampleRate,
      worstLeadS: this.ring.takeWorstLeadS(),
      underruns: this.ring.underruns,
      peaks: this.peaks,
      playedS: this.played / sampleRate,
    });
    this.played = 0;
    this.peaks = [0, 0];
  }
}

/** Collects its input into blocks of interleaved stereo. */
class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(2 * CAPTURE_SAMPLES);
    this.filled = 0;
  }

  /** @param {Float32Array[][]} inputs */
  process(inputs) {
    const [left, right = left] = inputs[0];
    for (let i = 0; left && i < left.length; i++) {
      this.block[2 * this.filled] = left[i];
      this.block[2 * this.filled + 1] = right[i];
      if (++this.filled === CAPTURE_SAMPLES) {
        this.port.postMessage(this.block.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("tickrt-player", Player);
registerProcessor("tickrt-capture", Capture);
