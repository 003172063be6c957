/** The plan over the canvas: where its sections begin, what they are, and the codes of their layers. */

/**
 * @typedef {{kind: string, layers: string[], bars: number}} SectionText
 * @typedef {SectionText & {index: number, start_s: number, end_s: number, codes: number[] | null}} Section
 * @typedef {{kinds: string[], layers: string[], bars: number[], group_size: number, silent: number[]}} Choices
 */

/** @param {number} bars */
export const barsText = (bars) => (bars === 1 ? "1 bar" : `${bars} bars`);

const HEARD_ALPHA = 0.4;
const FONT = "system-ui, sans-serif";
/** Below this height there is no room for the names of layers. */ const LOW_STAGE = 200;

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
   * @param {{startS: number, seconds: number, positionS: number}} view
   * @param {{ink: string, shade: string, wave: string}} colors
   */
  paint(context, view, colors) {
    if (colors.wave !== this.#gridColor) this.#grids = new WeakMap();
    this.#gridColor = colors.wave;
    const { width, height } = context.canvas;
    const place = (/** @type {number} */ seconds) => Math.round(((seconds - view.startS) / view.seconds) * width);
    for (const section of this.sections) {
      const [left, right] = [place(section.start_s), place(section.end_s)];
      if (right < 0 || left > width) continue;
      context.save();
      context.beginPath();
      context.rect(left, 0, right - left, height);
      context.clip();
      context.globalAlpha = section.end_s <= view.positionS ? HEARD_ALPHA : 1;
      this.#paintSection(context, section, left, right - left, colors);
      context.restore();
    }
    if (this.#sizes(context).hasNames) this.#paintNames(context, colors);
  }

  /** Sizes in pixels of the screen. @param {CanvasRenderingContext2D} context */
  #sizes({ canvas }) {
    const ratio = devicePixelRatio || 1;
    const hasNames = canvas.height >= LOW_STAGE * ratio;
    const row = Math.round((hasNames ? 11 : 6) * ratio);
    return { ratio, hasNames, row, top: canvas.height - row * this.#rows.length };
  }

  /** Layers that have a row of codes. */
  get #rows() {
    return this.choices?.group_size ? this.choices.layers : [];
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Section} section
   * @param {number} left
   * @param {number} width
   * @param {{ink: string, shade: string, wave: string}} colors
   */
  #paintSection(context, section, left, width, { ink, shade, wave }) {
    const { ratio, hasNames, row, top } = this.#sizes(context);
    const x = Math.max(left, 0) + 8 * ratio;
    context.fillStyle = shade;
    context.fillRect(left, 0, width, (hasNames ? 38 : 22) * ratio);
    context.fillRect(left, top, width, row * this.#rows.length);
    context.fillStyle = ink;
    context.fillRect(left, 0, ratio, context.canvas.height);
    context.font = `600 ${12 * ratio}px ${FONT}`;
    context.fillText(`${section.kind} · ${barsText(section.bars)}`, x, 15 * ratio);
    context.font = `${11 * ratio}px ${FONT}`;
    if (hasNames) context.fillText(section.layers.join(", "), x, 31 * ratio);
    if (!section.codes?.length || !this.#rows.length) return;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#grid(section, section.codes, wave), left, top, width, row * this.#rows.length);
  }

  /**
   * The names of the rows, at the left edge.
   * @param {CanvasRenderingContext2D} context
   * @param {{ink: string, shade: string}} colors
   */
  #paintNames(context, { ink, shade }) {
    const { ratio, row, top } = this.#sizes(context);
    context.font = `${9 * ratio}px ${FONT}`;
    const width = Math.max(0, ...this.#rows.map((name) => context.measureText(name).width)) + 8 * ratio;
    context.fillStyle = shade;
    context.fillRect(0, top, width, context.canvas.height - top);
    context.fillStyle = ink;
    this.#rows.forEach((name, i) => context.fillText(name, 4 * ratio, top + (i + 1) * row - 2.5 * ratio));
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
    [image.width, image.height] = [codes.length, this.#rows.length];
    const context = /** @type {CanvasRenderingContext2D} */ (image.getContext("2d"));
    context.fillStyle = color;
    this.#rows.forEach((name, row) => {
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
