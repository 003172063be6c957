/**
 * The first row: what a musician sets. Tempo, key and meter are controls of the schema; density, drums and such are words
 * that every prompt gets. All of it is what the bundle's `[controls]` offer.
 */

import { element, find } from "./widgets/element.js";
import { Knob } from "./widgets/knob.js";

/**
 * @typedef {{words: string[], option: string | null, values: (string | number)[]}} MusicControl
 * @typedef {import("./midi/learn.js").Target} Target
 */

const LABELS = /** @type {Record<string, string>} */ ({ bpm: "tempo", scale: "key" });
const MUTE = "mute_";
const ONLY = "only_";
const LONGEST_MS = 2000;
const MOST_TAPS = 9;

/** Reports `change` when the words that prompts get have changed. */
export class Music extends EventTarget {
  /** @type {Record<string, MusicControl>} */ #controls = {};
  /** Of those that are words, which word is chosen, where it is not the usual one. @type {Record<string, number>} */
  values = {};
  /** @type {Map<string, Target & {show: (place: number) => void}>} */ targets = new Map();

  /** @param {import("./controls.js").ControlPanel} panel */
  constructor(panel) {
    super();
    this.panel = panel;
    this.tap = new TapTempo(find("tap"), (bpm) => {
      const control = panel.controls.find((one) => one.id === "bpm");
      if (control) panel.set("bpm", Math.min(control.max, Math.max(control.min, bpm)));
    });
  }

  /**
   * Draw what a bundle offers, once; to be called before the panel draws its schema.
   * @param {Record<string, MusicControl>} controls
   * @param {boolean} hasLanes whose buttons silence layers: then there are no others for that
   */
  draw(controls, hasLanes) {
    if (Object.keys(this.#controls).length) return;
    const isOffered = (/** @type {string} */ name) => !hasLanes || !(name.startsWith(MUTE) || name.startsWith(ONLY));
    this.#controls = Object.fromEntries(Object.entries(controls).filter(([name]) => isOffered(name)));
    for (const [name, { option, words, values }] of Object.entries(this.#controls)) {
      const label = LABELS[name] ?? name.replaceAll("_", " ");
      if (option) this.#place(option, label, values);
      else if (words.length === 2) this.#drawToggle(name, words);
      else if (words.length > 2) this.#drawKnob(name, label, words);
    }
    this.show(this.values);
  }

  /** A control of the schema is drawn in the first row. @param {string} option @param {string} label @param {any[]} values */
  #place(option, label, values) {
    if (!["bpm", "key", "time_signature"].includes(option)) return;
    this.panel.places[option] = find(option === "bpm" ? "music-tempo" : "music-fields");
    const say = (/** @type {any} */ choice) => `${choice}/${choice === 6 ? 8 : 4}`;
    this.panel.shapes[option] = {
      label,
      ...(values.length ? { type: "enum", choices: ["", ...values] } : {}),
      ...(option === "time_signature" ? { say } : {}),
    };
  }

  /** @param {string} name @param {string[]} words */
  #drawToggle(name, words) {
    const isMute = name.startsWith(MUTE);
    const text = name.replace(MUTE, "").replaceAll("_", " ");
    const button = /** @type {HTMLButtonElement} */ (element("button", "toggle", text));
    const badge = element("span", "midi-badge");
    button.type = "button";
    button.title = isMute ? `Whether there is ${text}` : `Adds: ${words[1]}`;
    button.append(badge);
    const show = (/** @type {number} */ place) => (button.ariaPressed = String((place === 1) !== isMute));
    button.addEventListener("click", () => this.#choose(name, 1 - this.#chosen(name)));
    find("music-toggles").append(button);
    this.targets.set(name, {
      root: button,
      show,
      turn: (position) => this.#choose(name, Number(position >= 0.5 !== isMute)),
      showController: (controller) => (badge.textContent = controller),
    });
  }

  /** @param {string} name @param {string} label @param {string[]} words */
  #drawKnob(name, label, words) {
    const format = (/** @type {number} */ place) => words[place].replace(/ .*/, "") || "as it is";
    const knob = new Knob({
      label,
      help: `Adds to every prompt: ${words.filter(Boolean).join(", or ")}`,
      min: 0,
      max: words.length - 1,
      default: usual(words),
      integer: true,
      format,
      parse: (text) => (text === "" ? NaN : words.findIndex((word, place) => [word, format(place)].includes(text))),
    });
    knob.addEventListener("input", () => this.#choose(name, knob.value));
    find("music-knobs").append(knob.root);
    this.targets.set(name, knob);
  }

  /** @param {string} name */
  #chosen(name) {
    return this.values[name] ?? usual(this.#controls[name].words);
  }

  /** @param {string} name @param {number} place */
  #choose(name, place) {
    if (place === this.#chosen(name)) return;
    if (place === usual(this.#controls[name].words)) delete this.values[name];
    else this.values[name] = place;
    this.targets.get(name)?.show(place);
    this.dispatchEvent(new Event("change"));
  }

  /** What every prompt gets; before a session is open it is not known. */
  get words() {
    const chosen = Object.entries(this.values).map(([name, place]) => this.#controls[name]?.words[place]);
    return chosen.filter(Boolean).join(", ");
  }

  /** The layers that values silence which the lanes do here, as presets of other models have them; they are no values then. */
  takeLayers() {
    /** @type {{mute: string[], solo: string[]}} */
    const found = { mute: [], solo: [] };
    if (!Object.keys(this.#controls).length) return found;
    for (const name of Object.keys(this.values).filter((one) => !(one in this.#controls))) {
      if (name.startsWith(MUTE)) found.mute.push(name.slice(MUTE.length));
      if (name.startsWith(ONLY)) found.solo.push(...name.slice(ONLY.length).split("_and_"));
      delete this.values[name];
    }
    return found;
  }

  /** Show these values, without reporting a change. @param {Record<string, number>} values */
  show(values) {
    this.values = { ...values };
    for (const [name, target] of this.targets) target.show(this.#chosen(name));
  }

  /**
   * Show what is played where nothing is set: tempo, key and meter as the server understood the prompts.
   * @param {Record<string, string[]>} meaning names by kind
   */
  tell(meaning) {
    const tempo = this.panel.fields.get("bpm");
    if (tempo instanceof HTMLInputElement) tempo.placeholder = String(parseInt(meaning.tempo?.[0] ?? "") || "auto");
    for (const [option, kind] of [["key", "key"], ["time_signature", "meter"]]) {
      const select = this.panel.fields.get(option);
      const names = meaning[kind] ?? [];
      if (select instanceof HTMLSelectElement) select.options[0].textContent = ["auto", ...names].join(" · ");
    }
  }
}

/** The place of what adds nothing. @param {string[]} words */
function usual(words) {
  return Math.max(0, words.indexOf(""));
}

/** A tempo that is tapped: the mean of the newest intervals. */
class TapTempo {
  /** @type {number[]} */ #timesMs = [];

  /** @param {HTMLElement} button @param {(bpm: number) => void} tell with the second tap and every further one */
  constructor(button, tell) {
    this.tell = tell;
    // Not `click`: that comes with the release.
    button.addEventListener("pointerdown", (event) => event.button === 0 && this.#tap(event.timeStamp));
    button.addEventListener("keydown", (event) => {
      if (![" ", "Enter"].includes(event.key) || event.repeat) return;
      event.preventDefault();
      this.#tap(event.timeStamp);
    });
  }

  /** @param {number} timeMs */
  #tap(timeMs) {
    const isNew = timeMs - (this.#timesMs.at(-1) ?? -Infinity) > LONGEST_MS;
    this.#timesMs = isNew ? [timeMs] : [...this.#timesMs, timeMs].slice(-MOST_TAPS);
    const count = this.#timesMs.length - 1;
    if (count) this.tell(Math.round((60000 * count) / (timeMs - this.#timesMs[0])));
  }
}
