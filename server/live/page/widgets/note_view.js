/** The notes on the canvas: a lane per layer, low ones at the bottom. */

/** @typedef {{name: string, keys: number[], is_percussion: boolean}} Layer */

const LEAST_HEIGHT = 2;
const LANE_GAP = 0.12;

export class NoteView {
  /** From high to low. @type {Layer[]} */ #layers = [];

  /** @param {Layer[]} layers */
  begin(layers) {
    const height = (/** @type {Layer} */ layer) => (layer.is_percussion ? -1 : Math.max(...layer.keys));
    this.#layers = [...layers].sort((one, other) => height(other) - height(one));
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {{startS: number, seconds: number}} view
   * @param {import("../midi/placed_notes.js").PlacedNote[]} notes
   * @param {{top: number, bottom: number}} room pixels of the screen
   * @param {{ink: string, shade: string}} colors
   */
  paint(context, view, notes, room, { ink, shade }) {
    const { width } = context.canvas;
    const lane = (room.bottom - room.top) / Math.max(1, this.#layers.length);
    const ratio = devicePixelRatio || 1;
    for (const { note, startS, seconds } of notes) {
      const index = this.#layers.findIndex((layer) => layer.name === note.layer);
      const left = ((startS - view.startS) / view.seconds) * width;
      const length = Math.max(2 * ratio, (seconds / view.seconds) * width - ratio);
      if (index < 0 || left > width || left + length < 0) continue;
      const keys = this.#layers[index].keys;
      const row = (lane * (1 - LANE_GAP)) / keys.length;
      const height = Math.max(LEAST_HEIGHT * ratio, row);
      const y = room.top + (index + 1) * lane - (keys.indexOf(note.pitch) + 1) * row;
      context.fillStyle = shade;
      context.fillRect(left - ratio, y - ratio, length + 2 * ratio, height + 2 * ratio);
      context.globalAlpha = 0.45 + (0.55 * note.velocity) / 127;
      context.fillStyle = ink;
      context.fillRect(left, y, length, height);
      context.globalAlpha = 1;
    }
  }
}
