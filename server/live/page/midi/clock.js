/** MIDI clock, 24 pulses a beat: the messages of a session's bar lines, and the tempo and beat of pulses. */

const PULSES = 24;
/** A song position counts sixteenths, up to 14 bits. */
const PULSES_PER_POSITION = 6;
const MOST_POSITIONS = 2 ** 14;
const LINES_KEPT = 4;
/** The tempo is the median over so many pulses. */
const PULSES_HEARD = 48;
/** A pulse that comes later than this belongs to a clock that began anew. */
const LONGEST_PULSE_MS = 500;
const [POSITION, CLOCK, START, CONTINUE, STOP] = [0xf2, 0xf8, 0xfa, 0xfb, 0xfc];

/** @typedef {{sample: number, bar: number, bpm: number, beats: number}} BarLine of a bar; its tempo holds from there on */
/** @typedef {{sample: number, data: number[]}} Due a message, and the sample that it belongs to */

/** The clock of a session that plays. It begins at a sixteenth, with `start` or with a song position. */
export class ClockOut {
  /** @type {BarLine[]} */ #lines = [];
  /** Everything before was given. */ #next = 0;
  #isBeginning = false;
  isRunning = false;
  rateHz = 48000;

  /** Begin anew, without a bar line. @param {number} rateHz */
  clear(rateHz) {
    this.rateHz = rateHz;
    this.#lines = [];
    this.isRunning = this.#isBeginning = false;
  }

  /** Take a bar line: it holds from its sample on, in place of all that were to follow. @param {BarLine} line */
  line(line) {
    const kept = this.#lines.filter((before) => before.sample < line.sample);
    this.#lines = [...kept.slice(-LINES_KEPT), line];
  }

  /** Whether it runs, or is about to. */
  get isOn() {
    return this.isRunning || this.#isBeginning;
  }

  /** Begin at the first sixteenth from a sample on. @param {number} sample */
  start(sample) {
    this.isRunning = false;
    this.#isBeginning = true;
    this.#next = Math.max(0, sample);
  }

  /** Stop; returns the message, none where it does not run. @returns {number[][]} */
  stop() {
    const messages = this.isRunning ? [[STOP]] : [];
    this.isRunning = this.#isBeginning = false;
    return messages;
  }

  /** The messages of what is played before a sample that were not given yet, in order. @param {number} sample */
  until(sample) {
    /** @type {Due[]} */ const due = [];
    while (this.isOn && this.#lines.length) {
      const { line, number } = this.#pulse(this.#next);
      const interval = this.#interval(line);
      const place = line.sample + number * interval;
      if (place >= sample) break;
      const count = line.bar * line.beats * PULSES + number;
      if (this.#isBeginning && count >= 0 && count % PULSES_PER_POSITION === 0) due.push(...this.#begin(place, count));
      if (this.isRunning) due.push({ sample: place, data: [CLOCK] });
      this.#next = place + 0.5 * interval;
    }
    return due;
  }

  /** @param {number} sample @param {number} count of pulses since the beginning of the song @returns {Due[]} */
  #begin(sample, count) {
    this.#isBeginning = false;
    this.isRunning = true;
    const position = (count / PULSES_PER_POSITION) % MOST_POSITIONS;
    if (!position) return [{ sample, data: [START] }];
    return [[POSITION, position & 0x7f, position >> 7], [CONTINUE]].map((data) => ({ sample, data }));
  }

  /** The first pulse at a sample or behind it: its bar line, and its number from there on. @param {number} sample */
  #pulse(sample) {
    const index = Math.max(0, this.#lines.findLastIndex((line) => line.sample <= sample));
    const [line, following] = this.#lines.slice(index);
    const number = Math.ceil((sample - line.sample) / this.#interval(line) - 1e-9);
    const place = line.sample + number * this.#interval(line);
    const isOfNext = following && place > following.sample - 0.5 * this.#interval(following);
    return isOfNext ? { line: following, number: 0 } : { line, number };
  }

  /** @param {BarLine} line */
  #interval(line) {
    return (60 * this.rateHz) / (PULSES * line.bpm);
  }
}

/** A clock that is received. Times are milliseconds. It counts beats from its start, or from its song position. */
export class ClockIn {
  /** @type {number[]} */ #timesMs = [];
  /** The number of the next pulse. */ #count = 0;
  /** Null before it has said so. @type {boolean | null} */ isRunning = null;

  /** Take a MIDI message; those that are not of a clock are ignored. @param {Uint8Array} data @param {number} timeMs */
  receive(data, timeMs) {
    if (data[0] === CLOCK) this.#pulse(timeMs);
    else if (data[0] === POSITION) this.#count = PULSES_PER_POSITION * (data[1] + 128 * data[2]);
    else if (data[0] === STOP) this.isRunning = false;
    else if (data[0] === START || data[0] === CONTINUE) this.isRunning = true;
    if (data[0] === START) this.#count = 0;
  }

  /** The median of its tempos over beats; null before two beats were heard. */
  get bpm() {
    const times = this.#timesMs;
    if (times.length <= PULSES_HEARD) return null;
    return 60000 / median(times.slice(PULSES).map((time, i) => time - times[i]));
  }

  /** When its newest pulse was. */
  get pulseMs() {
    return this.#timesMs.at(-1) ?? 0;
  }

  /**
   * When its newest beat was, as all its pulses say; null before two beats were heard, and of a clock that ran already
   * when it was first heard.
   */
  get beatMs() {
    const bpm = this.bpm;
    if (bpm === null || this.isRunning === null) return null;
    const last = this.#count - 1;
    const newest = last - (last % PULSES);
    const first = last - this.#timesMs.length + 1;
    return median(this.#timesMs.map((time, i) => time + ((newest - first - i) * 60000) / (PULSES * bpm)));
  }

  /** @param {number} timeMs */
  #pulse(timeMs) {
    const elapsed = timeMs - (this.#timesMs.at(-1) ?? timeMs);
    if (this.#timesMs.length && !(elapsed > 0 && elapsed < LONGEST_PULSE_MS)) this.#timesMs = [];
    this.#timesMs = [...this.#timesMs, timeMs].slice(-PULSES_HEARD - 1);
    this.#count += 1;
  }
}

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
