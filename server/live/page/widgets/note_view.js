/** The notes on the canvas: frames around what they are in its picture. */

/** @typedef {{name: string, keys: number[], rows: number[], is_percussion: boolean}} Layer */

const LINE = 1.5;

export class NoteView {
  /** Layer and key -> row of the picture, 0 is the lowest. @type {Map<string, number>} */ #rows = new Map();

  /** @param {Layer[]} layers */
  begin(layers) {
    this.#rows = new Map(layers.flatMap(({ name, keys, rows }) => keys.map((key, i) => [`${name} ${key}`, rows[i]])));
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {{startS: number, seconds: number}} view
   * @param {import("../midi/placed_notes.js").PlacedNote[]} notes
   * @param {number} rows how many the picture has
   * @param {string} color
   */
  paint(context, view, notes, rows, color) {
    const { width, height } = context.canvas;
    const ratio = devicePixelRatio || 1;
    context.strokeStyle = color;
    context.lineWidth = LINE * ratio;
    for (const { note, startS, seconds } of notes) {
      const row = this.#rows.get(`${note.layer} ${note.pitch}`);
      const left = ((startS - view.startS) / view.seconds) * width;
      const length = Math.max(2 * ratio, (seconds / view.seconds) * width - ratio);
      if (row === undefined || left > width || left + length < 0) continue;
      context.globalAlpha = 0.35 + (0.65 * note.velocity) / 127;
      context.strokeRect(left, ((rows - 1 - row) / rows) * height, length, height / rows);
    }
    context.globalAlpha = 1;
  }
}
