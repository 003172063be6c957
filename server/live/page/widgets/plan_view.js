/** The plan over the canvas: where its sections begin, what they are, and the codes of their layers. */

/**
 * @typedef {{kind: string, layers: string[], bars: number}} SectionText
 * @typedef {SectionText & {index: number, start_s: number, end_s: number, codes: number[] | null, first_bar?: number, isAsked?: boolean}} Section
 *   first_bar: from 0 on; undefined: it follows the one before
 *   isAsked: the server has not told of it yet
 * @typedef {{kinds: string[], layers: string[], bars: number[], group_size: number, silent: number[]}} Choices
 */

/** @param {number} bars */
export const barsText = (bars) => (bars === 1 ? "1 bar" : `${bars} bars`);

const HEARD_ALPHA = 0.5;
const FONT = "system-ui, sans-serif";

export class PlanView {
  /** @type {Section[]} */ sections = [];
  /** What sections can have; null: this session has no plan. @type {Choices | null} */ choices = null;
  /** A pixel per code and layer, by section. @type {WeakMap<Section, HTMLCanvasElement>} */ #grids = new WeakMap();
  #gridColor = "";

  get isShown() {
    return this.sections.length > 0;
  }

  /** The section at a position on the canvas. @param {number} positionS */
  at(positionS) {
    return this.sections.find((one) => one.start_s <= positionS && positionS < one.end_s);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {{startS: number, seconds: number, positionS: number, madeS: number}} view madeS: where the picture ends
   * @param {{row: number, top: number, lanes: import("./lanes.js").Lane[]}} places
   * @param {{ink: string, shade: string, wave: string}} colors
   */
  paint(context, view, places, colors) {
    if (colors.wave !== this.#gridColor) this.#grids = new WeakMap();
    this.#gridColor = colors.wave;
    const { width, height } = context.canvas;
    const place = (/** @type {number} */ seconds) => Math.round(((seconds - view.startS) / view.seconds) * width);
    for (const section of this.sections) {
      const [left, right] = [place(section.start_s), place(section.end_s)];
      if (right < 0 || left > width) continue;
      context.save();
      context.beginPath();
      context.rect(left, places.row, right - left, height);
      context.clip();
      this.#paintLanes(context, section, [left, right], place(view.madeS), places.lanes, colors.wave);
      context.globalAlpha = section.end_s <= view.positionS ? HEARD_ALPHA : 1;
      this.#paintHead(context, section, left, right - left, places, colors);
      context.restore();
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Section} section
   * @param {number} left
   * @param {number} width
   * @param {{row: number, top: number}} places
   * @param {{ink: string, shade: string}} colors
   */
  #paintHead(context, section, left, width, { row, top }, { ink, shade }) {
    const ratio = devicePixelRatio || 1;
    context.fillStyle = shade;
    context.fillRect(left, row, width, top - row);
    context.fillStyle = ink;
    context.fillRect(left, row, ratio, context.canvas.height);
    context.font = `600 ${12 * ratio}px ${FONT}`;
    const start = Math.max(left, 0) + 6 * ratio;
    const text = `${section.kind} · ${barsText(section.bars)}`;
    const hasRoom = start + context.measureText(text).width < left + width;
    context.fillText(hasRoom ? text : section.kind, start, top - 6 * ratio);
  }

  /**
   * Lanes of a section's layers are tinted; what is not made yet has its codes there.
   * @param {CanvasRenderingContext2D} context
   * @param {Section} section
   * @param {[number, number]} ends
   * @param {number} made
   * @param {import("./lanes.js").Lane[]} lanes
   * @param {string} color
   */
  #paintLanes(context, section, [left, right], made, lanes, color) {
    const { choices } = this;
    const begin = Math.max(left, made);
    context.fillStyle = color;
    context.imageSmoothingEnabled = false;
    for (const { layer, top, height } of lanes) {
      if (!section.layers.includes(layer.name)) continue;
      context.globalAlpha = 0.14;
      context.fillRect(left, top, right - left, height);
      const row = choices?.group_size ? choices.layers.indexOf(layer.name) : -1;
      if (!section.codes?.length || row < 0 || begin >= right) continue;
      context.globalAlpha = 1;
      const { codes } = section;
      const first = ((begin - left) / (right - left)) * codes.length;
      const grid = this.#grid(section, codes, color);
      context.drawImage(grid, first, row, codes.length - first, 1, begin, top + height / 5, right - begin, (height * 3) / 5);
    }
  }

  /**
   * Equal groups of digits have equal pixels.
   * @param {Section} section
   * @param {number[]} codes
   * @param {string} color
   */
  #grid(section, codes, color) {
    const known = this.#grids.get(section);
    if (known) return known;
    const [image, size] = [document.createElement("canvas"), this.choices?.group_size ?? 1];
    [image.width, image.height] = [codes.length, this.choices?.layers.length ?? 0];
    const context = /** @type {CanvasRenderingContext2D} */ (image.getContext("2d"));
    context.fillStyle = color;
    this.choices?.layers.forEach((name, row) => {
      if (!section.layers.includes(name)) return;
      codes.forEach((code, x) => {
        context.globalAlpha = 0.3 + (0.7 * (Math.floor(code / size ** row) % size)) / size;
        context.fillRect(x, row, 1, 1);
      });
    });
    this.#grids.set(section, image);
    return image;
  }
}
