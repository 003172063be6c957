/** The panel of controls, drawn from the JSON schema that the server sends, and from its list of adapters. */

import { element } from "./widgets/element.js";
import { Knob } from "./widgets/knob.js";

/**
 * @typedef {{id: string, name: string, member: string, label: string, help: string,
 *   type: "number" | "integer" | "enum" | "entry" | "names" | "text" | "lines", min: number, max: number,
 *   usual: [number, number], default: any, choices: any[], isWhole: boolean, takesCurve: boolean, needsSource: boolean,
 *   orStructure: boolean, isStep: boolean, say?: (choice: any) => string}} Control
 */

/** What is shown first of the model's own parameters, where the schema has it. */
const FIRST = [
  "guidance",
  "velocity_scale",
  "shift",
  "steps",
  "ode_noise",
  "rescale",
  "momentum",
  "dcw.low",
];
/** Set elsewhere on the page. */
const ELSEWHERE = ["prompt", "seconds", "seed", "repaint", "source_strength", "adapters"];
const TYPES = ["number", "integer", "enum", "entry", "names", "text", "lines"];
/** A text that may be longer has several lines. */
const LINE_CHARACTERS = 4000;
const MANY_CHOICES = 6;
const ADAPTERS = "adapters";
/** Of an adapter's knob. @type {[number, number]} */
const USUAL_STRENGTH = [0, 1];

/** The control of an adapter's strength: 0 is without it. @param {string} id @param {any} schema @returns {Control} */
export function adapterControl(id, schema) {
  const { minimum = 0, maximum = 1 } = schema.$defs?.AdapterOptions?.properties.strength ?? {};
  return {
    id: `${ADAPTERS}.${id}`,
    name: ADAPTERS,
    member: id,
    label: id.replaceAll(/[_-]/g, " "),
    help: "How strongly this adapter acts; 0 is without it",
    type: "number",
    min: minimum,
    max: maximum,
    usual: USUAL_STRENGTH,
    default: 0,
    choices: [],
    isWhole: false,
    takesCurve: false,
    needsSource: false,
    orStructure: false,
    isStep: true,
  };
}

/** The controls of a JSON schema that a page can draw, in its order. @param {any} schema @returns {Control[]} */
export function readControls(schema) {
  return Object.entries(schema.properties).flatMap(([name, property]) => {
    const inner = branches(property, schema).find((branch) => branch.properties);
    if (ELSEWHERE.includes(name)) return [];
    if (!inner) return readControl(name, "", property, schema);
    return Object.entries(inner.properties).flatMap(([member, part]) =>
      readControl(name, member, part, schema, property),
    );
  });
}

/** @param {any} property @param {any} schema @returns {any[]} */
function branches(property, schema) {
  return (property.anyOf ?? property.allOf ?? [property]).map((/** @type {any} */ branch) =>
    branch.$ref ? schema.$defs[branch.$ref.split("/").pop()] : branch,
  );
}

/**
 * @param {string} name
 * @param {string} member
 * @param {any} property
 * @param {any} schema
 * @param {any} [outer]
 * @returns {Control[]}
 */
function readControl(name, member, property, schema, outer = property) {
  const all = branches(property, schema);
  const choices = all.find((branch) => branch.enum);
  const number = choices ? undefined : all.find((branch) => ["number", "integer"].includes(branch.type));
  const text = all.find((branch) => branch.type === "string");
  const id = member ? `${name}.${member}` : name;
  const names = all.find((branch) => branch.type === "array" && branch.items.type === "string");
  if (!(number ?? choices ?? text ?? names)) return [];
  const [min, max] = [number?.minimum ?? 0, number?.maximum ?? 1];
  const isOpen = property.default === null && (number?.type === "integer" || min > 1);
  const neutral = isOpen ? null : min <= 1 && max >= 1 ? 1 : min;
  const given = typeof property.default === "number" ? property.default : neutral;
  const written = names ? "names" : text?.maxLength > LINE_CHARACTERS ? "lines" : "text";
  return [
    {
      id,
      name,
      member,
      label: id.replaceAll(/[_.]/g, " "),
      help: property.description ?? outer.description ?? "",
      type: number ? (given === null ? "entry" : number.type) : choices ? "enum" : written,
      min,
      max,
      usual: number?.["x-usual"] ?? [min, max],
      default: number ? given : (property.default ?? ""),
      choices: [...(choices && property.default === null ? [""] : []), ...(choices?.enum ?? [])],
      isWhole: number?.type === "integer",
      takesCurve:
        !member &&
        all.some((branch) => branch.type === "array" && branch.items.type === "number" && !branch["x-length"]),
      needsSource: Boolean(outer["x-needs-source"]),
      orStructure: Boolean(outer["x-or-structure"]),
      isStep: outer["x-kind"] === "step",
    },
  ];
}

/**
 * What was written into a field, as the protocol has it; nothing is the default.
 * @param {string} text
 * @param {Control} control
 */
function parsed(text, { type, default: standard }) {
  if (!text.trim()) return standard;
  if (type === "entry") return Number(text);
  return type === "names" ? text.split(",").map((name) => name.trim()) : text;
}

/** The value of a control among those of the protocol. @param {Record<string, any>} values @param {Control} control */
function held(values, { name, member }) {
  if (name !== ADAPTERS) return member ? values[name]?.[member] : values[name];
  return values[name]?.find((/** @type {{id: string}} */ { id }) => id === member)?.strength;
}

/** Many texts of two words, such as keys, are grouped by the second. @param {Control} control @param {string} choice */
function groupOf({ choices }, choice) {
  return choices.length > 2 * MANY_CHOICES && choice.includes(" ") ? choice.slice(choice.indexOf(" ") + 1) : "";
}

/** @param {HTMLSelectElement} select @param {any} choice @param {Control} control */
function addOption(select, choice, control) {
  const text = choice === "" ? "default" : (control.say?.(choice) ?? choice);
  const option = new Option(text, choice, choice === control.default);
  const label = groupOf(control, String(choice));
  const group = [...select.querySelectorAll("optgroup")].find((one) => one.label === label);
  if (group || !label) return (group ?? select).append(option);
  const added = /** @type {HTMLOptGroupElement} */ (element("optgroup"));
  added.label = label;
  added.append(option);
  select.append(added);
}

/** All controls of a session. Reports `change` with the values of the protocol's `set`. */
export class ControlPanel extends EventTarget {
  /** @type {Control[]} */ controls = [];
  /** @type {Map<string, Knob>} */ knobs = new Map();
  /** @type {Map<string, HTMLInputElement | HTMLSelectElement>} */ fields = new Map();
  /** Values that are not the default. @type {Record<string, any>} */ values = {};
  /** What controls are drawn as in place of what their schema says, by id. @type {Record<string, Partial<Control>>} */
  shapes = {};
  /** @type {any} */ schema = null;

  /**
   * @param {HTMLElement} first
   * @param {HTMLElement} more
   * @param {Record<string, HTMLElement>} [places] of controls that are drawn elsewhere, by id
   */
  constructor(first, more, places = {}) {
    super();
    this.first = first;
    this.more = more;
    this.places = places;
  }

  /** Draw the controls of a schema, once. @param {any} schema */
  draw(schema) {
    if (this.controls.length) return;
    this.schema = schema;
    this.controls = readControls(schema);
    for (const control of this.controls) Object.assign(control, this.shapes[control.id]);
    const rank = (/** @type {Control} */ control) => FIRST.indexOf(control.id);
    const first = this.controls.filter((control) => rank(control) >= 0).sort((a, b) => rank(a) - rank(b));
    const rest = this.controls.filter((control) => rank(control) < 0 && !(control.id in this.places));
    const byType = (/** @type {Control} */ control) => TYPES.indexOf(control.type);
    this.first.prepend(...first.map((control) => this.#widget(control)));
    this.more.prepend(...rest.sort((a, b) => byType(a) - byType(b)).map((control) => this.#widget(control)));
    for (const control of this.controls) this.places[control.id]?.append(this.#widget(control));
  }

  /**
   * Draw a knob for each adapter, once; values stay.
   * @param {string[]} ids
   * @param {HTMLElement} place
   */
  drawAdapters(ids, place) {
    if (!this.schema?.properties[ADAPTERS]) return;
    const known = new Set(this.controls.map((control) => control.id));
    const added = ids.map((id) => adapterControl(id, this.schema)).filter(({ id }) => !known.has(id));
    this.controls.push(...added);
    place.append(...added.map((control) => this.#widget(control)));
    this.show(this.values);
  }

  /** Change a control as its user does. @param {string} id @param {any} value */
  set(id, value) {
    const control = this.controls.find((one) => one.id === id);
    if (!control) return;
    this.knobs.get(id)?.show(value);
    const field = this.fields.get(id);
    if (field) field.value = value ?? "";
    this.#changed(control, value ?? control.default);
  }

  /** @param {Control} control */
  #widget(control) {
    const widget =
      control.type === "enum"
        ? this.#choice(control)
        : ["number", "integer"].includes(control.type)
          ? this.#knob(control)
          : this.#text(control);
    widget.dataset.control = control.id;
    widget.classList.toggle("needs-source", control.needsSource);
    widget.classList.toggle("or-structure", control.orStructure);
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
    for (const choice of control.choices) addOption(select, choice, control);
    const chosen = () => control.choices.find((choice) => String(choice) === select.value);
    select.addEventListener("change", () => this.#changed(control, chosen()));
    label.title = control.help;
    select.setAttribute("aria-label", control.label);
    this.fields.set(control.id, select);
    label.append(select);
    return label;
  }

  /** @param {Control} control */
  #text(control) {
    const label = element("label", control.type === "entry" ? "field" : "field is-wide", control.label);
    const input = /** @type {HTMLInputElement} */ (element(control.type === "lines" ? "textarea" : "input"));
    input.spellcheck = false;
    if (control.type === "entry") {
      const { min, max, isWhole } = control;
      Object.assign(input, { type: "number", min, max, step: isWhole ? 1 : "any", placeholder: "default" });
    }
    input.addEventListener("change", () => {
      if (!input.reportValidity()) return;
      this.#changed(control, parsed(input.value, control));
      if (!input.value) input.value = control.default ?? "";
    });
    label.title = control.help;
    input.setAttribute("aria-label", control.label);
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

  /**
   * Draw a step parameter as a curve over the canvas; null is its default.
   * @param {string} id
   * @param {number[] | null} curve
   */
  setCurve(id, curve) {
    const control = this.controls.find((one) => one.id === id);
    if (!control) return;
    this.knobs.get(id)?.show(control.default, curve);
    this.#changed(control, curve ?? control.default);
  }

  /**
   * Show these values, without reporting a change; those that are the default are not kept.
   * @param {Record<string, any>} values
   */
  show(values) {
    // Before the schema is known all are kept: `open` sends them.
    const isEarly = !this.controls.length;
    // So are adapters, which come by themselves.
    this.values = isEarly ? structuredClone(values) : values[ADAPTERS]?.length ? { [ADAPTERS]: values[ADAPTERS] } : {};
    for (const control of this.controls) {
      const value = held(values, control) ?? control.default;
      this.#keep(control, value);
      const isList = Array.isArray(value);
      this.knobs.get(control.id)?.show(isList ? control.default : value, isList ? value : null);
      const field = this.fields.get(control.id);
      if (field instanceof HTMLSelectElement && ![...field.options].some((one) => one.value === String(value))) {
        addOption(field, value, control);
      }
      if (field) field.value = value ?? "";
    }
  }

  /** @param {Control} control @param {any} value */
  #keep({ name, member, default: standard }, value) {
    const isDefault = value === standard;
    if (name === ADAPTERS) {
      const others = (this.values[ADAPTERS] ?? []).filter((/** @type {{id: string}} */ { id }) => id !== member);
      this.values[ADAPTERS] = isDefault ? others : [...others, { id: member, strength: value }];
      if (!this.values[ADAPTERS].length) delete this.values[ADAPTERS];
      return;
    }
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
