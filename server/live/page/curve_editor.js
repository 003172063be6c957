/** Chooses the control whose curve is drawn over the canvas. */

import { Curve } from "./widgets/curve.js";
import { find } from "./widgets/element.js";

export class CurveEditor {
  #select = /** @type {HTMLSelectElement} */ (find("draw"));

  /**
   * @param {import("./controls.js").ControlPanel} panel
   * @param {import("./widgets/canvas_view.js").CanvasView} canvas
   */
  constructor(panel, canvas) {
    this.panel = panel;
    this.canvas = canvas;
    this.#select.addEventListener("change", () => this.#edit());
    find("clear-curve").addEventListener("click", () => {
      panel.setCurve(this.#select.value, null);
      this.#edit();
    });
  }

  /** Offer the step parameters that take curves, once. */
  offer() {
    if (this.#select.options.length > 1) return;
    const controls = this.panel.controls.filter((control) => control.takesCurve && control.isStep);
    this.#select.append(...controls.map((control) => new Option(control.label, control.id)));
  }

  /** The curve was drawn on. @param {number[]} values */
  drawn(values) {
    this.panel.setCurve(this.#select.value, values);
  }

  #edit() {
    const control = this.panel.controls.find((one) => one.id === this.#select.value);
    const knob = control && this.panel.knobs.get(control.id);
    find("clear-curve").hidden = !knob;
    this.canvas.edit(control && knob ? new Curve(control.min, drawableMax(control, knob.points), knob.points) : null);
  }
}

/**
 * Over the dial's whole range a curve could not be drawn finely: it ends at twice the default, or where the dial does.
 * @param {import("./controls.js").Control} control
 * @param {number[]} points that it has to hold
 */
function drawableMax(control, points) {
  return Math.min(control.max, Math.max(1, 2 * control.default, ...points));
}
