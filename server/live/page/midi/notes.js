/** The notes that a session has told, by samples of its play axis. */

/** Longer ago is forgotten. */
const KEPT_S = 600;

/**
 * @typedef {{layer: string, pitch: number, velocity: number, start: number, end: number, isOpen: boolean}} Note
 *   isOpen: it goes on behind what is told, which ends at `end`
 * @typedef {[string, number, number, number, number | null]} ToldNote
 */

export class SessionNotes {
  /** In the order of their beginnings. @type {Note[]} */ all = [];

  /** @param {number} rateHz samples per second */
  constructor(rateHz = 48000) {
    this.rateHz = rateHz;
  }

  /** Forget all: another epoch begins. @param {number} rateHz */
  clear(rateHz) {
    this.rateHz = rateHz;
    this.all = [];
  }

  /** Take the notes of a chunk, in place of what was told of its samples. @param {any} message */
  tell({ start_sample, end_sample, notes, open }) {
    const sounding = new Map(open.map((/** @type {ToldNote} */ note) => [key(note[0], note[1]), note]));
    const oldest = end_sample - KEPT_S * this.rateHz;
    const kept = this.all.filter((note) => note.end > oldest);
    this.all = kept.filter((note) => note.start < start_sample || note.start >= end_sample);
    for (const note of this.all) {
      if (note.start >= start_sample || (note.end < start_sample && !note.isOpen)) continue;
      const told = sounding.get(key(note.layer, note.pitch));
      sounding.delete(key(note.layer, note.pitch));
      note.end = told ? endOf(told, end_sample) : Math.min(note.end, start_sample);
      note.isOpen = told ? told[4] === null : false;
    }
    const added = [...sounding.values(), ...notes].map((/** @type {ToldNote} */ told) => ({
      layer: told[0],
      pitch: told[1],
      velocity: told[2],
      start: told[3],
      end: endOf(told, end_sample),
      isOpen: told[4] === null,
    }));
    this.all = [...this.all, ...added].sort((one, other) => one.start - other.start);
  }
}

/** @param {string} layer @param {number} pitch */
function key(layer, pitch) {
  return `${layer} ${pitch}`;
}

/** @param {ToldNote} note @param {number} endSample of what is told */
function endOf([, , , start, samples], endSample) {
  return samples === null ? endSample : start + samples;
}
