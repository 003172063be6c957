/** MIDI, which a page loads when it is first used: its ports, learning, and the panel. */

import { find } from "../widgets/element.js";
import { MidiLearn } from "./learn.js";
import { MidiPanel } from "./panel.js";
import { MidiPorts } from "./ports.js";

/** @typedef {Omit<import("./panel.js").Parts, "ports"> & {targets: () => Map<string, import("./learn.js").Target>}} Parts */

export class Midi {
  /** @param {Parts} parts */
  constructor({ targets, ...parts }) {
    const ports = new MidiPorts();
    this.learn = new MidiLearn(ports, targets, parts.notify);
    this.panel = new MidiPanel({ ports, ...parts });
  }
}

/** @param {Parts} parts */
export async function loadMidi(parts) {
  const response = await fetch(new URL("panel.html", import.meta.url));
  if (!response.ok) throw new Error(response.statusText);
  find("midi-panel").innerHTML = await response.text();
  return new Midi(parts);
}
