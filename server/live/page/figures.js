/** The bottom line: how long controls take to be heard, lead, underruns, ticks. */

import { find } from "./widgets/element.js";

export class Figures {
  /** Changes whose sound is awaited, by seq. @type {Map<number, {atMs: number, isFirstHeard: boolean}>} */ #sent =
    new Map();
  #ticks = { count: 0, atMs: 0 };

  /** Await the sound of a change that is sent now. @param {number} seq */
  await(seq) {
    this.#sent.set(seq, { atMs: performance.now(), isFirstHeard: false });
  }

  /** Await nothing any more: another session began. */
  clear() {
    this.#sent.clear();
  }

  /**
   * Sound that these changes have a part in, or that is complete up to them, is played now.
   * @param {number} firstSeq
   * @param {number} fullSeq
   */
  heard(firstSeq, fullSeq) {
    const now = performance.now();
    for (const [seq, sent] of this.#sent) {
      const elapsed = `${Math.round(now - sent.atMs)} ms`;
      if (seq <= firstSeq && !sent.isFirstHeard) {
        sent.isFirstHeard = true;
        find("stat-first").textContent = elapsed;
      }
      if (seq <= fullSeq) {
        find("stat-full").textContent = elapsed;
        this.#sent.delete(seq);
      }
    }
  }

  /** @param {import("./audio/player.js").PlayerStatus} status */
  playerStatus({ leadS, underruns }) {
    find("stat-lead").textContent = `${Math.round(leadS * 1000)} ms`;
    find("stat-underruns").textContent = String(underruns);
  }

  /**
   * Show a state message; returns whether there were ticks since the last one.
   * @param {import("./connection.js").Message} state
   */
  state({ ticks, tick_ms, generation_s }) {
    const now = performance.now();
    const before = this.#ticks;
    this.#ticks = { count: ticks, atMs: now };
    const rate = ((ticks - before.count) * 1000) / (now - before.atMs);
    if (before.atMs && rate >= 0) find("stat-ticks").textContent = rate.toFixed(0);
    find("stat-tick").textContent = `${tick_ms.toFixed(1)} ms`;
    find("stat-generation").textContent = `${Math.round(generation_s * 1000)} ms`;
    return ticks !== before.count;
  }
}
