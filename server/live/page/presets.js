/** Presets: everything that is set on the page, as JSON, in a file or in the address. */

import { MOST_PROMPTS } from "./widgets/pad.js";

/**
 * @typedef {{version: 1, name: string, mode: "loop" | "extend", plan: boolean, seconds: number | null,
 *   prompts: string[], pad: [number, number], blend: string, controls: Record<string, any>,
 *   music: Record<string, number>, takes?: number[], mute?: string[], solo?: string[], seed: number | null, band: [number, number]}} Preset
 */

/** @param {string} name @param {string[]} prompts @param {Partial<Preset>} [more] @returns {Preset} */
function preset(name, prompts, more = {}) {
  return {
    version: 1,
    name,
    mode: "loop",
    plan: true,
    seconds: null,
    prompts,
    pad: [0, 0],
    blend: "velocity",
    controls: {},
    music: {},
    seed: null,
    band: [0, 1],
    ...more,
  };
}

export const PRESETS = [
  preset("Nightfall", [
    "lo-fi piano, bass and brushes, A minor, 84 bpm",
    "calm guitar arps, strings pads, A minor, 84 bpm",
    "energetic synth arps, bass, 808, A minor, 84 bpm",
    "flute lead, choir pads, drums, A minor, 84 bpm",
  ]),
  preset(
    "Clockwork",
    [
      "only house drums and synth bass, E dorian, 124 bpm",
      "marimba arpeggio and drums, E dorian, 124 bpm",
      "calm sparse whistle melody, E dorian, 124 bpm",
      "trance, E dorian, 124 bpm",
    ],
    { pad: [1, 0], controls: { guidance: 2.7 } },
  ),
  preset(
    "Daybreak",
    [
      "soft harp arpeggio, D major, 104 bpm",
      "folk guitar, bass and violin, D major, 104 bpm",
      "bright piano melody and strings pads, D lydian, 104 bpm",
      "calm choir pads and flute melody, D major, 104 bpm",
    ],
    { mode: "extend", pad: [1, 1] },
  ),
  preset(
    "Undertow",
    [
      "slow sparse organ pads, F minor, 70 bpm",
      "dark dense strings pads, F phrygian, 70 bpm",
      "dark bass and drums, F phrygian, 70 bpm",
      "loud brass pads, bass and drums, F phrygian, 70 bpm",
    ],
    { pad: [0, 1], controls: { variation: 0.3 } },
  ),
];

/** A preset from JSON text. Raises Error with a sentence for its reader. @param {string} text @returns {Preset} */
export function parsePreset(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("This is not a preset: it is not JSON.");
  }
  const isList = (/** @type {any} */ list, /** @type {string} */ type, /** @type {number} */ length) =>
    Array.isArray(list) && list.length === length && list.every((item) => typeof item === type);
  if (value?.version !== 1) throw new Error("This is not a preset of this version of the page.");
  const isShare = (/** @type {number} */ share) => share >= 0 && share <= 1;
  const { length = 0 } = value.prompts ?? {};
  if (length < 1 || length > MOST_PROMPTS || !isList(value.prompts, "string", length))
    throw new Error("This preset is incomplete: it needs one prompt, or up to eight.");
  if (!isList(value.pad, "number", 2) || !value.pad.every(isShare))
    throw new Error("This preset is wrong: its place on the pad is two numbers from 0 to 1.");
  if (!isList(value.band, "number", 2) || !value.band.every(isShare) || value.band[0] >= value.band[1])
    throw new Error("This preset is wrong: its band is two numbers from 0 to 1, the smaller one first.");
  if (!["loop", "extend"].includes(value.mode) || !["velocity", "tokens"].includes(value.blend))
    throw new Error("This preset is wrong: its mode is loop or extend, its blend velocity or tokens.");
  if (typeof value.controls !== "object" || value.controls === null)
    throw new Error("This preset is incomplete: it needs controls.");
  const isNumbers = (/** @type {any} */ list) => Object.values(list ?? {}).every((item) => Number.isInteger(item));
  const isNames = (/** @type {any} */ list = []) => isList(list, "string", list?.length);
  if (!isNames(value.mute) || !isNames(value.solo))
    throw new Error("This preset is wrong: mute and solo are lists of names.");
  if (!isNumbers(value.music) || !isNumbers(value.takes))
    throw new Error("This preset is wrong: its music and its takes are whole numbers.");
  return { ...preset("", []), ...value };
}

/** @param {Preset} value */
export function presetFragment(value) {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  const base64 = btoa(String.fromCharCode(...bytes));
  return `#p=${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** The preset of an address, or null. @param {string} fragment */
export function presetOfFragment(fragment) {
  if (!fragment.startsWith("#p=")) return null;
  const base64 = fragment.slice(3).replaceAll("-", "+").replaceAll("_", "/");
  let binary;
  try {
    binary = atob(base64);
  } catch {
    throw new Error("The preset in this address is damaged.");
  }
  return parsePreset(new TextDecoder().decode(Uint8Array.from(binary, (letter) => letter.charCodeAt(0))));
}

/** Offer a file to save. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
