/** MIDI learn: a controller that moves after a knob was chosen turns this knob from then on. */

const ITEM = "tickrt.midi";

export class Midi {
  /** Controller ("channel:number") -> id of a target. @type {Record<string, string>} */ #targetOf = load();
  /** @type {string | null} */ #learning = null;
  isOpen = false;

  /** @param {(target: string, position: number) => void} turn @param {() => void} changed a controller was assigned */
  constructor(turn, changed) {
    this.turn = turn;
    this.changed = changed;
  }

  /** Ask for access, once. Raises where the browser has no MIDI or its user refuses. */
  async open() {
    if (this.isOpen) return;
    if (!navigator.requestMIDIAccess) throw new Error("This browser has no Web MIDI. Chrome, Edge and Firefox have it.");
    const access = await navigator.requestMIDIAccess();
    const listen = () => access.inputs.forEach((input) => (input.onmidimessage = (event) => this.#receive(event)));
    access.onstatechange = listen;
    listen();
    this.isOpen = true;
  }

  /** The next controller that moves is this target's. @param {string | null} target */
  learn(target) {
    this.#learning = target;
  }

  /** @param {MIDIMessageEvent} event */
  #receive({ data }) {
    if (!data || (data[0] & 0xf0) !== 0xb0) return;
    const controller = `${(data[0] & 0x0f) + 1}:${data[1]}`;
    if (this.#learning) {
      this.#targetOf[controller] = this.#learning;
      localStorage.setItem(ITEM, JSON.stringify(this.#targetOf));
      this.#learning = null;
      this.changed();
    }
    const target = this.#targetOf[controller];
    if (target) this.turn(target, data[2] / 127);
  }

  /** The controller's number of a target, or "". @param {string} target */
  controllerOf(target) {
    const found = Object.entries(this.#targetOf).find(([, one]) => one === target);
    return found ? `CC ${found[0].split(":")[1]}` : "";
  }

  forget() {
    this.#targetOf = {};
    localStorage.removeItem(ITEM);
    this.changed();
  }
}

/** @returns {Record<string, string>} */
function load() {
  try {
    return JSON.parse(localStorage.getItem(ITEM) ?? "{}");
  } catch {
    return {};
  }
}
