/**
 * Words of the model for a prompt: those that begin as what is typed, and those that are written like one that the
 * model does not know.
 */

import { element } from "./element.js";

const MOST = 6;
const LEAST_LETTERS = 2;
/** A phrase of the vocabulary has at most so many words. */
const PHRASE_WORDS = 3;

/**
 * Words that begin as the end of a text, and how many letters of it they replace; the shortest first.
 * @param {string} text
 * @param {readonly string[]} vocabulary
 */
export function completions(text, vocabulary) {
  const part = /[^,;.]*$/.exec(text)?.[0].trimStart().toLowerCase() ?? "";
  const words = part.split(/\s+/);
  for (let count = Math.min(PHRASE_WORDS, words.length); count > 0; count--) {
    const begun = words.slice(-count).join(" ");
    if (begun.length < LEAST_LETTERS || !begun.trim()) continue;
    const found = vocabulary.filter((word) => word.toLowerCase().startsWith(begun) && word.toLowerCase() !== begun);
    if (found.length) return { letters: begun.length, words: found.sort((a, b) => a.length - b.length).slice(0, MOST) };
  }
  return { letters: 0, words: [] };
}

/** A list below a text field. Arrows choose, Enter or Tab takes, Escape closes; Alt and an arrow, or a click, opens it at a marked word. */
export class Suggestions {
  #list = /** @type {HTMLUListElement} */ (element("ul", "suggestions"));
  /** What a word is put in the place of. @type {import("./unknown_words.js").Place} */ #place = { start: 0, end: 0 };
  #chosen = -1;

  /** @param {import("./unknown_words.js").UnknownWords} unknown @param {() => readonly string[]} vocabulary */
  constructor(unknown, vocabulary) {
    const { input } = unknown;
    this.unknown = unknown;
    this.input = input;
    this.vocabulary = vocabulary;
    this.#list.id = `${input.id}-suggestions`;
    this.#list.setAttribute("role", "listbox");
    this.#list.hidden = true;
    input.setAttribute("aria-autocomplete", "list");
    input.setAttribute("aria-controls", this.#list.id);
    input.after(this.#list);
    input.addEventListener("input", (event) => event.isTrusted && this.offer());
    input.addEventListener("blur", () => this.#close());
    input.addEventListener("keydown", (event) => this.#key(event));
    // The field keeps the focus.
    this.#list.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const item = event.target instanceof Element ? event.target.closest("li") : null;
      if (item) this.#take(item.textContent ?? "");
    });
  }

  get #before() {
    return this.input.value.slice(0, this.input.selectionStart);
  }

  /** Offer what could follow, where something could. */
  offer() {
    const { letters, words } = completions(this.#before, this.vocabulary());
    const end = this.input.selectionStart;
    this.#show("Words of the model", words, { start: end - letters, end });
  }

  /** Offer what is written like the word at the caret, where the model does not know that. */
  offerNear() {
    const near = this.unknown.atCaret;
    if (near) this.#show(`Words like ${near.word}`, near.words, near);
    else this.#close();
  }

  /** @param {string} label @param {readonly string[]} words @param {import("./unknown_words.js").Place} place */
  #show(label, words, place) {
    this.#place = place;
    this.#list.setAttribute("aria-label", label);
    const items = words.map((word, i) => {
      const item = element("li", "", word);
      item.id = `${this.#list.id}-${i}`;
      item.setAttribute("role", "option");
      return item;
    });
    this.#list.replaceChildren(...items);
    this.#list.hidden = !items.length;
    this.#choose(-1);
  }

  /** @param {number} place */
  #choose(place) {
    const items = [...this.#list.children];
    this.#chosen = place;
    items.forEach((item, i) => (item.ariaSelected = String(i === place)));
    if (items[place]) this.input.setAttribute("aria-activedescendant", items[place].id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  #close() {
    this.#list.hidden = true;
    this.#choose(-1);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey && event.key === "ArrowDown") {
      event.preventDefault();
      this.offerNear();
      if (!this.#list.hidden) this.#choose(0);
    }
    if (this.#list.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const items = [...this.#list.children];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => this.#choose((this.#chosen + 1) % items.length),
      ArrowUp: () => this.#choose((Math.max(this.#chosen, 0) + items.length - 1) % items.length),
      Escape: () => this.#close(),
    };
    if (this.#chosen >= 0) keys.Enter = keys.Tab = () => this.#take(items[this.#chosen].textContent ?? "");
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }

  /** @param {string} word */
  #take(word) {
    this.#close();
    this.unknown.replace(this.#place, word);
  }
}
