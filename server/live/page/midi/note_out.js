/** Notes at a MIDI output: which are due, and which sound and have to be ended. */

const [NOTE_OFF, NOTE_ON] = [0x80, 0x90];
/** Notes that are told late are played where they are not later than this. */
const LATE_S = 0.04;

/**
 * @typedef {{data: number[], sample: number}} Due
 * @typedef {{channel: number, pitch: number, start: number}} Sounding
 */

export class NoteOut {
  /** Note-ons that were given and have no note-off yet, by layer, pitch and start. @type {Map<string, Sounding>} */
  #sounding = new Map();
  /** Starts of all that were given and may be told again. @type {Map<string, number>} */ #given = new Map();

  /**
   * What is to be sent of the notes before `until`, in order.
   * @param {import("./notes.js").SessionNotes} notes
   * @param {(layer: string) => number | null} channelOf 0 to 15; null: not sent
   * @param {number} playhead
   * @param {number} until
   * @returns {Due[]}
   */
  due(notes, channelOf, playhead, until) {
    const earliest = playhead - LATE_S * notes.rateHz;
    for (const [key, start] of this.#given) if (start < earliest) this.#given.delete(key);
    const recent = notes.all.filter((note) => note.end > earliest - notes.rateHz);
    const told = new Map(recent.map((note) => [keyOf(note), note]));
    const due = this.#ends(told, playhead, until);
    for (const note of told.values()) {
      const key = keyOf(note);
      if (note.start < earliest || note.start >= until || this.#given.has(key)) continue;
      const channel = channelOf(note.layer);
      if (channel === null) continue;
      this.#given.set(key, note.start);
      due.push(...this.#strike(key, { channel, pitch: note.pitch, start: note.start }, note.velocity));
      if (!note.isOpen && note.end <= until) due.push(this.#end(key, note.end));
    }
    return due.sort((one, other) => one.sample - other.sample);
  }

  /**
   * Ends of what sounds: where they are told, or at once where the note is not told any more, or nothing behind it is.
   * @param {Map<string, import("./notes.js").Note>} told
   * @param {number} playhead
   * @param {number} until
   */
  #ends(told, playhead, until) {
    /** @type {Due[]} */ const due = [];
    for (const [key, sounding] of this.#sounding) {
      const note = told.get(key);
      if (!note) due.push(this.#end(key, Math.max(playhead, sounding.start)));
      else if (note.end <= (note.isOpen ? playhead : until)) due.push(this.#end(key, Math.max(playhead, note.end)));
    }
    return due;
  }

  /**
   * A note-on; the same pitch of its channel ends before.
   * @param {string} key
   * @param {Sounding} note
   * @param {number} velocity
   */
  #strike(key, note, velocity) {
    /** @type {Due[]} */ const due = [];
    for (const [other, { channel, pitch }] of this.#sounding)
      if (channel === note.channel && pitch === note.pitch) due.push(this.#end(other, note.start));
    this.#sounding.set(key, note);
    return [...due, { data: [NOTE_ON | note.channel, note.pitch, velocity], sample: note.start }];
  }

  /** @param {string} key @param {number} sample @returns {Due} */
  #end(key, sample) {
    const { channel, pitch } = /** @type {Sounding} */ (this.#sounding.get(key));
    this.#sounding.delete(key);
    return { data: [NOTE_OFF | channel, pitch, 0], sample };
  }

  /** Note-offs for all that sounds, behind its start where that is still to come. @param {number} playhead */
  stop(playhead) {
    const keys = [...this.#sounding];
    return keys.map(([key, { start }]) => this.#end(key, Math.max(start + 1, playhead)));
  }

  /** What begins from a sample on is due again, as where another epoch begins. @param {number} [sample] */
  clear(sample = -Infinity) {
    for (const [key, start] of this.#given) if (start >= sample) this.#given.delete(key);
  }
}

/** @param {import("./notes.js").Note} note */
function keyOf({ layer, pitch, start }) {
  return `${layer} ${pitch} ${start}`;
}
