/** The plan of a session in mode extend: a row of its sections, and an editor for one that is not heard yet. */

import { element, field, find } from "./widgets/element.js";
import { LayerButtons } from "./widgets/layer_buttons.js";
import { barsText, PlanView } from "./widgets/plan_view.js";

/**
 * @typedef {import("./widgets/plan_view.js").Section} Section
 * @typedef {import("./widgets/plan_view.js").SectionText} SectionText
 * @typedef {import("./widgets/plan_view.js").Choices} Choices
 */

const LEAST_S = 0.1;

/** @param {string} id @param {(string | number)[]} values @param {string | number} chosen */
function offer(id, values, chosen) {
  const all = values.includes(chosen) ? values : [...values, chosen];
  find(id).replaceChildren(...all.map((value) => new Option(String(value), String(value), false, value === chosen)));
}

export class Plan {
  view = new PlanView();
  /** As the server told of them last. @type {Section[]} */ #told = [];
  /** Their elements, by index. @type {Map<number, HTMLLIElement>} */ #items = new Map();
  /** Index of the section in the editor. @type {number | null} */ #edited = null;
  /** How many of the sections have begun to play. */ #begun = 0;
  #positionS = 0;
  /** Of the edit whose plan is awaited; 0: none. */ #seq = 0;
  /** Where the newest edit begins: a plan that ends there is not complete yet. */ #editedS = -Infinity;

  /** @param {import("./connection.js").Connection} connection */
  constructor(connection) {
    this.connection = connection;
    this.codes = new LayerButtons(find("section-codes"), (written) => this.#sendCodes(written));
    find("plan").addEventListener("change", () => connection.restart());
    find("section").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send([this.#written()]);
    });
    find("section-insert").addEventListener("click", () => this.#send([this.#written(), this.#whole(this.#section)]));
    find("section-delete").addEventListener("click", () => {
      this.#send([]);
      this.#close();
    });
    find("section-close").addEventListener("click", () => this.#close());
    find("section").addEventListener("keydown", (event) => event.key === "Escape" && this.#close());
  }

  /** Whether new sessions have a plan. */
  get isWanted() {
    return field("plan").checked;
  }

  set isWanted(isWanted) {
    field("plan").checked = isWanted;
  }

  /** A session begins, or goes on. @param {Choices | null} choices null: without a plan @param {boolean} isEndless */
  begin(choices, isEndless) {
    this.view.choices = choices;
    this.codes.begin(choices);
    find("plan-field").hidden = !isEndless || (choices === null && this.isWanted);
    find("plan-header").textContent = "";
    this.#editedS = -Infinity;
    this.#show([]);
  }

  /** @param {import("./connection.js").Message} message */
  show({ header, sections }) {
    const { genre, bpm, key, mode, meter } = header;
    const texts = [genre, bpm && `${bpm} bpm`, [key?.toUpperCase(), mode].filter(Boolean).join(" "), meter];
    find("plan-header").textContent = texts.filter(Boolean).join(" · ");
    if (sections.length && sections.at(-1).end_s < this.#editedS + LEAST_S) return;
    this.#told = sections;
    this.#show(sections);
    if (this.#seq) find("section-note").textContent = "planned";
    this.#seq = 0;
  }

  /** The playhead is there. @param {number} positionS */
  follow(positionS) {
    this.#positionS = positionS;
    if (this.#countBegun() !== this.#begun) this.#mark();
  }

  /** The server refused a message: where it was an edit, all is as it was. @param {number | null} seq */
  refused(seq) {
    if (!this.#seq || seq !== this.#seq) return;
    this.#seq = 0;
    this.#editedS = -Infinity;
    find("section-note").textContent = "";
    this.#show(this.#told);
    if (this.#edited !== null) this.#fill();
  }

  #countBegun() {
    return this.view.sections.filter((section) => section.start_s <= this.#positionS).length;
  }

  /** @param {Section[]} sections */
  #show(sections) {
    this.view.sections = sections;
    const indices = new Set(sections.map((section) => section.index));
    for (const [index, item] of this.#items) {
      if (indices.has(index)) continue;
      item.remove();
      this.#items.delete(index);
    }
    const row = find("sections");
    row.hidden = !sections.length;
    sections.forEach((section, i) => {
      const item = this.#item(section);
      // An element that is in its place keeps the focus.
      if (row.children[i] !== item) row.insertBefore(item, row.children[i]);
    });
    this.#mark();
    if (this.#edited !== null) this.codes.show(this.#section);
  }

  /** @param {Section} section */
  #item(section) {
    const item = this.#items.get(section.index) ?? this.#newItem(section.index);
    const texts = [section.kind, barsText(section.bars), section.layers.join(", ")];
    item.style.flexGrow = String(section.bars);
    [...item.querySelectorAll("b, i, small")].forEach((part, i) => (part.textContent = texts[i]));
    return item;
  }

  /** @param {number} index */
  #newItem(index) {
    const item = /** @type {HTMLLIElement} */ (element("li"));
    const button = /** @type {HTMLButtonElement} */ (element("button"));
    button.type = "button";
    button.setAttribute("aria-controls", "section");
    button.addEventListener("click", () => (this.#edited === index ? this.#close() : this.#open(index)));
    button.append(element("b"), " ", element("i"), " ", element("small"));
    item.append(button);
    this.#items.set(index, item);
    return item;
  }

  /** @param {number | null} index */
  #button(index) {
    return index === null ? null : (this.#items.get(index)?.querySelector("button") ?? null);
  }

  /** Show which section plays; those that have begun cannot be edited. */
  #mark() {
    this.#begun = this.#countBegun();
    this.view.sections.forEach(({ index }, i) => {
      const button = /** @type {HTMLButtonElement} */ (this.#button(index));
      button.disabled = i < this.#begun;
      button.ariaCurrent = i === this.#begun - 1 ? "true" : "false";
      button.ariaExpanded = String(index === this.#edited);
    });
    if (this.#edited !== null && (this.#button(this.#edited)?.disabled ?? true)) this.#close();
  }

  // The editor.

  get #section() {
    return /** @type {Section} */ (this.view.sections.find((section) => section.index === this.#edited));
  }

  /** Open the editor of a section that is not heard yet. @param {Section} section @param {string} [layer] where to begin */
  edit({ index }, layer = "") {
    if (this.#button(index)?.disabled ?? true) return;
    this.#open(index);
    const box = find("section-layers").querySelector(`input[value="${CSS.escape(layer)}"]`);
    if (box instanceof HTMLElement) box.focus();
  }

  /** @param {number} index */
  #open(index) {
    this.#edited = index;
    this.#fill();
    find("section-note").textContent = "";
    find("section").hidden = false;
    this.#mark();
    field("section-kind").focus();
    find("section").scrollIntoView({ block: "nearest" });
  }

  #close() {
    const button = this.#button(this.#edited);
    const hasFocus = find("section").contains(document.activeElement);
    this.#edited = null;
    find("section").hidden = true;
    if (button) button.ariaExpanded = "false";
    if (hasFocus) (button && !button.disabled ? button : find("stage")).focus();
  }

  #fill() {
    const { choices } = this.view;
    if (!choices) return;
    const { index, kind, layers, bars } = this.#section;
    find("section-name").textContent = `Section ${index + 1}`;
    offer("section-kind", choices.kinds, kind);
    offer("section-bars", choices.bars, bars);
    find("section-layers").replaceChildren(
      ...choices.layers.map((name) => {
        const [label, input] = [element("label"), /** @type {HTMLInputElement} */ (element("input"))];
        Object.assign(input, { type: "checkbox", name: "layer", value: name, checked: layers.includes(name) });
        label.append(input, element("span", "", name));
        return label;
      }),
    );
    this.codes.show(this.#section);
  }

  /** What the editor says. @returns {SectionText} */
  #written() {
    const checked = /** @type {NodeListOf<HTMLInputElement>} */ (find("section-layers").querySelectorAll(":checked"));
    return {
      kind: field("section-kind").value,
      layers: [...checked].map((input) => input.value),
      bars: Number(field("section-bars").value),
    };
  }

  /**
   * A section to be planned again: of the least length that it can have, if another one has cut it.
   * @param {Section} section
   * @returns {SectionText}
   */
  #whole({ kind, layers, bars }) {
    return { kind, layers, bars: this.view.choices?.bars.find((count) => count >= bars) ?? bars };
  }

  /** The edited section with other codes, shown at once. @param {import("./widgets/layer_buttons.js").Written} written */
  #sendCodes({ layers, codes }) {
    const edited = this.#section;
    this.#send([this.#whole({ ...edited, layers })], codes);
    this.#show(this.view.sections.map((section) => (section === edited ? { ...edited, layers, codes } : section)));
    for (const box of find("section-layers").querySelectorAll("input")) box.checked = layers.includes(box.value);
  }

  /**
   * Sections in place of the edited one; those after it stay.
   * @param {SectionText[]} instead
   * @param {number[]} [codes] of the first of them
   */
  #send(instead, codes) {
    const { index, start_s } = this.#section;
    const later = this.view.sections.filter((section) => section.index > index).map((section) => this.#whole(section));
    this.#seq = this.connection.change("set_plan", { start_s, sections: [...instead, ...later], ...(codes && { codes }) });
    this.#editedS = start_s;
    find("section-note").textContent = "sent";
  }
}
