/** Buttons of a section whose codes are written: each silences a layer and keeps the others as they are, or restores it. */

import { element } from "./element.js";

/**
 * @typedef {import("./plan_view.js").Section} Section
 * @typedef {import("./plan_view.js").Choices} Choices
 * @typedef {{layers: string[], codes: number[]}} Written
 */

export class LayerButtons {
  /** Sections as they are with all their layers, by index. @type {Map<number, Written>} */ #written = new Map();
  /** @type {Choices | null} */ #choices = null;

  /** @param {HTMLElement} group @param {(written: Written) => void} change */
  constructor(group, change) {
    this.group = group;
    this.change = change;
  }

  /** A session begins. @param {Choices | null} choices */
  begin(choices) {
    this.#choices = choices;
    this.#written.clear();
  }

  /** @param {Section} section */
  show(section) {
    const whole = this.#whole(section);
    this.group.parentElement?.toggleAttribute("hidden", whole === null);
    const names = whole?.layers ?? [];
    const buttons = /** @type {HTMLButtonElement[]} */ ([...this.group.children]);
    if (buttons.map((button) => button.textContent).join() !== names.join()) {
      this.group.replaceChildren(...names.map((name) => this.#newButton(name)));
    }
    for (const button of /** @type {HTMLCollectionOf<HTMLButtonElement>} */ (this.group.children)) {
      const isOn = section.layers.includes(button.textContent ?? "");
      button.ariaPressed = String(isOn);
      // A section has one layer at least; an element that is not disabled keeps the focus.
      button.ariaDisabled = String(isOn && section.layers.length === 1);
      button.onclick = () => button.ariaDisabled === "false" && whole && this.#toggle(section, whole, button.textContent ?? "");
    }
  }

  /** @param {string} name */
  #newButton(name) {
    const button = /** @type {HTMLButtonElement} */ (element("button", "", name));
    button.type = "button";
    return button;
  }

  /** The section with what was silenced; null where its codes are not written. @param {Section} section */
  #whole({ index, layers, codes }) {
    if (!codes?.length || !this.#choices?.silent.length) return null;
    const known = this.#written.get(index);
    if (!known || known.codes.length !== codes.length) return { layers, codes };
    const digits = (/** @type {number} */ code) => this.#digits(code);
    const isSame = codes.every((code, place) => {
      const written = digits(known.codes[place]);
      return digits(code).every((digit, row) => digit === written[row] || digit === this.#choices?.silent[row]);
    });
    return isSame ? known : { layers, codes };
  }

  /** @param {number} code */
  #digits(code) {
    const size = this.#choices?.group_size ?? 1;
    return this.#choices?.layers.map((_, row) => Math.floor(code / size ** row) % size) ?? [];
  }

  /** @param {Section} section @param {Written} whole @param {string} name */
  #toggle({ index, layers }, whole, name) {
    if (!this.#choices) return;
    const { layers: rows, silent, group_size: size } = this.#choices;
    const isOn = (/** @type {string} */ layer) => layers.includes(layer) !== (layer === name);
    const codes = whole.codes.map((code) =>
      this.#digits(code).reduce((sum, digit, row) => {
        const isSilenced = whole.layers.includes(rows[row]) && !isOn(rows[row]);
        return sum + (isSilenced ? silent[row] : digit) * size ** row;
      }, 0),
    );
    this.#written.set(index, whole);
    this.change({ layers: whole.layers.filter(isOn), codes });
  }
}
