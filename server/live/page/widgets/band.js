/** The loop band below the canvas: two edges and the region between them. */

const LEAST_S = 0.4;
const STEP_S = 0.2;
const FINE_STEP_S = 0.04;

/** Reports `change`. `start` and `end` are shares of the canvas. */
export class Band extends EventTarget {
  start = 0;
  end = 1;
  /** Length of the canvas. */ seconds = 10;

  /** @param {HTMLElement} root */
  constructor(root) {
    super();
    this.root = root;
    this.handles = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(".handle")]);
    this.region = /** @type {HTMLElement} */ (root.querySelector(".region"));
    this.handles.forEach((handle, edge) => {
      this.#drag(handle, (share) => this.#setEdge(edge, share));
      handle.addEventListener("keydown", (event) => this.#key(event, edge));
    });
    let grip = 0;
    this.region.addEventListener("pointerdown", (event) => (grip = this.#share(event) - this.start));
    this.#drag(this.region, (share) => {
      const width = this.end - this.start;
      const start = Math.min(1 - width, Math.max(0, share - grip));
      this.#set(start, start + width);
    });
    this.region.addEventListener("dblclick", () => this.#set(0, 1));
  }

  get isWhole() {
    return this.start <= 0 && this.end >= 1;
  }

  /** @param {PointerEvent} event */
  #share(event) {
    const box = this.root.getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
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
    const step = (event.shiftKey ? FINE_STEP_S : STEP_S) / this.seconds;
    const now = edge ? this.end : this.start;
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
    if (edge) this.#set(this.start, Math.max(this.start + least, Math.min(1, share)));
    else this.#set(Math.min(this.end - least, Math.max(0, share)), this.end);
  }

  /** @param {number} start @param {number} end */
  #set(start, end) {
    this.show(start, end);
    this.dispatchEvent(new Event("change"));
  }

  /** Show a band without reporting a change. @param {number} start @param {number} end @param {number} [seconds] */
  show(start, end, seconds = this.seconds) {
    this.start = start;
    this.end = end;
    this.seconds = seconds;
    this.root.style.setProperty("--seconds", String(seconds));
    this.region.style.left = `${start * 100}%`;
    this.region.style.right = `${(1 - end) * 100}%`;
    [start, end].forEach((edge, i) => {
      const handle = this.handles[i];
      handle.style.left = `${edge * 100}%`;
      handle.setAttribute("aria-valuemax", seconds.toFixed(1));
      handle.setAttribute("aria-valuenow", (edge * seconds).toFixed(2));
      handle.setAttribute("aria-valuetext", `${(edge * seconds).toFixed(2)} s`);
    });
  }
}
