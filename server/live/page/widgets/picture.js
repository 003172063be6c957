/** The canvas as a picture: a column per frame of latents, in the colors of the blend. */

const FRESH_MS = 700;

/** @typedef {import("../theme.js").Color} Color */

export class Picture {
  startS = 0;
  endS = 0;
  #width = 0;
  #height = 0;
  /** @type {Uint8Array} */ #data = new Uint8Array();
  /** @type {number[]} */ #seqs = [];
  /** When each column was last made again. @type {number[]} */ #freshAt = [];
  #image = document.createElement("canvas");
  #palette = new Uint8ClampedArray(256 * 3);

  /** @param {import("../connection.js").Message} message @param {boolean} hasSameFrames as the picture before */
  show({ start_s, seconds, width, height, data, seqs }, hasSameFrames) {
    const now = performance.now();
    const isComparable = hasSameFrames && this.#seqs.length === seqs.length;
    this.#freshAt = seqs.map((/** @type {number} */ seq, /** @type {number} */ i) =>
      isComparable && seq > this.#seqs[i] ? now : isComparable ? this.#freshAt[i] : 0,
    );
    this.#seqs = seqs;
    this.startS = start_s;
    this.endS = start_s + seconds;
    this.#width = width;
    this.#height = height;
    this.#data = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    this.#draw();
  }

  /** How many rows it has; 0 before there is one. */
  get rows() {
    return this.#height;
  }

  /** Colors of values from low to high. @param {Color[]} colors */
  setColors(colors) {
    for (let value = 0; value < 256; value++) {
      const place = (value / 256) ** 0.8 * (colors.length - 1);
      const from = colors[Math.floor(place)];
      const to = colors[Math.floor(place) + 1];
      for (let i = 0; i < 3; i++) this.#palette[value * 3 + i] = from[i] + (to[i] - from[i]) * (place % 1);
    }
    this.#draw();
  }

  #draw() {
    const [width, height] = [this.#width, this.#height];
    if (!width) return;
    this.#image.width = width;
    this.#image.height = height;
    const context = /** @type {CanvasRenderingContext2D} */ (this.#image.getContext("2d"));
    const pixels = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      // Low channels are at the bottom, as low notes are in a score.
      const row = height - 1 - Math.floor(i / width);
      const color = this.#data[row * width + (i % width)] * 3;
      pixels.data.set([this.#palette[color], this.#palette[color + 1], this.#palette[color + 2], 255], i * 4);
    }
    context.putImageData(pixels, 0, 0);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} viewStartS
   * @param {number} viewS
   * @param {boolean} hasGlow
   */
  paint(context, viewStartS, viewS, hasGlow) {
    if (!this.#width) return;
    const { width, height } = context.canvas;
    const left = ((this.startS - viewStartS) / viewS) * width;
    const length = ((this.endS - this.startS) / viewS) * width;
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.#image, left, 0, length, height);
    if (hasGlow) this.#paintGlow(context, left, length / this.#freshAt.length);
  }

  /**
   * Columns that were just made again glow.
   * @param {CanvasRenderingContext2D} context
   * @param {number} left
   * @param {number} column
   */
  #paintGlow(context, left, column) {
    const now = performance.now();
    for (let i = 0, end = 0; i < this.#freshAt.length; i = end) {
      end = i + 1;
      while (this.#freshAt[end] === this.#freshAt[i]) end++;
      const share = 1 - (now - this.#freshAt[i]) / FRESH_MS;
      if (!this.#freshAt[i] || share <= 0) continue;
      context.fillStyle = `rgb(255 255 255 / ${(share * share * 0.35).toFixed(3)})`;
      context.fillRect(left + i * column, 0, (end - i) * column, context.canvas.height);
    }
  }
}
