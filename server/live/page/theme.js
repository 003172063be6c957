/** Colors: dark or light, and the color of the blend of prompts, which everything on the page takes. */

/** @typedef {[number, number, number]} Color */

// Oklab (Björn Ottosson): lightness, and two axes of color in which equal distances look equal.

/** @param {Color} color @returns {[number, number, number]} */
function oklab(color) {
  const [r, g, b] = color.map((value) => (value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

/** @param {number} lightness @param {number} a @param {number} b may be out of what a screen has */
function srgb(lightness, a, b) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((value) => 255 * (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055));
}

/**
 * The color of a blend: sharpened towards the strongest corner, as light and as vivid as the corners are in the mean, so
 * that it is never gray between them.
 * @param {Color[]} corners @param {number[]} weights @returns {Color}
 */
export function blendColor(corners, weights) {
  const powers = weights.map((weight) => weight ** 1.6);
  const sum = powers.reduce((total, power) => total + power, 0);
  const colors = corners.map(oklab);
  const mean = (/** @type {(color: number[]) => number} */ of) =>
    colors.reduce((total, color, i) => total + of(color) * powers[i], 0) / sum;
  const [a, b] = [mean((color) => color[1]), mean((color) => color[2])];
  let gain = mean((color) => Math.hypot(color[1], color[2])) / Math.max(1e-6, Math.hypot(a, b));
  const lightness = mean((color) => color[0]);
  const at = () => srgb(lightness, gain * a, gain * b);
  while (gain > 0.1 && at().some((value) => value < -0.5 || value > 255.5)) gain *= 0.97;
  return /** @type {Color} */ (at().map((value) => Math.round(Math.min(255, Math.max(0, value)))));
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
