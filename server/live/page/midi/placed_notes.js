/** Notes by their place on the canvas: they lie where they were heard, until the playhead passes there again. */

/** @typedef {{note: import("./notes.js").Note, startS: number, seconds: number}} PlacedNote */
/** @typedef {{seconds: number, sample: number}} Position of the playhead, on the canvas and on the play axis */

const MOST = 10_000;
/** The position has jumped where it is further off than this. */
const JUMP_S = 0.03;
/** Without a report for so long it is not known what was passed. */
const LONGEST_GAP_S = 3;

export class PlacedNotes {
  /** What was played, without what comes next. @type {PlacedNote[]} */ passed = [];
  /** What comes next, as far as it is told. @type {PlacedNote[]} */ #coming = [];
  /** @type {Position | null} */ #position = null;

  clear() {
    this.passed = this.#coming = [];
    this.#position = null;
  }

  get all() {
    return [...this.passed, ...this.#coming];
  }

  /**
   * The playhead is there, as the server reports.
   * @param {Position} now
   * @param {import("./notes.js").SessionNotes} notes
   * @param {number} loopStartS where a loop begins again
   */
  follow(now, notes, loopStartS) {
    const { rateHz } = notes;
    const before = this.#position;
    const elapsedS = before ? (now.sample - before.sample) / rateHz : 0;
    this.#position = now;
    if (before && elapsedS > 0 && elapsedS < LONGEST_GAP_S) {
      const hasJumped = Math.abs(now.seconds - before.seconds - elapsedS) > JUMP_S;
      // Where it has jumped it is not known when: in this time, behind the one place or before the other.
      const isWithin = (/** @type {number} */ startS, /** @type {number} */ fromS) =>
        startS >= fromS && startS < fromS + elapsedS;
      const isPassed = (/** @type {number} */ startS) =>
        hasJumped
          ? isWithin(startS, before.seconds) || (startS >= loopStartS && isWithin(startS, now.seconds - elapsedS))
          : startS >= before.seconds && startS < now.seconds;
      const place = (/** @type {import("./notes.js").Note} */ note) => {
        const agoS = (now.sample - note.start) / rateHz;
        const isBehindJump = hasJumped && agoS > now.seconds - loopStartS;
        return isBehindJump ? before.seconds + (note.start - before.sample) / rateHz : now.seconds - agoS;
      };
      const heard = notes.all.filter((note) => note.start >= before.sample && note.start < now.sample);
      this.passed = this.passed.filter((one) => !isPassed(one.startS));
      this.passed = [...this.passed, ...heard.map((note) => placed(note, place(note), rateHz))].slice(-MOST);
    }
    const coming = notes.all.filter((note) => note.start >= now.sample);
    this.#coming = coming.map((note) => placed(note, now.seconds + (note.start - now.sample) / rateHz, rateHz));
  }
}

/** @param {import("./notes.js").Note} note @param {number} startS @param {number} rateHz @returns {PlacedNote} */
function placed(note, startS, rateHz) {
  return {
    note,
    startS,
    /** A note that sounds gets longer. */
    get seconds() {
      return (note.end - note.start) / rateHz;
    },
  };
}
