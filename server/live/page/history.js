/** Undo and redo: every state of the page, as presets. Changes of one kind that follow each other fast are one. */

const GESTURE_MS = 500;
const MOST_STATES = 200;
/** So many of what can be undone are kept when the page is loaded again: browsers keep some millions of letters. */
const MOST_STORED = 100;

/**
 * A preset, and what is set beside it. Presets have none of the latter.
 * @typedef {import("./presets.js").Preset & {kept?: import("./plan.js").Kept | null, sources?: import("./sources.js").Sources["chosen"],
 *   glide?: number, atBar?: boolean, writeMode?: string}} State
 */

/** Reports `change` when there is more or less to undo or redo. */
export class History extends EventTarget {
  /** @type {string[]} */ #states = [];
  #place = 0;
  /** The newest state, of a change that may go on. @type {{kind: string, state: string} | null} */ #pending = null;
  #timer = 0;

  /** As JSON has it; to be restored in the same tab. */
  get stored() {
    this.#settle();
    const first = Math.max(0, this.#place - MOST_STORED);
    return { states: this.#states.slice(first), place: this.#place - first };
  }

  /** @param {History["stored"]} stored */
  restore({ states, place }) {
    this.#states = states;
    this.#place = place;
    this.dispatchEvent(new Event("change"));
  }

  /** @param {{current: () => State, use: (preset: State) => void}} page */
  constructor(page) {
    super();
    this.page = page;
  }

  get #now() {
    return JSON.stringify(this.page.current());
  }

  get canUndo() {
    return this.#place > 0 || (this.#pending !== null && this.#pending.state !== this.#states[this.#place]);
  }

  get canRedo() {
    return this.#pending === null && this.#place < this.#states.length - 1;
  }

  /** Something was changed. @param {string} kind what: changes of another kind are another step */
  changed(kind) {
    if (this.#pending?.kind !== kind) this.#settle();
    this.#pending = { kind, state: this.#now };
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#settle(), GESTURE_MS);
    this.dispatchEvent(new Event("change"));
  }

  /** The page is as the server says it is: nothing to undo. */
  follow() {
    if (this.#pending) this.#pending.state = this.#now;
    else this.#states[this.#place] = this.#now;
    // A change that was refused is none.
    if (this.#place && this.#states[this.#place] === this.#states[this.#place - 1]) this.#states.splice(this.#place--, 1);
    this.dispatchEvent(new Event("change"));
  }

  #settle() {
    clearTimeout(this.#timer);
    const state = this.#pending?.state;
    this.#pending = null;
    if (state !== undefined && state !== this.#states[this.#place]) {
      this.#states = [...this.#states.slice(0, this.#place + 1), state].slice(-MOST_STATES);
      this.#place = this.#states.length - 1;
    }
    this.dispatchEvent(new Event("change"));
  }

  /** @param {number} by -1: undo, 1: redo */
  move(by) {
    this.#settle();
    const state = this.#states[this.#place + by];
    if (state === undefined) return;
    this.#place += by;
    this.page.use(JSON.parse(state));
    this.dispatchEvent(new Event("change"));
  }
}
