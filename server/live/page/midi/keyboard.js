/** What is played on a MIDI keyboard, or on the computer's: notes from key down to key up. */

const [NOTE_OFF, NOTE_ON] = [0x80, 0x90];
/** Keys of the computer by their place, from C on: two rows as on a piano. */
const KEYS = [..."AWSEDFTGYHUJKOLP"].map((letter) => `Key${letter}`).concat("Semicolon", "Quote");
const OCTAVE_KEYS = /** @type {Record<string, number>} */ ({ KeyZ: -12, KeyX: 12 });
const COMPUTER_VELOCITY = 96;
/** Where keys write or choose instead. */
const WRITTEN = "input:not([type=checkbox]), textarea, select, dialog";

/** @typedef {{pitch: number, velocity: number, beganMs: number, endedMs: number}} PlayedNote */
/**
 * @typedef {{struck: (pitch: number, velocity: number) => void, released: (note: PlayedNote) => void}} KeyboardHandlers
 */

export class Keyboard {
  /** By where they are played ("midi 60", "KeyA"). @type {Map<string, PlayedNote>} */ #down = new Map();
  #lowest = 60;
  /** The MIDI input that is played; "": none. */ port = "";
  /** Whether the computer's keys play. */ hasComputerKeys = false;

  /** @param {KeyboardHandlers} handlers */
  constructor(handlers) {
    this.handlers = handlers;
    document.addEventListener("keydown", (event) => this.#keyDown(event));
    document.addEventListener("keyup", (event) => this.#up(event.code, event.timeStamp));
    addEventListener("blur", () => this.releaseAll());
  }

  /** The pitches that are held. */
  get held() {
    return [...this.#down.values()].map((note) => note.pitch);
  }

  /** Begin the computer's keys at the C in or below this pitch. @param {number} pitch */
  startAt(pitch) {
    this.#lowest = pitch - (pitch % 12);
  }

  /** Take a message of a port. @param {import("./ports.js").MidiMessage} message */
  receive({ port, data, timeMs }) {
    const kind = data[0] & 0xf0;
    if (port !== this.port || (kind !== NOTE_ON && kind !== NOTE_OFF)) return;
    const place = `${data[0] & 0x0f} ${data[1]}`;
    if (kind === NOTE_ON && data[2]) this.#press(place, data[1], data[2], timeMs);
    else this.#up(place, timeMs);
  }

  /** @param {KeyboardEvent} event */
  #keyDown(event) {
    const isElsewhere = event.target instanceof Element && event.target.closest(WRITTEN);
    const isCommand = event.ctrlKey || event.metaKey || event.altKey;
    if (!this.hasComputerKeys || isElsewhere || isCommand || event.repeat) return;
    const key = KEYS.indexOf(event.code);
    const moved = this.#lowest + (OCTAVE_KEYS[event.code] ?? 0);
    if (event.code in OCTAVE_KEYS && moved >= 0 && moved <= 108) this.#lowest = moved;
    if (key < 0 || this.#lowest + key > 127) return;
    event.preventDefault(); // Firefox searches at an apostrophe.
    this.#press(event.code, this.#lowest + key, COMPUTER_VELOCITY, event.timeStamp);
  }

  /** @param {string} place @param {number} pitch @param {number} velocity @param {number} timeMs */
  #press(place, pitch, velocity, timeMs) {
    this.#up(place, timeMs);
    this.#down.set(place, { pitch, velocity, beganMs: timeMs, endedMs: timeMs });
    this.handlers.struck(pitch, velocity);
  }

  /** @param {string} place @param {number} timeMs */
  #up(place, timeMs) {
    const note = this.#down.get(place);
    if (!note) return;
    this.#down.delete(place);
    this.handlers.released({ ...note, endedMs: timeMs });
  }

  releaseAll() {
    for (const place of [...this.#down.keys()]) this.#up(place, performance.now());
  }
}
