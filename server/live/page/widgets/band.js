/** The loop band below the canvas: two edges and the region between them. */

const LEAST_S = 0.4;
const STEP_S = 0.2;
const FINE_STEP_S = 0.04;

/** Reports `change`. `start` and `end` are shares of the canvas; while all of it plays, the region is what the server repeats. */
export class Band extends EventTarget {
  start = 0;
  end = 1;
  /** Length of the canvas. */ seconds = 10;
  /** Length of what the band lies below: of the canvas what can loop. */ viewS = 10;
  /** Where beats lie, for edges to snap to. @type {{beatS: number} | null} */ beat = null;

  /** @param {HTMLElement} root */
  constructor(root) {
    super();
    this.root = root;
    this.handles = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(".handle")]);
    this.region = /** @type {HTMLElement} */ (root.querySelector(".region"));
    this.handles.forEach((handle, edge) => {
      this.#drag(handle, (share) => this.#setEdge(edge, this.#snapped(share)));
      handle.addEventListener("keydown", (event) => this.#key(event, edge));
    });
    let grip = 0;
    this.region.addEventListener("pointerdown", (event) => (grip = this.#share(event) - this.start));
    this.#drag(this.region, (share) => {
      const width = this.#shownEnd - this.start;
      const start = Math.min(this.#most - width, Math.max(0, this.#snapped(share - grip)));
      this.#set(start, start + width);
    });
    this.region.addEventListener("dblclick", () => this.#set(0, 1));
  }

  /** The share of the canvas that is in view. */
  get #most() {
    return Math.min(1, this.viewS / this.seconds);
  }

  /** Where the region ends. */
  get #shownEnd() {
    return Math.min(this.end, this.#most);
  }

  /** The nearest beat. @param {number} share */
  #snapped(share) {
    if (!this.beat) return share;
    const beat = this.beat.beatS / this.seconds;
    return Math.round(share / beat) * beat;
  }

  get isWhole() {
    return this.start <= 0 && this.end >= 1;
  }

  /** @param {PointerEvent} event */
  #share(event) {
    const box = this.root.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * (this.viewS / this.seconds);
  }

  /** @param {HTMLElement} node @param {(share: number) => void} move */
  #drag(node, move) {
    node.addEventListener("pointerdown", (event) => {
      node.setPointerCapture(event.pointerId);
      node.focus();
      event.preventDefault();
    });
    node.addEventListener("pointermove", (event) => {
      if (node.hasPointerCapture(event.pointerId)) move(this.#share(event));
    });
  }

  /** @param {KeyboardEvent} event @param {number} edge */
  #key(event, edge) {
    const step = (event.shiftKey ? FINE_STEP_S : (this.beat?.beatS ?? STEP_S)) / this.seconds;
    const now = event.shiftKey ? (edge ? this.#shownEnd : this.start) : this.#snapped(edge ? this.#shownEnd : this.start);
    const targets = /** @type {Record<string, number>} */ ({
      ArrowLeft: now - step,
      ArrowDown: now - step,
      ArrowRight: now + step,
      ArrowUp: now + step,
      Home: 0,
      End: 1,
    });
    if (!(event.key in targets)) return;
    event.preventDefault();
    this.#setEdge(edge, targets[event.key]);
  }

  /** @param {number} edge 0 start, 1 end @param {number} share */
  #setEdge(edge, share) {
    const least = Math.min(0.5, LEAST_S / this.seconds);
    if (edge) this.#set(this.start, Math.max(this.start + least, Math.min(this.#most, share)));
    else this.#set(Math.min(this.#shownEnd - least, Math.max(0, share)), this.#shownEnd);
  }

  /** @param {number} start @param {number} end */
  #set(start, end) {
    // All that can loop is all.
    this.show(start, start <= 0 && end >= this.#most - 1e-6 ? 1 : end);
    this.dispatchEvent(new Event("change"));
  }

  /** Show a band without reporting a change. @param {number} start @param {number} end @param {number} [seconds] */
  show(start, end, seconds = this.seconds) {
    this.start = start;
    this.end = end;
    this.seconds = seconds;
    this.#draw();
  }

  /** What can loop is so long, and has such beats. @param {number} viewS @param {{beatS: number} | null} beat */
  setView(viewS, beat) {
    this.beat = beat;
    if (Math.abs(viewS - this.viewS) < 1e-3) return;
    this.viewS = viewS;
    this.#draw();
  }

  #draw() {
    const { seconds, viewS } = this;
    this.root.style.setProperty("--seconds", String(this.beat ? viewS / this.beat.beatS : viewS));
    const [start, end] = [this.start, this.#shownEnd].map((share) => (share * seconds) / viewS);
    this.region.style.left = `${start * 100}%`;
    this.region.style.right = `${(1 - end) * 100}%`;
    [this.start, this.#shownEnd].forEach((edge, i) => {
      const handle = this.handles[i];
      handle.style.left = `${((edge * seconds) / viewS) * 100}%`;
      handle.setAttribute("aria-valuemax", viewS.toFixed(1));
      handle.setAttribute("aria-valuenow", (edge * seconds).toFixed(2));
      handle.setAttribute("aria-valuetext", `${(edge * seconds).toFixed(2)} s`);
    });
  }
}
