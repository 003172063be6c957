/** Prompts A to D and the pad that blends them: each prompt is a corner, the weights are bilinear. */

const LETTERS = ["A", "B", "C", "D"];
/** A weight below this share is left out: each prompt in use costs a row of the batch. */
const LEAST_WEIGHT = 0.02;
/** The puck's centre stays this far from the edges: corners are easy to reach. */
const INSET_PIXELS = 20;

/** @typedef {[number, number, number]} Color */

/**
 * The color of a blend: the mean, sharpened towards the strongest corner, as vivid as the corners are.
 * @param {Color[]} corners @param {number[]} weights @returns {Color}
 */
export function blendColor(corners, weights) {
  const powers = weights.map((weight) => weight ** 1.6);
  const sum = powers.reduce((total, power) => total + power, 0);
  const mean = (/** @type {(color: Color) => number} */ of) =>
    corners.reduce((total, corner, i) => total + of(corner) * powers[i], 0) / sum;
  const color = [0, 1, 2].map((i) => mean((corner) => corner[i]));
  const gray = (color[0] + color[1] + color[2]) / 3;
  const chroma = (/** @type {number[]} */ of) => Math.max(...of) - Math.min(...of);
  const gain = Math.min(1.7, (0.85 * mean(chroma)) / Math.max(1, chroma(color)));
  const vivid = color.map((value) => Math.round(Math.min(255, Math.max(0, gray + (value - gray) * Math.max(1, gain)))));
  return /** @type {Color} */ (vivid);
}

/** Weights of A to D at a place of the pad; they sum to 1. @param {number} x @param {number} y */
export function padWeights(x, y) {
  return [(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y];
}

export class PromptPad extends EventTarget {
  x = 0;
  y = 0;

  /** @param {HTMLElement} pad @param {HTMLTextAreaElement[]} inputs @param {HTMLElement[]} shares */
  constructor(pad, inputs, shares) {
    super();
    this.pad = pad;
    this.inputs = inputs;
    this.shares = shares;
    this.puck = /** @type {HTMLElement} */ (pad.querySelector(".puck"));
    this.surface = /** @type {HTMLCanvasElement} */ (pad.querySelector("canvas"));
    for (const input of inputs) {
      input.addEventListener("input", () => this.#changed("text"));
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter") event.preventDefault();
      });
    }
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

  /** @param {PointerEvent} event */
  #follow(event) {
    const box = this.pad.getBoundingClientRect();
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
    this.#changed("move");
  }

  /** @param {number} x @param {number} y */
  #place(x, y) {
    this.x = Math.min(1, Math.max(0, x));
    this.y = Math.min(1, Math.max(0, y));
    const place = (/** @type {number} */ share) => `calc(${INSET_PIXELS * (1 - 2 * share)}px + ${share * 100}%)`;
    this.puck.style.left = place(this.x);
    this.puck.style.top = place(this.y);
    const percents = this.weights().map((weight) => Math.round(weight * 100));
    const text = percents.map((percent, i) => (percent ? `${LETTERS[i]} ${percent} %` : "")).filter(Boolean).join(", ");
    this.puck.setAttribute("aria-valuenow", String(Math.round(this.x * 100)));
    this.puck.setAttribute("aria-valuetext", text);
    this.shares.forEach((share, i) => (share.textContent = `${percents[i]} %`));
    this.inputs.forEach((input, i) => input.closest(".prompt")?.classList.toggle("is-off", percents[i] < 2));
  }

  /** @param {string} cause */
  #changed(cause) {
    this.dispatchEvent(new CustomEvent("change", { detail: cause }));
  }

  /** Weights of A to D; they sum to 1. */
  weights() {
    return padWeights(this.x, this.y);
  }

  /** Paint every place of the pad with the color of its blend. @param {Color[]} corners */
  paint(corners) {
    const context = /** @type {CanvasRenderingContext2D} */ (this.surface.getContext("2d"));
    const { width, height } = this.surface;
    const pixels = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const weights = padWeights((i % width) / (width - 1), Math.floor(i / width) / (height - 1));
      pixels.data.set([...blendColor(corners, weights), 255], 4 * i);
    }
    context.putImageData(pixels, 0, 0);
  }

  get texts() {
    return this.inputs.map((input) => input.value.trim());
  }

  /** Prompts as the protocol takes them. */
  items() {
    const weights = this.weights();
    const items = this.texts.map((text, i) => ({ text, weight: Number(weights[i].toFixed(3)) }));
    return items.filter((item) => item.text && item.weight >= LEAST_WEIGHT);
  }

  /** Show prompts and weights without reporting a change. @param {number} x @param {number} y @param {string[]} texts */
  show(x, y, texts) {
    this.inputs.forEach((input, i) => (input.value = texts[i] ?? ""));
    this.#place(x, y);
  }
}
