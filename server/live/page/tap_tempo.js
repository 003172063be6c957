/** A tempo that is tapped: the mean of the newest intervals. */

const LONGEST_MS = 2000;
const MOST_TAPS = 9;

export class TapTempo {
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
