/**
 * One pass of a loop as it came, whole and of one sound: what repeats without a seam. Where it never settles, a pass as it
 * is heard.
 */

import { AudioRing } from "./ring.js";

const FADE_S = 0.025;

/** @typedef {import("../connection.js").Chunk} Chunk */

export class LoopCapture {
  /** Chunks that follow each other and were made with the same changes. @type {Chunk[]} */ #chunks = [];
  /** What is heard: what comes later replaces what was sent before. @type {AudioRing | null} */ #heard = null;
  #channels = 2;
  #rateHz = 48000;

  /** A stream begins. @param {number} rateHz @param {number} channels */
  begin(rateHz, channels) {
    this.#chunks = [];
    this.#heard = null;
    this.#rateHz = rateHz;
    this.#channels = channels;
  }

  /** Take a chunk before the player has it. @param {Chunk} chunk @param {number} keptS no more is ever asked for */
  write(chunk, keptS) {
    this.#hear(chunk, keptS);
    const last = this.#chunks.at(-1);
    const goesOn =
      last &&
      chunk.startSample === this.#end &&
      chunk.firstSeq === last.firstSeq &&
      chunk.fullSeq === last.fullSeq;
    if (!goesOn) this.#chunks = [];
    this.#chunks.push({ ...chunk, pcm: chunk.pcm.slice() });
    const first = () => this.#chunks[0].startSample + this.#samples(this.#chunks[0]);
    while (this.#end - first() > (keptS + 4 * FADE_S) * this.#rateHz) this.#chunks.shift();
  }

  /** @param {Chunk} chunk @param {number} keptS */
  #hear({ startSample, pcm }, keptS) {
    const samples = pcm.length / this.#channels;
    const capacityS = keptS + 4 * FADE_S + 1;
    const isOther = this.#heard?.capacity !== Math.round(capacityS * this.#rateHz);
    if (!this.#heard || isOther) this.#heard = new AudioRing(this.#rateHz, this.#channels, capacityS, startSample);
    const excess = startSample + samples - this.#heard.playheadSample - this.#heard.capacity;
    if (excess > this.#heard.capacity) this.#heard.clear(startSample);
    else if (excess > 0) this.#heard.read([new Float32Array(excess)]);
    this.#heard.write(startSample, pcm);
  }

  /** Where what is heard ends. */
  get heardEnd() {
    return this.#heard?.endSample ?? 0;
  }

  /** @param {Chunk} chunk */
  #samples(chunk) {
    return chunk.pcm.length / this.#channels;
  }

  get #end() {
    const last = this.#chunks.at(-1);
    return last ? last.startSample + this.#samples(last) : 0;
  }

  /** How much is there, in seconds. */
  get seconds() {
    return this.#chunks.length ? (this.#end - this.#chunks[0].startSample) / this.#rateHz : 0;
  }

  /**
   * The newest pass, from where the loop begins on; null where less is there.
   * @param {number} lengthS
   * @param {number} startSample where on the play axis a pass begins
   * @param {boolean} isHeard also of several sounds, as it is heard
   * @returns {Float32Array[] | null} a plane per channel
   */
  take(lengthS, startSample, isHeard = false) {
    const length = Math.round(lengthS * this.#rateHz);
    // What comes first may be a fade from what was played before; what comes last is faded into the beginning.
    const fade = Math.round(FADE_S * this.#rateHz);
    const begin = (isHeard ? this.heardEnd : this.#end) - length - fade;
    if (isHeard ? !this.#hasHeard(begin, length + fade) : begin < (this.#chunks[0]?.startSample ?? Infinity) + fade) return null;
    return Array.from({ length: this.#channels }, (_, channel) => {
      const samples = isHeard ? this.#heardPlane(begin, length + fade, channel) : this.#plane(begin, length + fade, channel);
      for (let i = 0; i < fade; i++) {
        const weight = (i + 1) / (fade + 1);
        samples[i] = weight * samples[i] + (1 - weight) * samples[length + i];
      }
      const turn = (((startSample - begin) % length) + length) % length;
      const plane = new Float32Array(length);
      plane.set(samples.subarray(turn, length));
      plane.set(samples.subarray(0, turn), length - turn);
      return plane;
    });
  }

  /** @param {number} begin @param {number} count */
  #hasHeard(begin, count) {
    const ring = this.#heard;
    if (!ring || begin < ring.playheadSample) return false;
    for (let i = 0; i < count; i++) if (!ring.isWritten[(begin + i) % ring.capacity]) return false;
    return true;
  }

  /** @param {number} begin @param {number} count @param {number} channel */
  #heardPlane(begin, count, channel) {
    const { capacity, pcm } = /** @type {AudioRing} */ (this.#heard);
    return Float32Array.from({ length: count }, (_, i) => pcm[channel][(begin + i) % capacity]);
  }

  /** @param {number} begin @param {number} count @param {number} channel */
  #plane(begin, count, channel) {
    const plane = new Float32Array(count);
    for (const { startSample, pcm } of this.#chunks) {
      for (let i = channel, at = startSample - begin; i < pcm.length; i += this.#channels, at++) {
        if (at >= 0 && at < count) plane[at] = pcm[i];
      }
    }
    return plane;
  }
}
