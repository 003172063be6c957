/** A small instrument of the page: what is played on a keyboard sounds at once. */

const LEVEL = 0.22;
const ATTACK_S = 0.005;
const RELEASE_S = 0.12;
const HIT_S = 0.12;

export class Synth {
  /** By pitch. @type {Map<number, {tone: OscillatorNode, gain: GainNode}>} */ #sounding = new Map();

  /** @param {AudioContext} context @param {number} pitch @param {number} velocity @param {boolean} isDrum */
  strike(context, pitch, velocity, isDrum) {
    this.release(pitch);
    const now = context.currentTime;
    const level = LEVEL * (velocity / 127);
    const tone = new OscillatorNode(context, { type: "triangle", frequency: 440 * 2 ** ((pitch - 69) / 12) });
    const gain = new GainNode(context, { gain: 0 });
    gain.gain.linearRampToValueAtTime(level, now + ATTACK_S);
    tone.connect(gain).connect(context.destination);
    tone.start();
    if (isDrum) {
      gain.gain.setTargetAtTime(0, now + ATTACK_S, HIT_S / 3);
      tone.frequency.setTargetAtTime(40, now, HIT_S / 3);
      tone.stop(now + 2 * HIT_S);
      return;
    }
    gain.gain.setTargetAtTime(0.6 * level, now + ATTACK_S, 0.3);
    this.#sounding.set(pitch, { tone, gain });
  }

  /** @param {number} pitch */
  release(pitch) {
    const found = this.#sounding.get(pitch);
    if (!found) return;
    this.#sounding.delete(pitch);
    const { context } = found.gain;
    found.gain.gain.cancelScheduledValues(context.currentTime);
    found.gain.gain.setTargetAtTime(0, context.currentTime, RELEASE_S / 3);
    found.tone.stop(context.currentTime + 2 * RELEASE_S);
  }
}
