/** The lanes of the canvas: one for each layer, with its name and, where the model can, mute and solo. */

import { element } from "./element.js";

/**
 * @typedef {{name: string, keys: number[], rows: number[], is_percussion: boolean}} Layer rows: of the picture
 * @typedef {{layer: Layer, top: number, height: number, isSilent: boolean}} Lane in pixels of the screen
 * @typedef {"mute" | "solo"} Kind
 */

const KINDS = /** @type {Kind[]} */ (["mute", "solo"]);
/** Height of the time axis, and of the names of sections below it. */ const ROW_PIXELS = 20;

/** Reports `change`, with what was changed, such as "mute bass". */
export class Lanes extends EventTarget {
  /** From top to bottom. @type {Layer[]} */ layers = [];
  /** @type {Record<Kind, string[]>} */ chosen = { mute: [], solo: [] };
  /** @type {Map<string, import("../midi/learn.js").Target>} */ targets = new Map();
  #canMute = false;
  #numRows = 1;
  /** @type {Map<string, {show: (isOn: boolean) => void}>} */ #buttons = new Map();

  /** @param {HTMLElement} root */
  constructor(root) {
    super();
    this.root = root;
  }

  /**
   * A session begins.
   * @param {Layer[]} layers of the model's notes
   * @param {string[]} planned layers that its plan has
   * @param {boolean} canMute
   */
  begin(layers, planned, canMute) {
    const others = planned.filter((name) => layers.every((layer) => layer.name !== name));
    const place = (/** @type {Layer} */ layer) => (layer.is_percussion ? -1 : Math.max(0, ...layer.keys));
    const known = JSON.stringify([this.layers, this.#canMute]);
    this.layers = [
      ...[...layers].sort((one, other) => place(other) - place(one)),
      ...others.map((name) => ({ name, keys: [], rows: [], is_percussion: false })),
    ];
    this.#canMute = canMute;
    // Elements that are there keep the focus.
    if (known !== JSON.stringify([this.layers, canMute])) this.#draw();
    this.#show();
  }

  #draw() {
    this.#buttons.clear();
    this.targets.clear();
    this.root.hidden = !this.layers.length;
    this.#parent.style.setProperty("--lanes", String(this.layers.length));
    this.root.replaceChildren(...this.layers.map((layer) => this.#row(layer)));
  }

  get #parent() {
    return /** @type {HTMLElement} */ (this.root.parentElement);
  }

  /** @param {Layer} layer */
  #row({ name, rows }) {
    const row = element("div", "lane");
    row.append(element("span", "", name));
    if (this.#canMute && rows.length) row.append(...KINDS.map((kind) => this.#button(kind, name)));
    return row;
  }

  /** @param {Kind} kind @param {string} name */
  #button(kind, name) {
    const button = /** @type {HTMLButtonElement} */ (element("button", `toggle ${kind}`, kind[0].toUpperCase()));
    const badge = element("span", "midi-badge");
    const id = `${kind} ${name}`;
    button.type = "button";
    button.title = button.ariaLabel = id[0].toUpperCase() + id.slice(1);
    button.append(badge);
    button.addEventListener("click", () => this.#choose(kind, name, !this.chosen[kind].includes(name)));
    this.#buttons.set(id, { show: (isOn) => (button.ariaPressed = String(isOn)) });
    this.targets.set(id, {
      root: button,
      turn: (position) => this.#choose(kind, name, position >= 0.5),
      showController: (text) => (badge.textContent = text),
    });
    return button;
  }

  /** @param {Kind} kind @param {string} name @param {boolean} isOn */
  #choose(kind, name, isOn) {
    if (this.chosen[kind].includes(name) === isOn) return;
    const others = this.chosen[kind].filter((one) => one !== name);
    this.chosen = { ...this.chosen, [kind]: isOn ? [...others, name] : others };
    this.#show();
    this.dispatchEvent(new CustomEvent("change", { detail: `${kind} ${name}` }));
  }

  /** Show these, without reporting a change. @param {string[]} mute @param {string[]} solo */
  show(mute, solo) {
    this.chosen = { mute, solo };
    this.#show();
  }

  /** The server says which are silent: it is so already, or these are muted. @param {string[]} names */
  follow(names) {
    if (this.silent.join() !== [...names].sort().join()) this.show(names, []);
  }

  #show() {
    const { silent } = this;
    for (const [id, { show }] of this.#buttons) {
      const [kind, name] = /** @type {[Kind, string]} */ (id.split(/ (.*)/));
      show(this.chosen[kind].includes(name));
    }
    this.layers.forEach(({ name }, i) => this.root.children[i]?.classList.toggle("is-silent", silent.includes(name)));
  }

  /** Names of the layers that are to be silent, sorted. */
  get silent() {
    const { mute, solo } = this.chosen;
    const able = this.#canMute ? this.layers.filter(({ rows }) => rows.length).map(({ name }) => name) : [];
    const isAlone = able.some((name) => solo.includes(name));
    return able.filter((name) => mute.includes(name) || (isAlone && !solo.includes(name))).sort();
  }

  /** How much of the screen is above the lanes: the time axis, and where there is a plan its sections. @param {boolean} isPlanned */
  setPlanned(isPlanned) {
    if (this.#numRows === 1 + Number(isPlanned)) return;
    this.#numRows = 1 + Number(isPlanned);
    this.#parent.style.setProperty("--rows", String(this.#numRows));
  }

  /** @param {HTMLCanvasElement} screen @returns {{row: number, top: number, lanes: Lane[]}} */
  on({ height }) {
    const row = ROW_PIXELS * (devicePixelRatio || 1);
    const top = row * this.#numRows;
    const { layers, silent } = this;
    const at = (/** @type {number} */ i) => Math.round(top + ((height - top) * i) / layers.length);
    const lanes = layers.map((layer, i) => ({
      layer,
      top: at(i),
      height: at(i + 1) - at(i),
      isSilent: silent.includes(layer.name),
    }));
    return { row, top, lanes };
  }
}
