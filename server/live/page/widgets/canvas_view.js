/** The canvas: its picture, the plan and the playhead, and the curve that is drawn over it. */

import { paintPitches, paintTime } from "./axes.js";
import { Bars } from "./bars.js";
import { Curve } from "./curve.js";
import { paintNotes } from "./note_view.js";
import { Picture } from "./picture.js";

const GLOW_PIXELS = 46;
/** With a plan the view is so many times as long, most of it ahead of the playhead. */
const PLANNED_VIEW = 3;

/**
 * @typedef {{seek: (seconds: number) => void, curve: (values: number[]) => void,
 *   section: (section: import("./plan_view.js").Section, layer: string | undefined) => void}} CanvasHandlers
 */

export class CanvasView {
  /** Length of the canvas. */ seconds = 10;
  positionS = 0;
  /** What repeats, where the server has told. @type {[number, number] | null} */ loop = null;
  /** Whether the view follows the playhead, which stays in its place. */ isEndless = false;
  picture = new Picture();
  bars = new Bars();
  /** @type {import("../midi/placed_notes.js").PlacedNote[]} */ notes = [];
  /** @type {Curve | null} */ #curve = null;
  #describedMs = -Infinity;
  /** How much of the canvas can loop. */ #loopS = 10;
  /** The bars that loop where none are asked for; 0: not known. */ usualBars = 0;
  /** Its bars, as they are asked for. @type {number | undefined} */ #asked = undefined;

  /**
   * @param {HTMLElement} stage
   * @param {import("./band.js").Band} band
   * @param {import("./plan_view.js").PlanView} plan
   * @param {import("./lanes.js").Lanes} lanes
   * @param {CanvasHandlers} handlers
   */
  constructor(stage, band, plan, lanes, handlers) {
    this.stage = stage;
    this.band = band;
    this.plan = plan;
    this.lanes = lanes;
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
    stage.addEventListener("click", (event) => {
      const { section, layer } = this.#planned(event);
      if (section && !this.#curve) this.handlers.section(section, layer);
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
    if (!this.#curve) return this.#planned(event).section || this.#seek(this.viewStartS + x * this.viewS);
    this.#curve.drawTo(x, (event.clientY - box.top) / box.height);
    this.handlers.curve(this.#curve.values);
  }

  /**
   * The section that a place is of, and the layer: its name, or what of it is not made yet and cannot be played from.
   * @param {MouseEvent} event
   */
  #planned(event) {
    const box = this.stage.getBoundingClientRect();
    const y = (event.clientY - box.top) * (this.screen.height / box.height);
    const { row, top, lanes } = this.lanes.on(this.screen);
    const atS = this.viewStartS + ((event.clientX - box.left) / box.width) * this.viewS;
    const isPlan = this.#isPlanned && y >= row && (y < top || atS >= this.picture.endS);
    const lane = lanes.find((one) => y >= one.top && y < one.top + one.height);
    return { section: isPlan ? this.plan.at(atS) : undefined, layer: lane?.layer.name };
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
    if (this.loop) return { start: this.loop[0], end: this.loop[1] };
    return { start: this.band.start * this.seconds, end: this.band.end * this.seconds };
  }

  get #isPlanned() {
    return this.isEndless && this.plan.isShown;
  }

  /** What can loop is in view: bars, else all of the canvas. @param {number | undefined} asked bars; undefined: those that are usual */
  setBars(asked) {
    this.#asked = asked;
    const barS = this.bars.beat?.barS ?? 0;
    const told = this.loop && this.band.isWhole ? this.loop[1] : 0;
    if (asked === undefined && told) this.usualBars = barS ? Math.round(told / barS) : 0;
    const whole = this.#curve ? this.seconds : told || (asked ?? this.usualBars) * barS;
    this.#loopS = this.isEndless || whole <= 0 ? this.seconds : Math.min(whole, this.seconds);
    this.band.setView(this.#loopS, this.bars.beat);
  }

  /** Length of the view. */
  get viewS() {
    if (!this.isEndless) return this.#loopS;
    return this.seconds * (this.#isPlanned ? PLANNED_VIEW : 1);
  }

  /** The position at the left edge. */
  get viewStartS() {
    return this.isEndless ? this.positionS - this.seconds / (this.#isPlanned ? 1 : 2) : 0;
  }

  /** Draw a curve from now on, or (null) seek. @param {Curve | null} curve */
  edit(curve) {
    this.#curve = curve;
    this.setBars(this.#asked); // A curve is of the whole canvas.
    this.stage.classList.toggle("is-drawing", curve !== null);
  }

  /** @param {import("../connection.js").Message} message */
  show(message) {
    this.picture.show(message, !this.isEndless);
  }

  /**
   * Draw one frame.
   * @param {{ink: string, shade: string, wave: string}} colors
   * @param {boolean} isStill nothing moves but the playhead
   */
  paint(colors, isStill) {
    const { context } = this;
    const { width, height } = this.screen;
    context.clearRect(0, 0, width, height);
    const view = { startS: this.viewStartS, seconds: this.viewS, positionS: this.positionS, madeS: this.picture.endS };
    this.lanes.setPlanned(this.#isPlanned);
    const places = this.lanes.on(this.screen);
    this.picture.paint(context, view.startS, view.seconds, places.top, places.lanes, !isStill);
    paintNotes(context, view, this.notes, places.lanes, colors.ink);
    if (this.#isPlanned) this.plan.paint(context, view, places, colors);
    paintPitches(context, places.lanes, colors);
    const endS = view.startS + view.seconds;
    paintTime(context, view, this.bars.between(view.startS - 10, endS, this.plan.sections), places.row, colors);
    if (!this.isEndless) {
      context.fillStyle = colors.shade;
      const { start, end } = this.playable;
      context.fillRect(0, 0, (start / this.viewS) * width, height);
      context.fillRect((end / this.viewS) * width, 0, width, height);
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
    const x = ((this.positionS - this.viewStartS) / this.viewS) * width;
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
    const end = this.isEndless ? this.picture.endS : this.viewS;
    this.stage.setAttribute("aria-valuenow", this.positionS.toFixed(1));
    this.stage.setAttribute("aria-valuemax", end.toFixed(1));
    const section = this.plan.at(this.positionS);
    const bar = this.bars.between(0, this.positionS + 0.01, this.plan.sections).at(-1);
    const texts = [`${this.positionS.toFixed(1)} of ${end.toFixed(1)} seconds`, bar && `bar ${bar.number}`, section?.kind];
    this.stage.setAttribute("aria-valuetext", texts.filter(Boolean).join(", "));
  }
}
