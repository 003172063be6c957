/** A knob: drag, wheel, keyboard, typed values; shift is fine, double click is the default. */

import { element } from "./element.js";
import { enter } from "./number_entry.js";

/**
 * @typedef {{label: string, help?: string, min: number, max: number, default: number, integer?: boolean,
 *   usual?: [number, number], format?: (value: number) => string, parse?: (text: string) => number}} Range
 *   usual: the part that most of the dial is for; parse: what is typed, NaN where it is nothing
 */

const SVG = "http://www.w3.org/2000/svg";
const SWEEP_DEGREES = 270;
const DRAG_PIXELS = 180;
/** A share of the dial, on each side of the usual part, for the rest. */
const REST_SHARE = 0.1;
const FINE = 0.1;

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
    for (const mark of marks(this.range)) add("path", { class: "mark", d: tick(mark) });
    add("circle", { class: "cap", r: 18.5 });
    this.needle = add("line", { class: "needle", y1: -9, y2: -16 });
    this.text = element("span", "value");
    this.badge = element("span", "midi-badge");
    this.root.append(svg, this.text, element("span", "name", this.range.label), this.badge);
  }

  #listen() {
    const root = this.root;
    let last = 0;
    let hasMoved = false;
    root.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      hasMoved = false;
      root.setPointerCapture(event.pointerId);
      root.focus();
      last = event.clientX - event.clientY;
    });
    root.addEventListener("pointermove", (event) => {
      if (!root.hasPointerCapture(event.pointerId)) return;
      const now = event.clientX - event.clientY;
      hasMoved ||= now !== last;
      this.#move(((now - last) / DRAG_PIXELS) * (event.shiftKey ? FINE : 1));
      last = now;
    });
    // The click of a captured pointer goes to the knob itself.
    root.addEventListener("click", (event) => {
      const box = this.text?.getBoundingClientRect();
      if (box && !hasMoved && event.detail && event.clientY > box.top && event.clientY < box.bottom) this.type();
    });
    root.addEventListener("dblclick", () => this.set(this.range.default));
    root.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.#move((-Math.sign(event.deltaY || event.deltaX) * (event.shiftKey ? FINE : 1)) / 50);
      },
      { passive: false },
    );
    root.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const step = event.shiftKey ? 0.01 * FINE : 0.01;
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowUp: () => this.#move(step),
      ArrowRight: () => this.#move(step),
      ArrowDown: () => this.#move(-step),
      ArrowLeft: () => this.#move(-step),
      PageUp: () => this.#move(0.1),
      PageDown: () => this.#move(-0.1),
      Home: () => this.set(this.range.min),
      End: () => this.set(this.range.max),
      Enter: () => this.type(),
      Delete: () => this.set(this.range.default),
      Backspace: () => this.set(this.range.default),
    };
    const action = keys[event.key] ?? (/^[-.,\d]$/.test(event.key) ? () => this.type(event.key) : undefined);
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  /** Move by a share of the dial; an integer moves by one at least. @param {number} share */
  #move(share) {
    const { integer } = this.range;
    const before = this.exact ?? positionOf(this.value, this.range);
    const position = Math.min(1, Math.max(0, before + share));
    const isKey = integer && (Math.abs(share) === 0.01 || Math.abs(share) === 0.01 * FINE);
    let value = rounded(valueAt(position, this.range), this.range);
    if (isKey && value === this.value) value += Math.sign(share);
    this.set(value);
    this.exact = isKey ? null : position;
  }

  /** Let its user type a value. @param {string} [begun] what was typed already */
  type(begun) {
    const { label, min, max, parse = (text) => Number(text.replace(",", ".")) } = this.range;
    const [low, high] = [min, max].map((end) => this.#said(end));
    enter(this.text ?? this.root, this.root, {
      label: `${label}, typed`,
      text: begun ?? (this.curve ? "" : this.#said(this.value)),
      isBegun: begun !== undefined,
      take: (text) => {
        const value = parse(text.trim());
        if (!text.trim() || !(value >= min && value <= max)) return `${label} takes ${low} to ${high}`;
        this.set(this.range.integer ? Math.round(value) : value);
        return "";
      },
    });
  }

  /** @param {number} value */
  #said(value) {
    return this.range.format?.(value) ?? shortNumber(value, this.range);
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
    const text = curve ? "curve" : this.#said(value);
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

/** Where on the dial its usual part lies. @param {Range} range */
function usualPart({ min, max, usual = [min, max] }) {
  return [usual[0] > min ? REST_SHARE : 0, usual[1] < max ? 1 - REST_SHARE : 1];
}

/** Where the usual part ends. @param {Range} range */
function marks(range) {
  return usualPart(range).filter((share) => share > 0 && share < 1);
}

/** Exponent of the dial: the default lies near the middle of the dial. @param {Range} range */
function bend({ min, max, default: middle }) {
  const share = (middle - min) / (max - min);
  return share > 0.01 && share < 0.4 ? Math.log(share) / Math.log(0.4) : share <= 0.01 && max - min > 2 ? 2.5 : 1;
}

/** @param {number} position @param {Range} range @returns {number} */
function valueAt(position, range) {
  const { min, max, usual } = range;
  const ends = usualPart(range);
  if (usual && (ends[0] > 0 || ends[1] < 1)) {
    const share = (position - ends[0]) / (ends[1] - ends[0]);
    if (share < 0) return min + ((usual[0] - min) * position) / ends[0];
    if (share > 1) return usual[1] + ((max - usual[1]) * (position - ends[1])) / (1 - ends[1]);
    return usual[0] + (usual[1] - usual[0]) * share;
  }
  if (min < 0 && max === -min) return max * Math.sign(position - 0.5) * Math.abs(2 * position - 1) ** (max > 2 ? 3 : 1);
  return min + (max - min) * position ** bend(range);
}

/** @param {number} value @param {Range} range @returns {number} */
function positionOf(value, range) {
  const { min, max, usual } = range;
  const ends = usualPart(range);
  if (usual && (ends[0] > 0 || ends[1] < 1)) {
    if (value < usual[0]) return (ends[0] * (value - min)) / (usual[0] - min);
    if (value > usual[1]) return ends[1] + ((1 - ends[1]) * (value - usual[1])) / (max - usual[1]);
    return ends[0] + ((ends[1] - ends[0]) * (value - usual[0])) / (usual[1] - usual[0]);
  }
  if (min < 0 && max === -min) return 0.5 + (Math.sign(value) * (Math.abs(value) / max) ** (1 / (max > 2 ? 3 : 1))) / 2;
  return Math.min(1, Math.max(0, value - min) / (max - min)) ** (1 / bend(range));
}

/** Length of the part that is played. @param {Range} range */
function span({ min, max, usual = [min, max] }) {
  return usual[1] - usual[0];
}

/** @param {number} value @param {Range} range */
function rounded(value, range) {
  if (range.integer) return Math.round(value);
  return Number(value.toFixed(Math.max(0, Math.ceil(3 - Math.log10(span(range))))));
}

/** @param {number} value @param {Range} range */
function shortNumber(value, range) {
  if (Number.isInteger(value) || Math.abs(value) >= 100) return String(Math.round(value));
  return value.toFixed(span(range) < 0.1 ? 4 : span(range) < 0.5 ? 3 : 2);
}

/** A place on the dial. @param {number} position @param {number} radius */
function point(position, radius) {
  const angle = ((position - 0.5) * SWEEP_DEGREES * Math.PI) / 180;
  return `${(radius * Math.sin(angle)).toFixed(2)} ${(-radius * Math.cos(angle)).toFixed(2)}`;
}

/** The path of the dial between two positions. @param {number} from @param {number} to */
function arc(from, to) {
  return `M${point(from, 25)}A25 25 0 ${to - from > 180 / SWEEP_DEGREES ? 1 : 0} 1 ${point(to, 25)}`;
}

/** A mark beside the dial. @param {number} position */
function tick(position) {
  return `M${point(position, 28)}L${point(position, 31)}`;
}
