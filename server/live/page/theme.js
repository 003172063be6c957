/** Colors: dark or light, and the color of the blend of prompts, which everything on the page takes. */

/** @typedef {[number, number, number]} Color */

/**
 * The color of a blend: the mean, sharpened towards the strongest corner, as vivid as the corners are.
 * @param {Color[]} corners @param {number[]} weights @returns {Color}
 */
export function blendColor(corners, weights) {
  const powers = weights.map((weight) => weight ** 1.6);
  const sum = powers.reduce((total, power) => total + power, 0);
  const mean = (/** @type {(color: Color) => number} */ of) =>
    corners.reduce((total, corner, i) => total + of(corner) * powers[i], 0) / sum;
  const color = [0, 1, 2].map((i) => mean((corner) => corner[i]));
  const gray = (color[0] + color[1] + color[2]) / 3;
  const chroma = (/** @type {number[]} */ of) => Math.max(...of) - Math.min(...of);
  const gain = Math.min(1.7, (0.85 * mean(chroma)) / Math.max(1, chroma(color)));
  const vivid = color.map((value) => Math.round(Math.min(255, Math.max(0, gray + (value - gray) * Math.max(1, gain)))));
  return /** @type {Color} */ (vivid);
}

const lightTheme = matchMedia("(prefers-color-scheme: light)");

/** A color of the stylesheet. @param {string} variable @returns {Color} */
function cssColor(variable) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(variable);
  const [red, green, blue] = text.trim().split(/\s+/).map(Number);
  return [red, green, blue];
}

/** Colors of prompts A to H. */
export function cornerColors() {
  return ["--a", "--b", "--c", "--d", "--e", "--f", "--g", "--h"].map(cssColor);
}

/** Calls back when the system changes between dark and light. @param {() => void} changed */
export function onThemeChange(changed) {
  lightTheme.addEventListener("change", changed);
}

/**
 * Give the page the color of a blend; returns the colors that its pictures are drawn with.
 * @param {number[]} weights
 */
export function tint(weights) {
  const corners = cornerColors().slice(0, weights.length);
  const mix = blendColor(corners, weights);
  document.documentElement.style.setProperty("--mix", mix.join(" "));
  const [first, runnerUp = first] = weights.map((_, i) => i).sort((i, k) => weights[k] - weights[i]);
  const ground = cssColor("--ground-color");
  /** @type {Color} */
  const brightest = lightTheme.matches ? [24, 20, 30] : [255, 252, 240];
  return {
    ink: lightTheme.matches ? "#1b1c22" : "#fff",
    shade: `rgb(${ground.join(" ")} / 0.75)`,
    wave: `rgb(${mix.join(" ")})`,
    values: [ground, blendColor([corners[runnerUp], ground], [0.6, 0.4]), mix, brightest],
  };
}
