/** A curve of a control, drawn by hand or keyboard over the canvas. */

const NUM_POINTS = 64;
/** Free height above and below, as a share. */
const MARGIN = 0.04;

/** `points` lie between `min` and `max`. */
export class Curve {
  /** The point that was set last; -1: none. */ last = -1;

  /** @param {number} min @param {number} max @param {number[]} points of any number */
  constructor(min, max, points) {
    this.min = min;
    this.max = max;
    this.points = Array.from({ length: NUM_POINTS }, (_, i) => points[Math.floor((i / NUM_POINTS) * points.length)]);
  }

  /** Values as they are sent. */
  get values() {
    return this.points.map((point) => Number(point.toFixed(3)));
  }

  /** Draw to a place, 0 to 1; points that were passed over are set, too. @param {number} x @param {number} y */
  drawTo(x, y) {
    const level = (1 - y - MARGIN) / (1 - 2 * MARGIN);
    this.#set(Math.min(NUM_POINTS - 1, Math.floor(x * NUM_POINTS)), level);
  }

  /** The pointer has been lifted: the next place is not joined to the last. */
  lift() {
    this.last = -1;
  }

  /** Arrow keys choose a point and move it; whether the key is one of them. @param {string} key */
  press(key) {
    const index = Math.max(0, this.last);
    const sideways = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[key];
    const upwards = /** @type {Record<string, number>} */ ({ ArrowUp: 0.05, ArrowDown: -0.05 })[key];
    if (sideways) this.last = Math.min(NUM_POINTS - 1, Math.max(0, index + sideways));
    else if (upwards) {
      this.last = index;
      this.#set(index, (this.points[index] - this.min) / (this.max - this.min) + upwards);
    }
    return Boolean(sideways || upwards);
  }

  /** @param {number} index @param {number} level */
  #set(index, level) {
    const value = this.min + (this.max - this.min) * Math.min(1, Math.max(0, level));
    const from = this.last < 0 ? index : this.last;
    const start = this.points[from];
    for (let i = from; i !== index; i += Math.sign(index - from)) {
      this.points[i] = start + ((value - start) * (i - from)) / (index - from);
    }
    this.points[index] = value;
    this.last = index;
  }

  /** @param {CanvasRenderingContext2D} context @param {string} color */
  paint(context, color) {
    const { width, height } = context.canvas;
    const ratio = devicePixelRatio || 1;
    const x = (/** @type {number} */ i) => ((i + 0.5) / NUM_POINTS) * width;
    const y = (/** @type {number} */ value) =>
      height * (1 - MARGIN - ((1 - 2 * MARGIN) * (value - this.min)) / (this.max - this.min));
    context.beginPath();
    this.points.forEach((point, i) => context.lineTo(x(i), y(point)));
    context.lineJoin = "round";
    for (const [thickness, style] of /** @type {[number, string][]} */ ([
      [6, "rgb(0 0 0 / 0.5)"],
      [2.5, color],
    ])) {
      context.lineWidth = thickness * ratio;
      context.strokeStyle = style;
      context.stroke();
    }
    if (this.last < 0) return;
    context.beginPath();
    context.arc(x(this.last), y(this.points[this.last]), 5 * ratio, 0, 7);
    context.fillStyle = color;
    context.fill();
  }
}
