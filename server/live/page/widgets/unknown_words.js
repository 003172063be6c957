/** The words of a prompt that the model does not know: marked in its text, with those that are written like them. */

import { element } from "./element.js";

/** @typedef {{start: number, end: number}} Place */

/** Where words stand in a text, as whole words, in order. @param {string} text @param {string[]} words @returns {(Place & {word: string})[]} */
export function placesOf(text, words) {
  const found = words.flatMap((word) => {
    const pattern = word.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll(/\s+/g, "\\s+");
    const whole = new RegExp(`(?<![\\p{L}\\p{N}])${pattern}(?![\\p{L}\\p{N}])`, "giu");
    return [...text.matchAll(whole)].map(({ index = 0, 0: { length } }) => ({ word, start: index, end: index + length }));
  });
  found.sort((one, other) => one.start - other.start || other.end - one.end);
  return found.filter(({ start }, i) => found.slice(0, i).every((before) => before.end <= start));
}

/** A text field over a copy of its text, in which words are underlined. */
export class UnknownWords {
  #copy = element("div", "marks");
  /** @type {string[]} */ #unknown = [];
  /** @type {Record<string, string[]>} */ #near = {};

  /** What offers words, once it is loaded. @type {Promise<import("./suggestions.js").Suggestions> | null} */ list = null;

  /** @param {HTMLTextAreaElement} input */
  constructor(input) {
    this.input = input;
    this.root = element("div", "text");
    this.#copy.setAttribute("aria-hidden", "true");
    this.root.append(this.#copy, input);
    input.addEventListener("input", () => this.draw());
    input.addEventListener("scroll", () => (this.#copy.scrollTop = input.scrollTop));
    // A bar to scroll takes some of the width.
    new ResizeObserver(() => this.draw()).observe(input);
  }

  /** @param {string[]} unknown @param {Record<string, string[]>} near by word those that the model knows */
  show(unknown, near) {
    this.#unknown = unknown;
    this.#near = near;
    this.draw();
  }

  /** Mark what of the unknown words is in the text now. */
  draw() {
    const { value } = this.input;
    let at = 0;
    this.#copy.replaceChildren();
    for (const { start, end } of placesOf(value, this.#unknown)) {
      this.#copy.append(value.slice(at, start), element("mark", "", value.slice(start, end)));
      at = end;
    }
    this.#copy.append(value.slice(at));
    this.#copy.style.width = `${this.input.clientWidth}px`;
    this.#copy.scrollTop = this.input.scrollTop;
  }

  /** The word at the caret and those that are written like it; null where there are none. */
  get atCaret() {
    const { value, selectionStart: caret } = this.input;
    const place = placesOf(value, Object.keys(this.#near)).find(({ start, end }) => start <= caret && caret <= end);
    return place ? { ...place, words: this.#near[place.word] } : null;
  }

  /** Put another word in the place of one. @param {Place} place @param {string} other */
  replace({ start, end }, other) {
    this.input.setRangeText(other, start, end, "end");
    this.input.dispatchEvent(new CustomEvent("input", { detail: "word" }));
  }
}
