/** The canvas: its picture, the playhead, and the curve that is drawn over it. */

import { Curve } from "./curve.js";
import { Picture } from "./picture.js";

const GLOW_PIXELS = 46;

/** @typedef {{seek: (seconds: number) => void, curve: (values: number[]) => void}} CanvasHandlers */

export class CanvasView {
  /** Length of the view. */ seconds = 10;
  positionS = 0;
  /** Whether the view follows the playhead, which stays in its middle. */ isEndless = false;
  picture = new Picture();
  /** @type {Curve | null} */ #curve = null;
  #describedMs = -Infinity;

  /** @param {HTMLElement} stage @param {import("./band.js").Band} band @param {CanvasHandlers} handlers */
  constructor(stage, band, handlers) {
    this.stage = stage;
    this.band = band;
    this.handlers = handlers;
    this.screen = /** @type {HTMLCanvasElement} */ (stage.querySelector("canvas"));
    this.context = /** @type {CanvasRenderingContext2D} */ (this.screen.getContext("2d"));
    new ResizeObserver(() => this.#resize()).observe(stage);
    this.#resize();
    this.#listen();
  }

  #resize() {
    const ratio = devicePixelRatio || 1;
    this.screen.width = Math.max(1, Math.round(this.stage.clientWidth * ratio));
    this.screen.height = Math.max(1, Math.round(this.stage.clientHeight * ratio));
  }

  #listen() {
    const { stage } = this;
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      this.#curve?.lift();
      this.#touch(event);
    });
    stage.addEventListener("pointermove", (event) => {
      if (stage.hasPointerCapture(event.pointerId) && this.#curve) this.#touch(event);
    });
    stage.addEventListener("keydown", (event) => {
      if (this.#curve ? this.#keyCurve(event, this.#curve) : this.#keySeek(event)) event.preventDefault();
    });
  }

  /** @param {PointerEvent} event */
  #touch(event) {
    const box = this.stage.getBoundingClientRect();
    const x = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    if (!this.#curve) return this.#seek(this.viewStartS + x * this.seconds);
    this.#curve.drawTo(x, (event.clientY - box.top) / box.height);
    this.handlers.curve(this.#curve.values);
  }

  /** @param {KeyboardEvent} event @param {Curve} curve */
  #keyCurve(event, curve) {
    const isOurs = curve.press(event.key);
    if (isOurs && ["ArrowUp", "ArrowDown"].includes(event.key)) this.handlers.curve(curve.values);
    return isOurs;
  }

  /** @param {KeyboardEvent} event */
  #keySeek(event) {
    const targets = /** @type {Record<string, number>} */ ({
      ArrowLeft: this.positionS - 0.5,
      ArrowRight: this.positionS + 0.5,
      PageUp: this.positionS - 2,
      PageDown: this.positionS + 2,
      Home: 0,
      End: Infinity,
    });
    if (event.key in targets) this.#seek(targets[event.key]);
    return event.key in targets;
  }

  /** @param {number} target seconds; moved into what is there to play */
  #seek(target) {
    const { start, end } = this.playable;
    this.handlers.seek(Number(Math.min(end - 0.1, Math.max(start, target)).toFixed(3)));
  }

  /** What is there to play, in seconds. */
  get playable() {
    if (this.isEndless) return { start: this.picture.startS, end: this.picture.endS };
    return { start: this.band.start * this.seconds, end: this.band.end * this.seconds };
  }

  /** The position at the left edge. */
  get viewStartS() {
    return this.isEndless ? this.positionS - this.seconds / 2 : 0;
  }

  /** Draw a curve from now on, or (null) seek. @param {Curve | null} curve */
  edit(curve) {
    this.#curve = curve;
    this.stage.classList.toggle("is-drawing", curve !== null);
  }

  /** @param {import("../connection.js").Message} message */
  show(message) {
    this.picture.show(message, !this.isEndless);
  }

  /**
   * Draw one frame.
   * @param {{ink: string, shade: string}} colors
   * @param {boolean} isStill nothing moves but the playhead
   */
  paint(colors, isStill) {
    const { context } = this;
    const { width, height } = this.screen;
    context.clearRect(0, 0, width, height);
    this.picture.paint(context, this.viewStartS, this.seconds, !isStill);
    if (!this.isEndless) {
      context.fillStyle = colors.shade;
      context.fillRect(0, 0, this.band.start * width, height);
      context.fillRect(this.band.end * width, 0, width, height);
    }
    this.#curve?.paint(context, colors.ink);
    this.#paintPlayhead(colors.ink);
    this.#describe();
  }

  /** @param {string} color */
  #paintPlayhead(color) {
    const { context } = this;
    const { width, height } = this.screen;
    const ratio = devicePixelRatio || 1;
    const x = ((this.positionS - this.viewStartS) / this.seconds) * width;
    const glow = context.createLinearGradient(x - GLOW_PIXELS * ratio, 0, x, 0);
    glow.addColorStop(0, "rgb(255 255 255 / 0)");
    glow.addColorStop(1, "rgb(255 255 255 / 0.22)");
    context.fillStyle = glow;
    context.fillRect(x - GLOW_PIXELS * ratio, 0, GLOW_PIXELS * ratio, height);
    context.fillStyle = color;
    context.fillRect(x - ratio, 0, 2 * ratio, height);
  }

  /** The position for screen readers, once a second. */
  #describe() {
    const now = performance.now();
    if (now - this.#describedMs < 1000) return;
    this.#describedMs = now;
    const end = this.isEndless ? this.picture.endS : this.seconds;
    this.stage.setAttribute("aria-valuenow", this.positionS.toFixed(1));
    this.stage.setAttribute("aria-valuemax", end.toFixed(1));
    this.stage.setAttribute("aria-valuetext", `${this.positionS.toFixed(1)} of ${end.toFixed(1)} seconds`);
  }
}
