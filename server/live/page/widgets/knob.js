/** A knob: drag, wheel, keyboard; double click is the default. */

import { element } from "./element.js";

/**
 * @typedef {{label: string, help?: string, min: number, max: number, default: number, integer?: boolean,
 *   format?: (value: number) => string}} Range
 */

const SVG = "http://www.w3.org/2000/svg";
const SWEEP_DEGREES = 270;
const DRAG_PIXELS = 180;

/** Reports `input` with the new value in `detail`. */
export class Knob extends EventTarget {
  /** @param {Range} range */
  constructor(range) {
    super();
    this.range = range;
    this.value = range.default;
    this.curve = /** @type {number[] | null} */ (null);
    this.root = element("div", "knob");
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "slider");
    this.root.setAttribute("aria-label", range.label);
    this.root.setAttribute("aria-valuemin", String(range.min));
    this.root.setAttribute("aria-valuemax", String(range.max));
    this.root.title = range.help ?? "";
    this.#draw();
    this.#listen();
    this.show(range.default);
  }

  #draw() {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-32 -32 64 64");
    svg.setAttribute("aria-hidden", "true");
    const add = (/** @type {string} */ name, /** @type {Record<string, any>} */ attributes) => {
      const node = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      svg.append(node);
      return node;
    };
    add("path", { class: "track", d: arc(0, 1) });
    this.arc = add("path", { class: "arc" });
    add("circle", { class: "cap", r: 18.5 });
    this.needle = add("line", { class: "needle", y1: -9, y2: -16 });
    this.text = element("span", "value");
    this.badge = element("span", "midi-badge");
    this.root.append(svg, this.text, element("span", "name", this.range.label), this.badge);
  }

  #listen() {
    const root = this.root;
    let last = 0;
    root.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      root.setPointerCapture(event.pointerId);
      root.focus();
      last = event.clientX - event.clientY;
    });
    root.addEventListener("pointermove", (event) => {
      if (!root.hasPointerCapture(event.pointerId)) return;
      const now = event.clientX - event.clientY;
      this.#move((now - last) / (event.shiftKey ? DRAG_PIXELS * 6 : DRAG_PIXELS));
      last = now;
    });
    root.addEventListener("dblclick", () => this.set(this.range.default));
    root.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.#move((-Math.sign(event.deltaY || event.deltaX) * (event.shiftKey ? 0.25 : 1)) / 50);
      },
      { passive: false },
    );
    root.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowUp: () => this.#move(0.01),
      ArrowRight: () => this.#move(0.01),
      ArrowDown: () => this.#move(-0.01),
      ArrowLeft: () => this.#move(-0.01),
      PageUp: () => this.#move(0.1),
      PageDown: () => this.#move(-0.1),
      Home: () => this.set(this.range.min),
      End: () => this.set(this.range.max),
      Delete: () => this.set(this.range.default),
      Backspace: () => this.set(this.range.default),
    };
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  /** Move by a share of the dial; an integer moves by one at least. @param {number} share */
  #move(share) {
    const { integer } = this.range;
    const before = this.exact ?? positionOf(this.value, this.range);
    const position = Math.min(1, Math.max(0, before + share));
    let value = rounded(valueAt(position, this.range), this.range);
    if (integer && value === this.value && Math.abs(share) === 0.01) value += Math.sign(share);
    this.set(value);
    this.exact = integer && Math.abs(share) === 0.01 ? null : position;
  }

  /** Its curve, or its value as one of a single point. */
  get points() {
    return this.curve ?? [this.value];
  }

  /** Change it as its user does. @param {number} value */
  set(value) {
    const inside = Math.min(this.range.max, Math.max(this.range.min, value));
    if (inside === this.value && !this.curve) return;
    this.show(inside);
    this.dispatchEvent(new CustomEvent("input", { detail: inside }));
  }

  /** @param {number} position 0 to 1: a MIDI controller */
  turn(position) {
    this.set(rounded(valueAt(position, this.range), this.range));
  }

  /** @param {string} text the MIDI controller that turns this knob */
  showController(text) {
    if (this.badge) this.badge.textContent = text;
  }

  /** Show a value without reporting a change. @param {number} value @param {number[] | null} [curve] */
  show(value, curve = null) {
    this.value = value;
    this.curve = curve;
    this.exact = /** @type {number | null} */ (null);
    const text = curve ? "curve" : this.range.format ? this.range.format(value) : shortNumber(value);
    const position = positionOf(value, this.range);
    const origin = this.range.min < 0 && this.range.max > 0 ? positionOf(0, this.range) : 0;
    this.arc?.setAttribute("d", arc(Math.min(origin, position), Math.max(origin, position)));
    this.needle?.setAttribute("transform", `rotate(${(position - 0.5) * SWEEP_DEGREES})`);
    this.text && (this.text.textContent = text);
    this.root.classList.toggle("is-changed", value !== this.range.default || curve !== null);
    this.root.setAttribute("aria-valuenow", String(value));
    this.root.setAttribute("aria-valuetext", text);
  }
}

/** Exponent of the dial: the default lies near the middle of the dial. @param {Range} range */
function bend({ min, max, default: middle }) {
  const share = (middle - min) / (max - min);
  return share > 0.01 && share < 0.4 ? Math.log(share) / Math.log(0.4) : share <= 0.01 && max - min > 2 ? 2.5 : 1;
}

/** @param {number} position @param {Range} range */
function valueAt(position, range) {
  const { min, max } = range;
  if (min < 0 && max === -min) return max * Math.sign(position - 0.5) * Math.abs(2 * position - 1) ** (max > 2 ? 3 : 1);
  return min + (max - min) * position ** bend(range);
}

/** @param {number} value @param {Range} range */
function positionOf(value, range) {
  const { min, max } = range;
  if (min < 0 && max === -min) return 0.5 + (Math.sign(value) * (Math.abs(value) / max) ** (1 / (max > 2 ? 3 : 1))) / 2;
  return Math.min(1, Math.max(0, value - min) / (max - min)) ** (1 / bend(range));
}

/** @param {number} value @param {Range} range */
function rounded(value, { integer, max }) {
  return integer ? Math.round(value) : Number(value.toFixed(max > 20 ? 2 : 3));
}

/** @param {number} value */
function shortNumber(value) {
  return Number.isInteger(value) || Math.abs(value) >= 100 ? String(Math.round(value)) : value.toFixed(2);
}

/** The path of the dial between two positions. @param {number} from @param {number} to */
function arc(from, to) {
  const point = (/** @type {number} */ position) => {
    const angle = ((position - 0.5) * SWEEP_DEGREES * Math.PI) / 180;
    return `${(25 * Math.sin(angle)).toFixed(2)} ${(-25 * Math.cos(angle)).toFixed(2)}`;
  };
  return `M${point(from)}A25 25 0 ${to - from > 180 / SWEEP_DEGREES ? 1 : 0} 1 ${point(to)}`;
}
