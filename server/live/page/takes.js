/** Seeds that were kept, to be recalled. */

import { find } from "./widgets/element.js";

export class Takes {
  /** @type {number[]} */ #seeds = [];
  #select = /** @type {HTMLSelectElement} */ (find("takes"));

  /** @param {(seed: number) => void} recall */
  constructor(recall) {
    this.#select.addEventListener("change", () => this.#select.value && recall(Number(this.#select.value)));
  }

  get seeds() {
    return [...this.#seeds];
  }

  set seeds(seeds) {
    this.#seeds = [...seeds];
  }

  /** @param {number | null} seed */
  keep(seed) {
    if (seed !== null && !this.#seeds.includes(seed)) this.#seeds.push(seed);
    this.show(seed);
  }

  /** Offer the takes; the one with this seed is chosen. @param {number | null} seed */
  show(seed) {
    this.#select.hidden = !this.#seeds.length;
    const options = this.#seeds.map((one, i) => new Option(`Take ${i + 1} · ${one}`, String(one)));
    this.#select.replaceChildren(new Option("Takes", ""), ...options);
    this.#select.value = seed !== null && this.#seeds.includes(seed) ? String(seed) : "";
  }
}
