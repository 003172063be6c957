/** Audio files that generations use: the source, the timbre, the structure. Each has a row of the page. */

import { find } from "./widgets/element.js";

/**
 * @typedef {{connection: import("./connection.js").Connection, notify: (text: string, isNote?: boolean) => void,
 *   changed: (kind: string) => void}} Parts
 * @typedef {{id: string | null, name: string}} Chosen
 */

const IDLE_TEXT = "or drop audio here";

/** One of them. `type` is the message that sets it, and the prefix of its elements' ids. */
export class Reference {
  /** What /v1/sources calls it. @type {string | null} */ id = null;
  #seq = 0;

  /** @param {"source" | "timbre" | "structure"} type @param {Parts} parts @param {() => number | null} [strength] */
  constructor(type, parts, strength = () => null) {
    this.type = type;
    this.parts = parts;
    this.strength = strength;
    this.row = find(type);
    const file = /** @type {HTMLInputElement} */ (find(`${type}-file`));
    find(`choose-${type}`).addEventListener("click", () => file.click());
    file.addEventListener("change", async () => {
      const chosen = file.files?.[0];
      file.value = ""; // so that the same file can be chosen again
      if (chosen) await this.upload(chosen);
    });
    find(`clear-${type}`).addEventListener("click", () => {
      this.forget();
      this.send();
      parts.changed(type);
    });
  }

  /** What history holds of it. @returns {Chosen} */
  get chosen() {
    return { id: this.id, name: find(`${this.type}-name`).textContent ?? "" };
  }

  /** Show what history held, without a message to the server. @param {Chosen} chosen */
  show({ id, name }) {
    if (id !== this.id) this.#show(id, name);
  }

  /** Send a file to the server and play with it. @param {File} file */
  async upload(file) {
    const { connection, notify } = this.parts;
    const body = new FormData();
    body.append("source", file);
    const name = find(`${this.type}-name`);
    const before = name.textContent;
    name.textContent = `sending ${file.name} …`;
    try {
      const response = await fetch("v1/sources", { method: "POST", body, headers: connection.headers() });
      const answer = await response.json();
      if (!response.ok) throw new Error([answer.detail, answer.fix].filter(Boolean).join(" — "));
      this.#show(answer.id, [file.name, ...answer.losses].join(" · "));
      this.send();
      this.parts.changed(this.type);
    } catch (error) {
      name.textContent = before;
      notify(`${file.name}: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** Use none, without a message to the server. */
  forget() {
    this.#show(null, IDLE_TEXT);
  }

  /** Another client has set it. @param {string | null} id */
  follow(id) {
    this.#show(id, id === null ? IDLE_TEXT : id.slice(0, 12));
  }

  /** Tell the server. */
  send() {
    const strength = this.id ? this.strength() : null;
    this.#seq = this.parts.connection.change(this.type, { id: this.id, strength });
  }

  /** The server refused a message: where it was this one's, none is used. @param {number | null} seq */
  refused(seq) {
    if (this.id === null || seq !== this.#seq) return;
    this.forget();
    this.send();
  }

  /** @param {string | null} id @param {string} name */
  #show(id, name) {
    this.id = id;
    find(`${this.type}-name`).textContent = name;
    find(`clear-${this.type}`).hidden = id === null;
    document.body.classList.toggle(`without-${this.type}`, id === null);
  }
}

/** A file that is dropped on a row is for that one, elsewhere for the first. @param {Reference[]} references */
export function listenToDrops(references) {
  const mark = (/** @type {Reference | null} */ over) => {
    for (const one of references) one.row.classList.toggle("is-over", one === over);
  };
  const under = (/** @type {DragEvent} */ event) =>
    references.find((one) => one.row.contains(/** @type {Node} */ (event.target))) ?? references[0];
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    mark(under(event));
  });
  document.addEventListener("dragleave", () => mark(null));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(null);
    const file = event.dataTransfer?.files[0];
    if (file) under(event).upload(file);
  });
}
