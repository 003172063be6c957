/** The axes of the canvas: time and bars along it, pitches beside it. */

const FONT = "system-ui, sans-serif";
const LEAST_LABEL_PIXELS = 44;
const WITH_TIME_PIXELS = 72;
const LEAST_BEAT_PIXELS = 14;
const STEPS = [1, 2, 4, 8, 16, 32, 64];
const STEPS_S = [1, 2, 5, 10, 20, 60];

/** @typedef {{startS: number, seconds: number}} View */

/** @param {number} seconds */
function timeText(seconds) {
  const tenths = Math.round(seconds * 10);
  return `${Math.floor(tenths / 600)}:${(tenths % 600 < 100 ? "0" : "") + ((tenths % 600) / 10).toFixed(tenths % 10 ? 1 : 0)}`;
}

/**
 * Bars, and their times where there is room; without a beat seconds.
 * @param {CanvasRenderingContext2D} context @param {View} view @param {import("./bars.js").Bar[]} bars
 * @param {number} row height of the axis @param {{ink: string, shade: string}} colors
 */
export function paintTime(context, view, bars, row, { ink, shade }) {
  const { width, height } = context.canvas;
  const ratio = devicePixelRatio || 1;
  const pixelsPerS = width / view.seconds;
  const line = (/** @type {number} */ atS, /** @type {number} */ alpha, /** @type {number} */ top) => {
    context.globalAlpha = alpha;
    context.fillRect(Math.round((atS - view.startS) * pixelsPerS), top, ratio, height - top);
  };
  const write = (/** @type {string} */ text, /** @type {number} */ atS, /** @type {number} */ offset, /** @type {boolean} */ isStrong) => {
    context.globalAlpha = isStrong ? 1 : 0.75;
    context.font = `${isStrong ? 600 : 400} ${11 * ratio}px ${FONT}`;
    context.fillText(text, (atS - view.startS) * pixelsPerS + (4 + offset) * ratio, row - 6 * ratio);
  };
  context.fillStyle = shade;
  context.fillRect(0, 0, width, row);
  context.fillStyle = ink;
  if (bars.length) {
    const { beatS, beats } = bars[0];
    const barPixels = beatS * beats * pixelsPerS;
    const step = STEPS.find((count) => count * barPixels >= LEAST_LABEL_PIXELS * ratio) ?? 128;
    for (const { startS, number, beatS, beats } of bars) {
      const isNamed = (number - 1) % step === 0;
      line(startS, isNamed ? 0.3 : 0.14, isNamed ? 0 : row);
      for (let beat = 1; beat < beats && beatS * pixelsPerS >= LEAST_BEAT_PIXELS * ratio; beat++)
        line(startS + beat * beatS, 0.07, row);
      if (!isNamed) continue;
      write(String(number), startS, 0, true);
      if (step * barPixels >= WITH_TIME_PIXELS * ratio) write(timeText(startS), startS, 10 + 7 * String(number).length, false);
    }
  } else {
    const step = STEPS_S.find((count) => count * pixelsPerS >= LEAST_LABEL_PIXELS * ratio) ?? 120;
    for (let k = Math.max(0, Math.ceil(view.startS / step)); k * step < view.startS + view.seconds; k++) {
      line(k * step, 0.14, 0);
      write(timeText(k * step), k * step, 0, false);
    }
  }
  context.globalAlpha = 1;
}

/**
 * Lines between lanes, and in each the octaves of its keys.
 * @param {CanvasRenderingContext2D} context @param {import("./lanes.js").Lane[]} lanes @param {{ink: string, shade: string}} colors
 */
export function paintPitches(context, lanes, { ink, shade }) {
  const { width } = context.canvas;
  const ratio = devicePixelRatio || 1;
  context.font = `${10 * ratio}px ${FONT}`;
  for (const { layer, top, height } of lanes) {
    context.fillStyle = ink;
    context.globalAlpha = 0.3;
    context.fillRect(0, top, width, ratio);
    if (layer.is_percussion) continue;
    layer.keys.forEach((key, i) => {
      if (key % 12) return;
      const middle = top + (height * (layer.keys.length - i - 0.5)) / layer.keys.length;
      const text = `C${key / 12 - 1}`;
      context.fillStyle = ink;
      context.globalAlpha = 0.1;
      context.fillRect(0, middle, width, ratio);
      const baseline = Math.min(Math.max(middle + 4 * ratio, top + 10 * ratio), top + height - 2 * ratio);
      context.globalAlpha = 1;
      context.fillStyle = shade;
      context.fillRect(0, baseline - 10 * ratio, 20 * ratio, 12 * ratio);
      context.fillStyle = ink;
      context.fillText(text, 3 * ratio, baseline);
    });
  }
  context.globalAlpha = 1;
}
