/** Where bars lie on the canvas, as the server told of the beat. */

/**
 * @typedef {{startS: number, number: number, beatS: number, beats: number}} Bar number: the first is 1
 * @typedef {{startS: number, bar: number, barS: number, beats: number}} Line where on the canvas a bar begins; bar: from 0 on
 */

const CLOSE_S = 0.02;

export class Bars {
  /** @type {Line | null} */ #line = null;
  /** @type {[number, number] | null} */ #loop = null;

  /** Nothing is known. */
  clear() {
    this.#line = null;
  }

  /** @param {import("../connection.js").Message} state @param {number} rateHz */
  tell({ beat, loop, canvas_position_s, playhead_sample }, rateHz) {
    this.#loop = loop;
    const startS = beat && canvas_position_s + (beat.sample - playhead_sample) / rateHz;
    this.#line = beat && { startS, bar: beat.bar, barS: (60 * beat.beats) / beat.bpm, beats: beat.beats };
  }

  /**
   * Those that begin in a part of the canvas; none where no beat is known.
   * @param {number} fromS @param {number} toS @param {import("./plan_view.js").Section[]} sections
   * @returns {Bar[]}
   */
  between(fromS, toS, sections) {
    const line = this.#line;
    if (!line) return [];
    const all = sections.length ? planned(sections, line) : this.#even(line, fromS, toS);
    return all.filter(({ startS }) => startS >= fromS && startS < toS);
  }

  /** Length of a beat and of a bar; null where no beat is known. */
  get beat() {
    return this.#line && { beatS: this.#line.barS / this.#line.beats, barS: this.#line.barS };
  }

  /** @param {Line} line @param {number} fromS @param {number} toS @returns {Bar[]} */
  #even({ startS, bar, barS, beats }, fromS, toS) {
    let zeroS = startS - bar * barS;
    let [first, end] = [fromS, toS];
    if (this.#loop) {
      [first, end] = this.#loop;
      // The newest line may be of another pass. Its times are rounded.
      const lengthS = end - first;
      const behindS = startS - first + CLOSE_S;
      zeroS = startS - Math.floor(behindS / lengthS) * lengthS - bar * barS;
    }
    const numbers = [];
    for (let k = Math.max(0, Math.ceil((first - zeroS - CLOSE_S) / barS)); zeroS + k * barS < end - CLOSE_S; k++) numbers.push(k);
    return numbers.map((k) => ({ startS: Math.max(first, zeroS + k * barS), number: k + 1, beatS: barS / beats, beats }));
  }
}

/** The bars of sections. @param {import("./plan_view.js").Section[]} sections @param {Line} line @returns {Bar[]} */
function planned(sections, { beats }) {
  let next = 0;
  return sections.flatMap(({ start_s, end_s, bars, first_bar = next }) => {
    const barS = (end_s - start_s) / bars;
    next = first_bar + bars;
    return Array.from({ length: bars }, (_, i) => {
      return { startS: start_s + i * barS, number: first_bar + i + 1, beatS: barS / beats, beats };
    });
  });
}
