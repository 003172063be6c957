"""The player of the page in a browser: starts it, and copies what it puts out."""

from __future__ import annotations

from typing import Any

IS_HEARD = "() => getComputedStyle(document.querySelector('.meter')).getPropertyValue('--level') > 0.05"
# Copies what the player puts out, beside the page's own recorder: every block from the first one on.
TAP = """
const code = `registerProcessor("tap", class extends AudioWorkletProcessor {
  process(inputs) { this.port.postMessage(inputs[0].map((plane) => plane.slice())); return true; } });`;
const addModule = AudioWorklet.prototype.addModule;
AudioWorklet.prototype.addModule = async function (url) {
  await addModule.call(this, url);
  await addModule.call(this, URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
};
window.tapped = [];
const Node = AudioWorkletNode;
window.AudioWorkletNode = class extends Node {
  constructor(context, name, options) {
    super(context, name, options);
    if (name !== "tickrt-player") return;
    const tap = new Node(context, "tap", { numberOfOutputs: 0 });
    tap.port.onmessage = ({ data }) => { if (data.length) window.tapped.push(data); };
    super.connect(tap);
  }
};
"""


def play(page: Any) -> None:
    """Click on play and wait until it is heard."""
    page.click("#play")
    page.wait_for_function(IS_HEARD)
