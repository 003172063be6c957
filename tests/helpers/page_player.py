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
INTERRUPTED = "sound interrupted: touch to go on"
# The contexts of the page; `system.take()` stops the newest one, which stays so until `system.give()`, or as long as
# `system.asksForTouch` and nothing is touched. `isSilent`: it says that it runs meanwhile, as with a device that hangs.
SYSTEM = """
const contexts = (window.contexts = []);
const system = (window.system = { isTaken: false, isSilent: false, asksForTouch: false });
const Context = window.AudioContext; // without window. it is another document's in Firefox
const { resume } = Context.prototype;
const state = Object.getOwnPropertyDescriptor(window.BaseAudioContext.prototype, "state").get;
let touchedMs = -Infinity;
for (const type of ["pointerdown", "keydown"]) {
  window.addEventListener(type, () => (touchedMs = performance.now()), { capture: true });
}
window.AudioContext = class extends Context {
  taken = false;
  constructor(options) {
    super(options);
    contexts.push(this);
    this.addEventListener("statechange", (event) => {
      if (this.taken && system.isSilent) event.stopImmediatePropagation();
    });
  }
  get state() { return this.taken && system.isSilent ? "running" : state.call(this); }
  async resume() {
    const isTouched = performance.now() < touchedMs + 100;
    if (this.taken && (system.isTaken || (system.asksForTouch && !isTouched))) {
      throw new DOMException("the system has the sound", "InvalidStateError");
    }
    this.taken = false;
    await resume.call(this);
  }
};
system.take = () => {
  system.isTaken = contexts.at(-1).taken = true;
  contexts.at(-1).suspend(); // not awaited: Firefox may settle the promise only when the context runs again
};
system.give = () => (system.isTaken = false);
"""


def wait_for_status(page: Any, pattern: str) -> None:
    """Until the page says what matches."""
    page.wait_for_function(
        "(pattern) => new RegExp(pattern).test(document.getElementById('status').textContent)", arg=pattern
    )


def play(page: Any) -> None:
    """Click on play and wait until it is heard."""
    page.click("#play")
    page.wait_for_function(IS_HEARD)
