/** MIDI learn: a controller that moves after a knob was chosen turns this knob from then on. */

import { all, find } from "../widgets/element.js";

const ITEM = "tickrt.midi";
const CONTROL_CHANGE = 0xb0;

/**
 * @typedef {{root: HTMLElement, turn: (position: number) => void, showController: (text: string) => void}} Target
 */

export class MidiLearn {
  /** Controller ("channel:number") -> id of a target. @type {Record<string, string>} */ #targetOf = load();
  /** @type {string | null} */ #chosen = null;

  /**
   * @param {import("./ports.js").MidiPorts} ports
   * @param {() => Map<string, Target>} targets by id
   * @param {(text: string, isNote?: boolean) => void} notify
   */
  constructor(ports, targets, notify) {
    this.ports = ports;
    ports.addEventListener("message", (event) => this.#receive(/** @type {CustomEvent} */ (event).detail));
    this.targets = targets;
    this.notify = notify;
    for (const type of ["pointerdown", "focusin"])
      document.addEventListener(type, (event) => this.#choose(event), true);
  }

  get #isLearning() {
    return document.body.classList.contains("is-learning");
  }

  /** Begin or end to learn. */
  async toggle() {
    const isLearning = !this.#isLearning;
    try {
      if (isLearning) await this.ports.open();
    } catch (error) {
      this.notify(`MIDI cannot be used: ${/** @type {Error} */ (error).message}`, true);
      return;
    }
    document.body.classList.toggle("is-learning", isLearning);
    find("midi").setAttribute("aria-pressed", String(isLearning));
    this.#mark(null, null);
    if (isLearning) this.notify("Touch a knob, then move a controller. Shift-click on MIDI learn forgets all.", true);
  }

  /**
   * Choose what the next controller turns; on an element with two targets the second comes after the first.
   * @param {Event} event
   */
  #choose(event) {
    if (!this.#isLearning || !(event.target instanceof Element)) return;
    const touched = event.target;
    const found = [...this.targets()].filter(([, target]) => target.root.contains(touched));
    const [id, target] = found.find(([id]) => !this.#controllerOf(id)) ?? found.at(-1) ?? [null, null];
    if (target) this.#mark(id, target.root);
  }

  /** @param {string | null} id @param {HTMLElement | null} root */
  #mark(id, root) {
    this.#chosen = id;
    for (const marked of all(".is-target")) marked.classList.remove("is-target");
    root?.classList.add("is-target");
  }

  /** @param {import("./ports.js").MidiMessage} message */
  #receive({ data }) {
    if ((data[0] & 0xf0) !== CONTROL_CHANGE) return;
    const controller = `${(data[0] & 0x0f) + 1}:${data[1]}`;
    if (this.#chosen) {
      this.#targetOf[controller] = this.#chosen;
      localStorage.setItem(ITEM, JSON.stringify(this.#targetOf));
      this.#mark(null, null);
      this.show();
    }
    this.targets()
      .get(this.#targetOf[controller] ?? "")
      ?.turn(data[2] / 127);
  }

  /** @param {string} id */
  #controllerOf(id) {
    const found = Object.entries(this.#targetOf).find(([, target]) => target === id);
    return found ? `CC ${found[0].split(":")[1]}` : "";
  }

  /** Forget all controllers. */
  forget() {
    this.#targetOf = {};
    localStorage.removeItem(ITEM);
    this.show();
  }

  /** Show each target's controller on it. */
  show() {
    for (const [id, target] of this.targets()) target.showController(this.#controllerOf(id));
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
