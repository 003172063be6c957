/** Knobs: one widget, and the panel of them that is drawn from the schema of the session's controls. */

/**
 * @typedef {{id: string, name: string, member: string, label: string, help: string,
 *   type: "number" | "integer" | "enum" | "text", min: number, max: number, default: any, choices: string[],
 *   takesCurve: boolean, needsSource: boolean, isStep: boolean}} Control
 * @typedef {{label: string, help?: string, min: number, max: number, default: number, integer?: boolean,
 *   format?: (value: number) => string}} Range
 */

const SVG = "http://www.w3.org/2000/svg";
const SWEEP_DEGREES = 270;
const DRAG_PIXELS = 180;
/** What is shown first, where the schema has it. The rest is behind "More". */
const FIRST = ["guidance", "variation", "velocity_scale", "shift", "steps", "ode_noise", "rescale", "momentum", "dcw.low"];
/** What a control that is off by default is worth, where the schema gives no number. */
const NEUTRAL = /** @type {Record<string, number>} */ ({ momentum: -0.75, ode_noise: 0, rescale: 0, x0_strength: 0 });
/** Set elsewhere on the page. */
const ELSEWHERE = ["prompt", "seconds", "seed", "repaint", "source_strength"];

/** @param {string} tag @param {string} [className] @param {string} [text] */
export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

/** A value with a rotary dial: drag, wheel, keyboard; double click is the default. */
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

  /** Change it as its user does. @param {number} value */
  set(value) {
    const inside = Math.min(this.range.max, Math.max(this.range.min, value));
    if (inside === this.value && !this.curve) return;
    this.show(inside);
    this.dispatchEvent(new CustomEvent("input", { detail: inside }));
  }

  /** @param {number} position 0 to 1: a MIDI controller */
  setPosition(position) {
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

/** Exponent of the dial: the default lies where a hand can find values around it. @param {Range} range */
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
  if (min < 0 && max === -min)
    return 0.5 + (Math.sign(value) * (Math.abs(value) / max) ** (1 / (max > 2 ? 3 : 1))) / 2;
  return (Math.max(0, value - min) / (max - min)) ** (1 / bend(range));
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

/** The controls of a JSON schema that a page can draw, in its order. @param {any} schema @returns {Control[]} */
export function readControls(schema) {
  return Object.entries(schema.properties).flatMap(([name, property]) => {
    const inner = branches(property, schema).find((branch) => branch.properties);
    if (ELSEWHERE.includes(name)) return [];
    if (!inner) return readControl(name, "", property, schema);
    return Object.entries(inner.properties).flatMap(([member, part]) => readControl(name, member, part, schema, property));
  });
}

/** @param {any} property @param {any} schema @returns {any[]} */
function branches(property, schema) {
  return (property.anyOf ?? property.allOf ?? [property]).map((/** @type {any} */ branch) =>
    branch.$ref ? schema.$defs[branch.$ref.split("/").pop()] : branch,
  );
}

/** @param {string} name @param {string} member @param {any} property @param {any} schema @param {any} [outer] @returns {Control[]} */
function readControl(name, member, property, schema, outer = property) {
  const all = branches(property, schema);
  const number = all.find((branch) => branch.type === "number" || branch.type === "integer");
  const choices = all.find((branch) => branch.enum);
  const text = all.find((branch) => branch.type === "string");
  const id = member ? `${name}.${member}` : name;
  const found = number ?? choices ?? text;
  if (!found) return [];
  const min = number?.minimum ?? 0;
  const max = number?.maximum ?? 1;
  const neutral = NEUTRAL[name] ?? (min <= 1 && max >= 1 ? 1 : min);
  const given = typeof property.default === "number" ? property.default : neutral;
  return [
    {
      id,
      name,
      member,
      label: id.replaceAll(/[_.]/g, " "),
      help: property.description ?? outer.description ?? "",
      type: number ? number.type : choices ? "enum" : "text",
      min,
      max,
      default: number ? given : (property.default ?? ""),
      choices: choices?.enum ?? [],
      takesCurve: !member && all.some((branch) => branch.type === "array" && branch.items.type === "number" && !branch["x-length"]),
      needsSource: Boolean(outer["x-needs-source"]),
      isStep: outer["x-kind"] === "step",
    },
  ];
}

/** All controls of a session. Reports `change` with the values of the protocol's `set`. */
export class ControlPanel extends EventTarget {
  /** @type {Control[]} */ controls = [];
  /** @type {Map<string, Knob>} */ knobs = new Map();
  /** @type {Map<string, HTMLInputElement | HTMLSelectElement>} */ fields = new Map();
  /** Values that are not the default. @type {Record<string, any>} */ values = {};

  /** @param {HTMLElement} first @param {HTMLElement} more */
  constructor(first, more) {
    super();
    this.first = first;
    this.more = more;
  }

  /** Draw the controls of a schema, once. @param {any} schema */
  draw(schema) {
    if (this.controls.length) return;
    this.controls = readControls(schema);
    const rank = (/** @type {Control} */ control) => FIRST.indexOf(control.id);
    const first = this.controls.filter((control) => rank(control) >= 0).sort((a, b) => rank(a) - rank(b));
    const rest = this.controls.filter((control) => rank(control) < 0);
    const byType = (/** @type {Control} */ control) => ["number", "integer", "enum", "text"].indexOf(control.type);
    this.first.prepend(...first.map((control) => this.#widget(control)));
    this.more.prepend(...rest.sort((a, b) => byType(a) - byType(b)).map((control) => this.#widget(control)));
  }

  /** @param {Control} control */
  #widget(control) {
    const widget = control.type === "enum" ? this.#choice(control) : control.type === "text" ? this.#text(control) : this.#knob(control);
    widget.dataset.control = control.id;
    widget.classList.toggle("needs-source", control.needsSource);
    return widget;
  }

  /** @param {Control} control */
  #knob(control) {
    const knob = new Knob({ ...control, integer: control.type === "integer" });
    knob.addEventListener("input", (event) => this.#changed(control, /** @type {CustomEvent} */ (event).detail));
    knob.root.classList.toggle("is-step", control.isStep);
    this.knobs.set(control.id, knob);
    return knob.root;
  }

  /** @param {Control} control */
  #choice(control) {
    const label = element("label", "field", control.label);
    const select = /** @type {HTMLSelectElement} */ (element("select"));
    select.append(...control.choices.map((choice) => new Option(choice, choice, choice === control.default)));
    select.addEventListener("change", () => this.#changed(control, select.value));
    label.title = control.help;
    this.fields.set(control.id, select);
    label.append(select);
    return label;
  }

  /** @param {Control} control */
  #text(control) {
    const label = element("label", "field is-wide", control.label);
    const input = /** @type {HTMLInputElement} */ (element("input"));
    input.spellcheck = false;
    input.addEventListener("change", () => this.#changed(control, input.value));
    label.title = control.help;
    this.fields.set(control.id, input);
    label.append(input);
    return label;
  }

  /** @param {Control} control @param {any} value */
  #changed(control, value) {
    this.#keep(control, value);
    const wire = this.values[control.name] ?? null;
    this.dispatchEvent(new CustomEvent("change", { detail: { [control.name]: wire } }));
  }

  /** Draw a step parameter as a curve over the canvas; null is its default. @param {string} id @param {number[] | null} curve */
  setCurve(id, curve) {
    const control = this.controls.find((one) => one.id === id);
    if (!control) return;
    this.knobs.get(id)?.show(control.default, curve);
    this.#changed(control, curve ?? control.default);
  }

  /** Show these values, without reporting a change; those that are the default are not kept. @param {Record<string, any>} values */
  show(values) {
    // Before the schema is known all are kept: `open` sends them.
    this.values = this.controls.length ? {} : structuredClone(values);
    for (const control of this.controls) {
      const held = control.member ? values[control.name]?.[control.member] : values[control.name];
      const value = held ?? control.default;
      this.#keep(control, value);
      const isList = Array.isArray(value);
      this.knobs.get(control.id)?.show(isList ? control.default : value, isList ? value : null);
      const field = this.fields.get(control.id);
      if (field) field.value = value;
    }
  }

  /** @param {Control} control @param {any} value */
  #keep({ name, member, default: standard }, value) {
    const isDefault = value === standard;
    if (!member) {
      if (isDefault) delete this.values[name];
      else this.values[name] = value;
      return;
    }
    const object = { ...this.values[name], [member]: value };
    if (isDefault) delete object[member];
    if (Object.keys(object).length) this.values[name] = object;
    else delete this.values[name];
  }
}
