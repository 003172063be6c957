/** The canvas as a picture: a column per frame of latents, in the colors of the blend. */

const FRESH_MS = 700;

/** @typedef {import("../theme.js").Color} Color */

export class Picture {
  startS = 0;
  endS = 0;
  #width = 0;
  #height = 0;
  /** Rows of each lane from top to bottom, 0 is the lowest channel; null: all rows are one picture. @type {number[][] | null} */
  #lanes = null;
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

  /** Draw only the rows of lanes. @param {number[][]} lanes rows from low to high, by lane; none has some: all rows */
  setLanes(lanes) {
    this.#lanes = lanes.some((rows) => rows.length) ? lanes.map((rows) => [...rows].reverse()) : null;
    this.#draw();
  }

  /** From top to bottom: low channels are at the bottom, as low notes are in a score. */
  get #rows() {
    return this.#lanes?.flat() ?? Array.from({ length: this.#height }, (_, i) => this.#height - 1 - i);
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
    const [width, rows] = [this.#width, this.#rows];
    if (!width || Math.max(...rows) >= this.#height) return;
    const height = rows.length;
    this.#image.width = width;
    this.#image.height = height;
    const context = /** @type {CanvasRenderingContext2D} */ (this.#image.getContext("2d"));
    const pixels = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const color = this.#data[rows[Math.floor(i / width)] * width + (i % width)] * 3;
      pixels.data.set([this.#palette[color], this.#palette[color + 1], this.#palette[color + 2], 255], i * 4);
    }
    context.putImageData(pixels, 0, 0);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} viewStartS
   * @param {number} viewS
   * @param {number} top
   * @param {import("./lanes.js").Lane[]} lanes
   * @param {boolean} hasGlow
   */
  paint(context, viewStartS, viewS, top, lanes, hasGlow) {
    if (!this.#width) return;
    const { width, height } = context.canvas;
    const left = ((this.startS - viewStartS) / viewS) * width;
    const length = ((this.endS - this.startS) / viewS) * width;
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    if (this.#lanes) {
      context.imageSmoothingEnabled = false;
      let row = 0;
      for (const { layer, top, height, isSilent } of lanes) {
        const count = layer.rows.length;
        context.globalAlpha = isSilent ? 0.25 : 1;
        if (count) context.drawImage(this.#image, 0, row, this.#width, count, left, top, length, height);
        row += count;
      }
      context.globalAlpha = 1;
    } else context.drawImage(this.#image, left, top, length, height - top);
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
