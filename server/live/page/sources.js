/** What generations are given besides text: files, and the microphone written into the canvas. */

import { listenToDrops, Reference } from "./references.js";
import { find } from "./widgets/element.js";
import { Knob } from "./widgets/knob.js";

/** Where the microphone is written: this far after the playhead, so that it is heard soon and not too late. */
const WRITE_AHEAD_S = 0.6;

/**
 * @typedef {import("./references.js").Parts & {player: import("./audio/player.js").Player,
 *   canvas: import("./widgets/canvas_view.js").CanvasView}} Parts
 */

export class Sources {
  /** @type {(() => void) | null} */ #stopMicrophone = null;

  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    this.strength = new Knob({
      label: "strength",
      min: 0,
      max: 1,
      default: 0.5,
      help: "1 returns the source, 0 ignores it",
    });
    this.source = new Reference("source", parts, () => this.strength.value);
    // The strengths of these are controls of the schema.
    this.others = [new Reference("timbre", parts), new Reference("structure", parts)];
    this.all = [this.source, ...this.others];
    this.strength.addEventListener("input", () => {
      this.source.send();
      parts.changed("source strength");
    });
    find("source-strength").append(this.strength.root);
    find("microphone").addEventListener("click", () => this.#toggleMicrophone());
    listenToDrops(this.all);
  }

  /** Members of `open`. */
  get open() {
    return this.source.id ? { source_id: this.source.id, source_strength: this.strength.value } : {};
  }

  /** What history holds of them. */
  get chosen() {
    return { strength: this.strength.value, files: this.all.map((one) => one.chosen) };
  }

  /** Show what history held, and send what of it is new where the session goes on. @param {Sources["chosen"]} chosen @param {boolean} isSent */
  use({ strength, files }, isSent) {
    const isOther = this.all.map((one, i) => one.id !== files[i].id || (i === 0 && strength !== this.strength.value));
    this.strength.show(strength);
    this.all.forEach((one, i) => {
      one.show(files[i]);
      if (isOther[i] && isSent) one.send();
    });
  }

  /**
   * A session begins, or goes on: show what its model takes; a new one gets what `open` has no members for.
   * @param {boolean} isNew
   * @param {Map<string, Knob>} knobs
   */
  begin(isNew, knobs) {
    for (const one of this.others) {
      one.row.hidden = !knobs.has(`${one.type}_strength`);
      if (isNew && one.id) one.send();
    }
  }

  /** Use no files, without a message to the server. */
  forget() {
    for (const one of this.all) one.forget();
  }

  /** Another client has set some of them. @param {Record<string, any>} values as in `changed` */
  follow(values) {
    for (const one of this.all) {
      if (one.type in values) one.follow(values[one.type]?.id ?? null);
    }
    if (values.source?.strength != null) this.strength.show(values.source.strength);
  }

  /** @param {number | null} seq of a message that the server refused */
  refused(seq) {
    for (const one of this.all) one.refused(seq);
  }

  async #toggleMicrophone() {
    const { player, notify } = this.parts;
    const button = find("microphone");
    if (this.#stopMicrophone) {
      this.#stopMicrophone();
      this.#stopMicrophone = null;
    } else {
      try {
        const { captureMicrophone } = await import("./audio/microphone.js");
        this.#stopMicrophone = await captureMicrophone(player.rateHz, this.#writer());
      } catch (error) {
        notify(`The microphone cannot be used: ${/** @type {Error} */ (error).message}`);
      }
    }
    button.setAttribute("aria-pressed", String(this.#stopMicrophone !== null));
  }

  /** Takes blocks of interleaved stereo and sends half a second at a time. */
  #writer() {
    const { connection, player, canvas } = this.parts;
    /** @type {number[]} */
    let waiting = [];
    return (/** @type {Float32Array} */ block) => {
      for (let i = 0; i < block.length; i += 2) {
        if (player.channels === 1) waiting.push((block[i] + block[i + 1]) / 2);
        else waiting.push(block[i], block[i + 1]);
      }
      const samples = waiting.length / player.channels;
      if (samples < player.rateHz / 2) return;
      const pcm = Int16Array.from(waiting, (value) => Math.max(-32768, Math.min(32767, Math.round(value * 32767))));
      waiting = [];
      const mode = /** @type {HTMLSelectElement} */ (find("write-mode")).value;
      const at_s = Number(
        ((canvas.positionS + WRITE_AHEAD_S) % (canvas.isEndless ? Infinity : canvas.seconds)).toFixed(3),
      );
      connection.change("write", { at_s, mode, samples, format: "s16" }, pcm.buffer);
    };
  }
}
