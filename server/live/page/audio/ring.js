/**
 * The receiving side of a live stream: audio addressed by absolute sample, read in order.
 *
 * The twin of runtime/live/playback/audio_ring.py; both are tested with the operations of tests/data/audio_ring.json.
 */

const CROSSFADE_S = 0.025;

/** Planar float32 audio; a write that meets other samples crossfades from them, late samples are dropped. */
export class AudioRing {
  lateSamples = 0;
  missingSamples = 0;
  underruns = 0;
  playheadSample = 0;
  endSample = 0;
  isPlaying = false;
  hasBegun = false;
  /** @type {number | null} */ worstLead = null;
  /** Where the last write that replaced samples ended. */ replacedTo = -1;
  /** @type {{start: number, end: number, firstSeq: number, fullSeq: number}[]} oldest first */ marks = [];

  /**
   * @param {number} sampleRateHz
   * @param {number} channels
   * @param {number} capacityS
   * @param {number} startSample
   */
  constructor(sampleRateHz, channels, capacityS = 10, startSample = 0) {
    this.sampleRateHz = sampleRateHz;
    this.capacity = Math.round(capacityS * sampleRateHz);
    this.crossfade = Math.round(CROSSFADE_S * sampleRateHz);
    this.pcm = Array.from({ length: channels }, () => new Float32Array(this.capacity));
    this.isWritten = new Uint8Array(this.capacity);
    this.clear(startSample);
  }

  /** Drop everything and go on at `startSample`. @param {number} startSample */
  clear(startSample) {
    for (const plane of this.pcm) plane.fill(0);
    this.isWritten.fill(0);
    this.marks.length = 0;
    this.playheadSample = startSample;
    this.endSample = startSample;
    this.replacedTo = -1;
    this.isPlaying = false;
    this.hasBegun = false;
    this.worstLead = null;
  }

  /** How far the samples that are there reach beyond the playhead, in samples. */
  get lead() {
    return Math.max(0, this.endSample - this.playheadSample);
  }

  /** The smallest lead after a read since the last call, in seconds. */
  takeWorstLeadS() {
    const worst = this.worstLead ?? this.lead;
    this.worstLead = null;
    return worst / this.sampleRateHz;
  }

  /**
   * Store interleaved samples; returns how many (per channel) were taken.
   * @param {number} startSample
   * @param {Float32Array} interleaved
   * @param {number} firstSeq
   * @param {number} fullSeq
   */
  write(startSample, interleaved, firstSeq = 0, fullSeq = 0) {
    const channels = this.pcm.length;
    const samples = interleaved.length / channels;
    const late = Math.min(Math.max(0, this.playheadSample - startSample), samples);
    this.lateSamples += late;
    const start = startSample + late;
    const count = Math.min(samples - late, this.playheadSample + this.capacity - start);
    if (count <= 0) return 0;
    const continues = start === this.replacedTo;
    const fade = continues ? 0 : this.#fadeLength(start, count);
    let replaces = continues;
    for (let i = 0; i < count; i++) {
      const place = (start + i) % this.capacity;
      const weight = i < fade ? (i + 1) / (fade + 1) : 1;
      if (this.isWritten[place]) replaces = true;
      this.isWritten[place] = 1;
      for (let channel = 0; channel < channels; channel++) {
        const plane = this.pcm[channel];
        const sample = interleaved[(late + i) * channels + channel];
        plane[place] = weight < 1 ? weight * sample + (1 - weight) * plane[place] : sample;
      }
    }
    if (replaces) this.replacedTo = start + count;
    this.endSample = Math.max(this.endSample, start + count);
    this.marks.push({ start, end: start + count, firstSeq, fullSeq });
    return count;
  }

  /** @param {number} start @param {number} count */
  #fadeLength(start, count) {
    const limit = Math.min(this.crossfade, count);
    let length = 0;
    while (length < limit && this.isWritten[(start + length) % this.capacity]) length++;
    return length;
  }

  /**
   * Fill the planes of `out` and advance the playhead; returns how many samples are silence.
   * @param {Float32Array[]} out one per output channel; with fewer channels in the ring the last one is repeated
   */
  read(out) {
    const count = out[0].length;
    let done = 0;
    let missing = 0;
    while (done < count) {
      const begin = this.playheadSample % this.capacity;
      const length = Math.min(count - done, this.capacity - begin);
      missing += this.#take(begin, length, out, done);
      done += length;
    }
    this.worstLead = Math.min(this.lead, this.worstLead ?? Infinity);
    while (this.marks.length && this.marks[0].end <= this.playheadSample) this.marks.shift();
    return missing;
  }

  /** @param {number} begin @param {number} length @param {Float32Array[]} out @param {number} offset */
  #take(begin, length, out, offset) {
    let missing = 0;
    for (let i = begin; i < begin + length; i++) missing += 1 - this.isWritten[i];
    const begins = this.isWritten[begin] === 1;
    if (missing && (this.isPlaying || begins)) this.underruns++;
    if (this.hasBegun || begins) this.missingSamples += missing;
    this.hasBegun ||= missing < length;
    this.isPlaying = this.isWritten[begin + length - 1] === 1;
    out.forEach((plane, channel) => {
      plane.set(this.pcm[Math.min(channel, this.pcm.length - 1)].subarray(begin, begin + length), offset);
    });
    for (const plane of this.pcm) plane.fill(0, begin, begin + length);
    this.isWritten.fill(0, begin, begin + length);
    this.playheadSample += length;
    return missing;
  }

  /** The sequence numbers that the sample at the playhead was made with: the newest write there counts. */
  seqs() {
    for (let i = this.marks.length - 1; i >= 0; i--) {
      const mark = this.marks[i];
      if (mark.start <= this.playheadSample && this.playheadSample < mark.end) return mark;
    }
    return null;
  }
}
