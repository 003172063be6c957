/** The notes on the canvas: bars in the lane of their layer, at the height of their key. */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{startS: number, seconds: number}} view
 * @param {import("../midi/placed_notes.js").PlacedNote[]} notes
 * @param {import("./lanes.js").Lane[]} lanes
 * @param {string} color
 */
export function paintNotes(context, view, notes, lanes, color) {
  const { width } = context.canvas;
  const ratio = devicePixelRatio || 1;
  const laneOf = new Map(lanes.map((lane) => [lane.layer.name, lane]));
  context.fillStyle = color;
  for (const { note, startS, seconds } of notes) {
    const lane = laneOf.get(note.layer);
    const row = lane?.layer.keys.indexOf(note.pitch) ?? -1;
    const left = ((startS - view.startS) / view.seconds) * width;
    const length = Math.max(2 * ratio, (seconds / view.seconds) * width - ratio);
    if (!lane || row < 0 || left > width || left + length < 0) continue;
    const height = lane.height / lane.layer.keys.length;
    const thickness = Math.max(2 * ratio, height - ratio);
    const middle = lane.top + lane.height - (row + 0.5) * height;
    context.globalAlpha = (0.35 + (0.65 * note.velocity) / 127) * (lane.isSilent ? 0.4 : 1);
    context.fillRect(left, middle - thickness / 2, length, thickness);
  }
  context.globalAlpha = 1;
}
