/** The presets' buttons: choose, save, load, share. */

import { download, parsePreset, presetFragment, presetOfFragment, PRESETS } from "./presets.js";
import { all, element, field, find } from "./widgets/element.js";

/** @typedef {import("./presets.js").Preset} Preset */

const ITEM = "tickrt.page";

export class PresetBar {
  /**
   * @param {{current: () => Preset, use: (preset: Preset) => void,
   *   notify: (text: string, isNote?: boolean) => void}} page
   */
  constructor(page) {
    this.page = page;
    for (const preset of PRESETS) {
      const chip = /** @type {HTMLButtonElement} */ (element("button", "", preset.name));
      chip.type = "button";
      chip.addEventListener("click", () => page.use(preset));
      find("presets").append(chip);
    }
    find("save").addEventListener("click", () => {
      const text = JSON.stringify(page.current(), null, 2);
      download(new Blob([text], { type: "application/json" }), "tickrt-preset.json");
    });
    find("load").addEventListener("click", () => find("preset-file").click());
    find("share").addEventListener("click", () => this.#share());
    find("preset-file").addEventListener("change", () => this.#load());
  }

  /** What the page was left with before it was loaded again. @type {any} */ left = null;

  /** Keep what is set for when the page is loaded again in this tab. @param {any} [left] what it is left with */
  keep(left) {
    const kept = { hash: location.hash, preset: this.page.current() };
    try {
      sessionStorage.setItem(ITEM, JSON.stringify({ ...kept, left }));
    } catch {
      sessionStorage.setItem(ITEM, JSON.stringify(kept)); // There is no room for more.
    }
  }

  /** What was set before the page was loaded again, the preset of the address, or the first one. */
  first() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(ITEM) ?? "null");
      if (kept?.hash === location.hash) {
        this.left = kept.left ?? null;
        return parsePreset(JSON.stringify(kept.preset));
      }
      return presetOfFragment(location.hash) ?? PRESETS[0];
    } catch (error) {
      this.page.notify(/** @type {Error} */ (error).message);
      return PRESETS[0];
    }
  }

  /** Mark the preset in use. @param {string} name */
  show(name) {
    for (const chip of all("#presets button")) chip.classList.toggle("is-on", chip.textContent === name);
  }

  async #share() {
    history.replaceState(null, "", presetFragment(this.page.current()));
    try {
      await navigator.clipboard.writeText(location.href);
      this.page.notify("The address holds this preset and is in the clipboard.", true);
    } catch {
      this.page.notify("The address holds this preset: copy it.", true);
    }
  }

  async #load() {
    const file = field("preset-file").files?.[0];
    try {
      if (file) this.page.use(parsePreset(await file.text()));
    } catch (error) {
      this.page.notify(/** @type {Error} */ (error).message);
    }
    field("preset-file").value = "";
  }
}
