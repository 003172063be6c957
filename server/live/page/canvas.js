/** The canvas: a picture of the latents with the playhead, the loop band, and curves that are drawn by hand. */

const CURVE_POINTS = 64;
const FRESH_MS = 700;

/** @typedef {import("./pad.js").Color} Color */

/**
 * @typedef {{seek: (seconds: number) => void, band: () => void,
 *   curve: (values: number[]) => void}} CanvasHandlers
 */

export class CanvasView {
  /** Length of the view. */ seconds = 10;
  positionS = 0;
  /** Whether the view follows the playhead, which stays in its middle. */ isEndless = false;
  #startS = 0;
  #endS = 10;
  bandStart = 0;
  bandEnd = 1;
  /** @type {{min: number, max: number, points: number[]} | null} */ #curve = null;
  /** @type {{width: number, height: number, data: Uint8Array} | null} */ #picture = null;
  /** @type {number[]} */ #seqs = [];
  /** @type {number[]} */ #freshAt = [];
  #image = document.createElement("canvas");
  /** @type {Uint8ClampedArray} */ #palette = new Uint8ClampedArray(256 * 3);
  #lastPoint = -1;
  #describedMs = -Infinity;

  /** @param {HTMLElement} stage @param {HTMLElement} band @param {CanvasHandlers} handlers */
  constructor(stage, band, handlers) {
    this.stage = stage;
    this.band = band;
    this.handlers = handlers;
    this.screen = /** @type {HTMLCanvasElement} */ (stage.querySelector("canvas"));
    this.context = /** @type {CanvasRenderingContext2D} */ (this.screen.getContext("2d"));
    this.handles = /** @type {HTMLElement[]} */ ([...band.querySelectorAll(".handle")]);
    this.region = /** @type {HTMLElement} */ (band.querySelector(".region"));
    new ResizeObserver(() => this.#resize()).observe(stage);
    this.#listenToStage();
    this.#listenToBand();
    this.#resize();
  }

  #resize() {
    const ratio = devicePixelRatio || 1;
    this.screen.width = Math.max(1, Math.round(this.stage.clientWidth * ratio));
    this.screen.height = Math.max(1, Math.round(this.stage.clientHeight * ratio));
  }

  // The stage: seek by click or arrow keys, or draw the curve.

  #listenToStage() {
    const { stage } = this;
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      this.#lastPoint = -1;
      this.#touch(event);
    });
    stage.addEventListener("pointermove", (event) => {
      if (stage.hasPointerCapture(event.pointerId) && this.#curve) this.#touch(event);
    });
    stage.addEventListener("keydown", (event) => {
      if (this.#curve ? this.#keyCurve(event) : this.#keySeek(event)) event.preventDefault();
    });
  }

  /** @param {PointerEvent} event */
  #touch(event) {
    const box = this.stage.getBoundingClientRect();
    const x = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const y = Math.min(1, Math.max(0, (event.clientY - box.top) / box.height));
    if (this.#curve) this.#drawTo(Math.min(CURVE_POINTS - 1, Math.floor(x * CURVE_POINTS)), 1 - y);
    else this.#seek(this.viewStartS + x * this.seconds);
  }

  /** @param {KeyboardEvent} event */
  #keySeek(event) {
    const steps = /** @type {Record<string, number>} */ ({ ArrowLeft: -0.5, ArrowRight: 0.5, PageUp: -2, PageDown: 2 });
    const target =
      event.key === "Home" ? 0 : event.key === "End" ? Infinity : this.positionS + (steps[event.key] ?? NaN);
    if (Number.isNaN(target)) return false;
    this.#seek(target);
    return true;
  }

  /** @param {number} target seconds; moved into what is there to play */
  #seek(target) {
    const start = this.isEndless ? this.#startS : this.bandStart * this.seconds;
    const end = this.isEndless ? this.#endS : this.bandEnd * this.seconds;
    this.handlers.seek(Number(Math.min(end - 0.1, Math.max(start, target)).toFixed(3)));
  }

  /** The position at the left edge. */
  get viewStartS() {
    return this.isEndless ? this.positionS - this.seconds / 2 : 0;
  }

  /** @param {KeyboardEvent} event */
  #keyCurve(event) {
    const index = Math.max(0, this.#lastPoint);
    const sideways = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[event.key];
    const upwards = /** @type {Record<string, number>} */ ({ ArrowUp: 0.05, ArrowDown: -0.05 })[event.key];
    if (sideways) this.#lastPoint = Math.min(CURVE_POINTS - 1, Math.max(0, index + sideways));
    else if (upwards && this.#curve) {
      this.#lastPoint = index;
      const { min, max, points } = this.#curve;
      this.#drawTo(index, (points[index] - min) / (max - min) + upwards);
    } else return false;
    return true;
  }

  /** Set the curve's point, and those that a fast hand passed over. @param {number} index @param {number} level 0 to 1 */
  #drawTo(index, level) {
    const curve = this.#curve;
    if (!curve) return;
    const value = curve.min + (curve.max - curve.min) * Math.min(1, Math.max(0, level));
    const from = this.#lastPoint < 0 ? index : this.#lastPoint;
    const start = curve.points[from];
    for (let i = from; i !== index; i += Math.sign(index - from)) {
      curve.points[i] = start + ((value - start) * (i - from)) / (index - from);
    }
    curve.points[index] = value;
    this.#lastPoint = index;
    this.handlers.curve(curve.points.map((point) => Number(point.toFixed(3))));
  }

  /** Draw a curve from now on, or (null) seek. @param {{min: number, max: number, value: number, points: number[] | null} | null} curve */
  edit(curve) {
    this.#curve = curve && {
      min: curve.min,
      max: curve.max,
      points: Array.from({ length: CURVE_POINTS }, (_, i) => resampled(curve.points ?? [curve.value], i)),
    };
    this.stage.classList.toggle("is-drawing", curve !== null);
  }

  // The loop band.

  #listenToBand() {
    const drag = (/** @type {HTMLElement} */ node, /** @type {(share: number) => void} */ move) => {
      node.addEventListener("pointerdown", (event) => {
        node.setPointerCapture(event.pointerId);
        node.focus();
        event.preventDefault();
      });
      node.addEventListener("pointermove", (event) => {
        if (!node.hasPointerCapture(event.pointerId)) return;
        const box = this.band.getBoundingClientRect();
        move((event.clientX - box.left) / box.width);
      });
    };
    this.handles.forEach((handle, i) => {
      drag(handle, (share) => this.#setEdge(i, share));
      handle.addEventListener("keydown", (event) => {
        const step = (event.shiftKey ? 0.04 : 0.2) / this.seconds;
        const edge = i ? this.bandEnd : this.bandStart;
        const targets = /** @type {Record<string, number>} */ ({
          ArrowLeft: edge - step,
          ArrowDown: edge - step,
          ArrowRight: edge + step,
          ArrowUp: edge + step,
          Home: 0,
          End: 1,
        });
        if (!(event.key in targets)) return;
        event.preventDefault();
        this.#setEdge(i, targets[event.key]);
      });
    });
    let grip = 0;
    this.region.addEventListener("pointerdown", (event) => {
      grip = (event.clientX - this.band.getBoundingClientRect().left) / this.band.clientWidth - this.bandStart;
    });
    drag(this.region, (share) => {
      const width = this.bandEnd - this.bandStart;
      const start = Math.min(1 - width, Math.max(0, share - grip));
      this.#setBand(start, start + width);
    });
    this.region.addEventListener("dblclick", () => this.#setBand(0, 1));
  }

  /** @param {number} edge 0 start, 1 end @param {number} share */
  #setEdge(edge, share) {
    const least = Math.min(0.5, 0.4 / this.seconds);
    if (edge) this.#setBand(this.bandStart, Math.max(this.bandStart + least, Math.min(1, share)));
    else this.#setBand(Math.min(this.bandEnd - least, Math.max(0, share)), this.bandEnd);
  }

  /** @param {number} start @param {number} end */
  #setBand(start, end) {
    this.showBand(start, end);
    this.handlers.band();
  }

  /** Show a band without reporting a change, as shares of the canvas. @param {number} start @param {number} end */
  showBand(start, end) {
    this.bandStart = start;
    this.bandEnd = end;
    this.region.style.left = `${start * 100}%`;
    this.region.style.right = `${(1 - end) * 100}%`;
    [start, end].forEach((edge, i) => {
      const handle = this.handles[i];
      handle.style.left = `${edge * 100}%`;
      handle.setAttribute("aria-valuemax", this.seconds.toFixed(1));
      handle.setAttribute("aria-valuenow", (edge * this.seconds).toFixed(2));
      handle.setAttribute("aria-valuetext", `${(edge * this.seconds).toFixed(2)} s`);
    });
  }

  // The picture.

  /** @param {import("./connection.js").Message} message */
  show({ start_s, seconds, width, height, data, seqs }) {
    this.#startS = start_s;
    this.#endS = start_s + seconds;
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const now = performance.now();
    const isFirst = this.isEndless || this.#seqs.length !== seqs.length;
    this.#freshAt = seqs.map((/** @type {number} */ seq, /** @type {number} */ i) =>
      !isFirst && seq > this.#seqs[i] ? now : (this.#freshAt[i] ?? 0),
    );
    this.#seqs = seqs;
    this.#picture = { width, height, data: bytes };
    this.#paintImage();
  }

  /** Colors of values from low to high. @param {Color[]} colors */
  setColors(colors) {
    for (let value = 0; value < 256; value++) {
      const place = (value / 256) ** 0.8 * (colors.length - 1);
      const from = colors[Math.floor(place)];
      const to = colors[Math.floor(place) + 1];
      for (let i = 0; i < 3; i++) this.#palette[value * 3 + i] = from[i] + (to[i] - from[i]) * (place % 1);
    }
    this.#paintImage();
  }

  #paintImage() {
    if (!this.#picture?.width) return;
    const { width, height, data } = this.#picture;
    this.#image.width = width;
    this.#image.height = height;
    const context = /** @type {CanvasRenderingContext2D} */ (this.#image.getContext("2d"));
    const pixels = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      // Low channels are at the bottom, as low notes are in a score.
      const row = height - 1 - Math.floor(i / width);
      const color = data[row * width + (i % width)] * 3;
      pixels.data.set([this.#palette[color], this.#palette[color + 1], this.#palette[color + 2], 255], i * 4);
    }
    context.putImageData(pixels, 0, 0);
  }

  /** Draw one frame. @param {{playhead: string, shade: string, curve: string}} colors @param {boolean} isStill no motion but the playhead */
  paint(colors, isStill) {
    const { context } = this;
    const { width, height } = this.screen;
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    const scale = width / this.seconds;
    if (this.#picture?.width) {
      const left = (this.#startS - this.viewStartS) * scale;
      context.drawImage(this.#image, left, 0, (this.#endS - this.#startS) * scale, height);
    }
    if (!isStill) this.#paintFresh(width, height);
    context.fillStyle = colors.shade;
    if (!this.isEndless) {
      context.fillRect(0, 0, this.bandStart * width, height);
      context.fillRect(this.bandEnd * width, 0, width, height);
    }
    this.#paintCurve(colors, width, height);
    this.#paintPlayhead(colors, width, height);
    this.#describe();
  }

  /** The position for screen readers, once a second. */
  #describe() {
    const now = performance.now();
    if (now - this.#describedMs < 1000) return;
    this.#describedMs = now;
    const end = this.isEndless ? this.#endS : this.seconds;
    this.stage.setAttribute("aria-valuenow", this.positionS.toFixed(1));
    this.stage.setAttribute("aria-valuemax", end.toFixed(1));
    this.stage.setAttribute("aria-valuetext", `${this.positionS.toFixed(1)} of ${end.toFixed(1)} seconds`);
  }

  /** Frames that were just made again glow. @param {number} width @param {number} height */
  #paintFresh(width, height) {
    const now = performance.now();
    const count = this.#freshAt.length;
    for (let i = 0; i < count; ) {
      const at = this.#freshAt[i];
      let end = i + 1;
      while (end < count && this.#freshAt[end] === at) end++;
      const left = 1 - (now - at) / FRESH_MS;
      if (at && left > 0) {
        this.context.fillStyle = `rgb(255 255 255 / ${(left * left * 0.35).toFixed(3)})`;
        this.context.fillRect((i / count) * width, 0, ((end - i) / count) * width, height);
      }
      i = end;
    }
  }

  /** @param {{curve: string}} colors @param {number} width @param {number} height */
  #paintCurve(colors, width, height) {
    const curve = this.#curve;
    if (!curve) return;
    const ratio = devicePixelRatio || 1;
    const y = (/** @type {number} */ value) => height * (1 - (0.04 + (0.92 * (value - curve.min)) / (curve.max - curve.min)));
    const { context } = this;
    context.beginPath();
    curve.points.forEach((point, i) => context.lineTo(((i + 0.5) / CURVE_POINTS) * width, y(point)));
    context.lineJoin = "round";
    context.lineWidth = 6 * ratio;
    context.strokeStyle = "rgb(0 0 0 / 0.5)";
    context.stroke();
    context.lineWidth = 2.5 * ratio;
    context.strokeStyle = colors.curve;
    context.stroke();
    if (this.#lastPoint < 0) return;
    context.beginPath();
    context.arc(((this.#lastPoint + 0.5) / CURVE_POINTS) * width, y(curve.points[this.#lastPoint]), 5 * ratio, 0, 7);
    context.fillStyle = colors.curve;
    context.fill();
  }

  /** @param {{playhead: string}} colors @param {number} width @param {number} height */
  #paintPlayhead(colors, width, height) {
    const ratio = devicePixelRatio || 1;
    const x = ((this.positionS - this.viewStartS) / this.seconds) * width;
    const { context } = this;
    const glow = context.createLinearGradient(x - 46 * ratio, 0, x, 0);
    glow.addColorStop(0, "rgb(255 255 255 / 0)");
    glow.addColorStop(1, "rgb(255 255 255 / 0.22)");
    context.fillStyle = glow;
    context.fillRect(x - 46 * ratio, 0, 46 * ratio, height);
    context.fillStyle = colors.playhead;
    context.fillRect(x - ratio, 0, 2 * ratio, height);
  }
}

/** Point `i` of CURVE_POINTS on a list of another length. @param {number[]} points @param {number} i */
function resampled(points, i) {
  return points[Math.min(points.length - 1, Math.floor((i / CURVE_POINTS) * points.length))];
}
