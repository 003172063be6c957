/** Prompts and the pad that blends them: A to D are its corners, E to H the middles of its edges. */

import { blendColor } from "../theme.js";
import { element } from "./element.js";
import { placesOf, UnknownWords } from "./unknown_words.js";

/** @typedef {import("../theme.js").Color} Color */
/**
 * @typedef {object} PromptWords
 * @property {string} text
 * @property {string[]} unknown
 * @property {Record<string, string[]>} near by unknown word those that are written most like it
 * @property {string} plays what of it is played
 * @property {Record<string, string[]>} meaning the same by kind
 */

const LETTERS = ["A", "B", "C", "D", "E", "F", "G", "H"];
/** Where each is alone. @type {[number, number][]} */
const ANCHORS = [[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0], [0.5, 1], [0, 0.5], [1, 0.5]];
const CORNERS = 4;
export const MOST_PROMPTS = ANCHORS.length;
/** A weight below this share is 0: each prompt with a weight costs a row of the batch. */
const LEAST_WEIGHT = 0.02;
/** The puck's centre stays this far from the edges: corners are easy to reach. */
const INSET_PIXELS = 20;
/** Nearer than this is at the same place. */
const NEAR = 1e-4;

/**
 * Weights of the first `count` prompts at a place of the pad; they sum to 1. Of four they are bilinear.
 * @param {number} x @param {number} y @param {number} [count]
 */
export function padWeights(x, y, count = CORNERS) {
  const raw = ANCHORS.slice(0, count).map(([left, top]) => {
    // Two lie side by side: the height says nothing.
    const [across, down] = [Math.abs(x - left), count > 2 ? Math.abs(y - top) : 0];
    if (count > CORNERS) return 1 / (across ** 2 + down ** 2 + NEAR);
    return (1 - across) * (1 - down) + (count < CORNERS ? NEAR : 0);
  });
  const sum = raw.reduce((all, weight) => all + weight, 0);
  return raw.map((weight) => weight / sum);
}

/** Where on the pad a share of its width or height is. @param {number} share */
function place(share) {
  return `calc(${INSET_PIXELS * (1 - 2 * share)}px + ${share * 100}%)`;
}

/** Reports `move` when the weights change, `text` while a prompt is typed. */
export class PromptPad extends EventTarget {
  x = 0;
  y = 0;
  /** What every prompt that is sent gets. */ words = "";
  /** Words that the model knows, where that is a closed list. @type {readonly string[]} */ vocabulary = [];

  /** @type {HTMLTextAreaElement[]} */ inputs = [];
  /** @type {HTMLElement[]} */ #shares = [];
  /** What of a prompt is played, and what the model does not understand. @type {HTMLElement[]} */ #notes = [];
  /** @type {UnknownWords[]} */ #unknown = [];
  /** What is known of the prompts, as told last. @type {PromptWords[]} */ #told = [];
  /** @type {HTMLElement[]} */ #anchors = [];
  /** @type {Color[]} */ #colors = [];

  /** @param {HTMLElement} pad prompts are put before and behind it */
  constructor(pad) {
    super();
    this.root = pad;
    this.puck = /** @type {HTMLElement} */ (pad.querySelector(".puck"));
    this.surface = /** @type {HTMLCanvasElement} */ (pad.querySelector("canvas"));
    pad.addEventListener("pointerdown", (event) => {
      pad.setPointerCapture(event.pointerId);
      this.puck.focus();
      this.#follow(event);
      event.preventDefault();
    });
    pad.addEventListener("pointermove", (event) => {
      if (pad.hasPointerCapture(event.pointerId)) this.#follow(event);
    });
    this.puck.addEventListener("keydown", (event) => this.#key(event));
    this.show(0, 0, ["", "", "", ""]);
  }

  get count() {
    return this.inputs.length;
  }

  /** Have so many prompts, 1 to `MOST_PROMPTS`; the last ones come and go. @param {number} count */
  setCount(count) {
    while (this.count > count) {
      this.inputs.pop()?.closest(".prompt")?.remove();
      this.#anchors.pop()?.remove();
      this.#shares.pop();
      this.#notes.pop();
      this.#unknown.pop();
    }
    while (this.count < count) this.#add(this.count);
    if (this.#colors.length) this.paint(this.#colors);
    this.#place(this.x, this.y);
  }

  /** @param {number} i */
  #add(i) {
    const id = LETTERS[i].toLowerCase();
    const prompt = element("div", `prompt prompt-${id}`);
    const label = /** @type {HTMLLabelElement} */ (element("label", "", LETTERS[i]));
    const input = /** @type {HTMLTextAreaElement} */ (element("textarea"));
    const [share, note, anchor] = [element("span", "share"), element("span", "words"), element("i", "anchor", LETTERS[i])];
    label.htmlFor = `prompt-${id}`;
    Object.assign(input, { id: `prompt-${id}`, rows: 2, maxLength: 2000, spellcheck: false });
    input.setAttribute("aria-describedby", `words-${id}`);
    note.id = `words-${id}`;
    input.addEventListener("input", (event) => {
      this.#note(this.inputs.indexOf(input));
      this.dispatchEvent(new CustomEvent("text", { detail: /** @type {UIEvent} */ (event).detail }));
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault();
    });
    [anchor.style.left, anchor.style.top] = ANCHORS[i].map(place);
    anchor.setAttribute("aria-hidden", "true");
    this.root.append(anchor);
    const unknown = new UnknownWords(input);
    prompt.append(unknown.root, label, share, note);
    this.#unknown.push(unknown);
    input.addEventListener("focus", async () => {
      const before = input.value;
      const list = await this.#suggestions(unknown);
      if (input.value !== before) list?.offer();
    });
    input.addEventListener("click", async () => (await this.#suggestions(unknown))?.offerNear());
    // The first two are above the pad, all others below it, in their order.
    if (i < 2) this.root.before(prompt);
    else (i === 2 ? this.root : this.inputs[i - 1].closest(".prompt"))?.after(prompt);
    this.inputs.push(input);
    this.#shares.push(share);
    this.#notes.push(note);
    this.#anchors.push(anchor);
  }

  /** The list of words below a prompt, once it can be loaded. @param {UnknownWords} unknown */
  async #suggestions(unknown) {
    const load = async () => new (await import("./suggestions.js")).Suggestions(unknown, () => this.vocabulary);
    unknown.list ??= load();
    try {
      return await unknown.list;
    } catch {
      unknown.list = null; // Without a server there is nothing to offer.
      return null;
    }
  }

  /** @param {PointerEvent} event */
  #follow(event) {
    const box = this.root.getBoundingClientRect();
    const share = (/** @type {number} */ offset, /** @type {number} */ length) =>
      (offset - INSET_PIXELS) / (length - 2 * INSET_PIXELS);
    this.move(share(event.clientX - box.left, box.width), share(event.clientY - box.top, box.height));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const step = event.shiftKey ? 0.01 : 0.05;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -step],
      ArrowDown: [0, step],
      PageUp: [0, -0.25],
      PageDown: [0, 0.25],
      Home: [-1, -1],
      End: [1, 1],
    });
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.move(this.x + move[0], this.y + move[1]);
  }

  /** Move the puck; 0, 0 is prompt A, 1, 1 is prompt D. @param {number} x @param {number} y */
  move(x, y) {
    this.#place(x, y);
    this.dispatchEvent(new Event("move"));
  }

  /** @param {number} x @param {number} y */
  #place(x, y) {
    this.x = Math.min(1, Math.max(0, x));
    this.y = Math.min(1, Math.max(0, y));
    this.puck.style.left = place(this.x);
    this.puck.style.top = place(this.y);
    const percents = this.weights().map((weight) => Math.round(weight * 100));
    const text = percents
      .map((percent, i) => (percent ? `${LETTERS[i]} ${percent} %` : ""))
      .filter(Boolean)
      .join(", ");
    this.puck.setAttribute("aria-valuenow", String(Math.round(this.x * 100)));
    this.puck.setAttribute("aria-valuetext", text);
    this.#shares.forEach((share, i) => (share.textContent = `${percents[i]} %`));
    this.inputs.forEach((input, i) => input.closest(".prompt")?.classList.toggle("is-off", percents[i] < 2));
  }

  /** Weights of all prompts; they sum to 1. */
  weights() {
    return padWeights(this.x, this.y, this.count);
  }

  /** Paint every place of the pad with the color of its blend. @param {Color[]} corners */
  paint(corners) {
    this.#colors = corners;
    const used = corners.slice(0, this.count);
    const context = /** @type {CanvasRenderingContext2D} */ (this.surface.getContext("2d"));
    const { width, height } = this.surface;
    const pixels = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const weights = padWeights((i % width) / (width - 1), Math.floor(i / width) / (height - 1), this.count);
      pixels.data.set([...blendColor(used, weights), 255], 4 * i);
    }
    context.putImageData(pixels, 0, 0);
  }

  get texts() {
    return this.inputs.map((input) => input.value.trim());
  }

  /** A prompt as it is sent. @param {string} text */
  #sent(text) {
    return text && this.words ? `${text}, ${this.words}` : text;
  }

  /** Which prompts are heard, in words. */
  get sharesText() {
    const shares = this.items().map(({ weight }) => weight);
    const letters = LETTERS.filter((_, i) => this.texts[i]);
    const heard = letters.flatMap((letter, i) => (shares[i] ? [[letter, `${Math.round(shares[i] * 100)} %`]] : []));
    return heard.length === 1 ? `only ${heard[0][0]}` : heard.map((one) => one.join(" ")).join(", ");
  }

  /** What is known of the prompts that are heard, the strongest first. */
  get heard() {
    const weights = this.weights();
    const texts = this.texts.map((text, i) => ({ text: this.#sent(text), weight: text ? weights[i] : -1 }));
    const heard = texts.filter(({ weight }) => weight >= LEAST_WEIGHT).sort((one, other) => other.weight - one.weight);
    return heard.flatMap(({ text }) => this.#told.find((one) => one.text === text) ?? []);
  }

  /** Show beside each prompt what of it is played, and what is not understood. @param {PromptWords[]} words */
  showWords(words) {
    this.#told = words;
    this.texts.forEach((text, i) => {
      const found = words.find((one) => one.text === this.#sent(text));
      if (!found) return;
      this.#unknown[i].show(found.unknown, found.near);
      const unknown = found.unknown.length ? [[`not understood: ${found.unknown.join(", ")}`]] : [];
      const near = Object.entries(found.near).map(([word, others]) => [
        `${word}:`,
        ...others.flatMap((other) => [" ", this.#nearWord(i, word, other)]),
      ]);
      const parts = [...unknown, ...near, ...(found.plays ? [[found.plays]] : [])];
      this.#note(i, ...parts.flatMap((part, k) => (k ? [" · ", ...part] : part)));
    });
  }

  /** @param {number} i @param {(string | HTMLElement)[]} parts */
  #note(i, ...parts) {
    this.#notes[i].replaceChildren(...parts);
    this.#notes[i].title = this.#notes[i].textContent ?? "";
  }

  /** A button that puts another word in the place of one. @param {number} i @param {string} word @param {string} other */
  #nearWord(i, word, other) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${other}?`;
    button.title = `${other} instead of ${word}`;
    button.addEventListener("click", () => {
      const [place] = placesOf(this.inputs[i].value, [word]);
      if (place) this.#unknown[i].replace(place, other);
    });
    return button;
  }

  /** Prompts as the protocol takes them. */
  items() {
    const weights = this.weights();
    const used = weights.map((weight) => (weight < LEAST_WEIGHT ? 0 : Number(weight.toFixed(3))));
    const items = this.texts.map((text, i) => ({ text: this.#sent(text), weight: used[i] })).filter((item) => item.text);
    return items.length || !this.words ? items : [{ text: this.words, weight: 1 }];
  }

  /**
   * Show the prompts that another client has set, in the places of those that were sent, and their shares. The puck stays:
   * their weights may have no place on the pad.
   * @param {{text: string, weight: number}[]} prompts
   */
  follow(prompts) {
    if (prompts.length > this.count) this.setCount(Math.min(prompts.length, MOST_PROMPTS));
    const places = this.inputs.map((_, i) => i).filter((i) => this.texts[i]);
    const free = this.inputs.map((_, i) => i).filter((i) => !this.texts[i]);
    const sum = prompts.reduce((all, prompt) => all + prompt.weight, 0) || 1;
    for (const [k, place] of [...places, ...free].entries()) {
      const text = prompts[k]?.text ?? "";
      const end = `, ${this.words}`;
      this.inputs[place].value = this.words && text.endsWith(end) ? text.slice(0, -end.length) : text;
      this.#unknown[place].draw();
      const percent = Math.round((100 * (prompts[k]?.weight ?? 0)) / sum);
      this.#shares[place].textContent = `${percent} %`;
      this.inputs[place].closest(".prompt")?.classList.toggle("is-off", percent < 2);
    }
  }

  /**
   * Show prompts and weights without reporting a change.
   * @param {number} x
   * @param {number} y
   * @param {string[]} texts
   */
  show(x, y, texts) {
    this.setCount(texts.length);
    this.inputs.forEach((input, i) => {
      if (input.value === (texts[i] ?? "")) return;
      input.value = texts[i] ?? "";
      this.#unknown[i].draw();
      this.#note(i);
    });
    this.#place(x, y);
  }
}
