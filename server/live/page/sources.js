/** The source that generations start from: a file, or the microphone written into the canvas. */

import { captureMicrophone } from "./audio/microphone.js";
import { find } from "./widgets/element.js";
import { Knob } from "./widgets/knob.js";

/** Where the microphone is written: this far after the playhead, so that it is heard soon and not too late. */
const WRITE_AHEAD_S = 0.6;

/**
 * @typedef {{connection: import("./connection.js").Connection, player: import("./audio/player.js").Player,
 *   canvas: import("./widgets/canvas_view.js").CanvasView, notify: (text: string, isNote?: boolean) => void}} Parts
 */

export class Sources {
  /** @type {string | null} */ id = null;
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
    this.strength.addEventListener("input", () => this.#send());
    find("source-strength").append(this.strength.root);
    const file = /** @type {HTMLInputElement} */ (find("source-file"));
    find("choose-source").addEventListener("click", () => file.click());
    file.addEventListener("change", () => file.files?.[0] && this.upload(file.files[0]));
    find("clear-source").addEventListener("click", () => {
      this.forget();
      this.#send();
    });
    find("microphone").addEventListener("click", () => this.#toggleMicrophone());
    this.#listenToDrops();
  }

  #listenToDrops() {
    const area = /** @type {HTMLElement} */ (document.querySelector(".source"));
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      area.classList.add("is-over");
    });
    document.addEventListener("dragleave", () => area.classList.remove("is-over"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      area.classList.remove("is-over");
      const file = event.dataTransfer?.files[0];
      if (file) this.upload(file);
    });
  }

  /** Members of `open`. */
  get open() {
    return this.id ? { source_id: this.id, source_strength: this.strength.value } : {};
  }

  /** Send a file to the server and play with it. @param {File} file */
  async upload(file) {
    const { connection, notify } = this.parts;
    const body = new FormData();
    body.append("source", file);
    const before = find("source-name").textContent;
    find("source-name").textContent = `sending ${file.name} …`;
    try {
      const response = await fetch("v1/sources", { method: "POST", body, headers: connection.headers() });
      const answer = await response.json();
      if (!response.ok) throw new Error([answer.detail, answer.fix].filter(Boolean).join(" — "));
      this.#show(answer.id, file.name);
      this.#send();
    } catch (error) {
      find("source-name").textContent = before;
      notify(`${file.name}: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** Use no source, without a message to the server. */
  forget() {
    this.#show(null, "or drop audio here");
  }

  /** @param {string | null} id @param {string} name */
  #show(id, name) {
    this.id = id;
    find("source-name").textContent = name;
    find("clear-source").hidden = find("source-strength").hidden = id === null;
    document.body.classList.toggle("without-source", id === null);
  }

  #send() {
    const strength = this.id ? this.strength.value : null;
    this.parts.connection.change("source", { id: this.id, strength });
  }

  async #toggleMicrophone() {
    const { player, notify } = this.parts;
    const button = find("microphone");
    if (this.#stopMicrophone) {
      this.#stopMicrophone();
      this.#stopMicrophone = null;
    } else {
      try {
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
