/** The MIDI ports of this computer: opened once, when they are first asked for, and shared by all that use them. */

/** @typedef {{port: string, data: Uint8Array, timeMs: number}} MidiMessage times as of performance.now() */

export const NO_WEB_MIDI = isSecureContext
  ? "This browser has no Web MIDI. Chrome, Edge and Firefox have it."
  : "MIDI needs https, or http on localhost.";

/** Reports `message` with a MidiMessage in `detail`, and `change` where a port comes or goes. */
export class MidiPorts extends EventTarget {
  /** @type {MIDIAccess | null} */ #access = null;
  /** @type {Promise<void> | null} */ #opening = null;

  /** Whether the browser has MIDI ports at all. */
  get areOffered() {
    return Boolean(navigator.requestMIDIAccess);
  }

  /** Ask for the ports. Raises an Error with a sentence where they cannot be had. */
  async open() {
    if (!this.areOffered) throw new Error(NO_WEB_MIDI);
    this.#opening ??= this.#open();
    try {
      await this.#opening;
    } catch (error) {
      this.#opening = null; // It may be allowed the next time.
      throw error;
    }
  }

  async #open() {
    const access = await navigator.requestMIDIAccess();
    const listen = () => {
      for (const [port, input] of access.inputs) input.onmidimessage = (event) => this.#receive(port, event);
      this.dispatchEvent(new Event("change"));
    };
    access.onstatechange = listen;
    this.#access = access;
    listen();
  }

  /** @param {string} port @param {MIDIMessageEvent} event */
  #receive(port, { data, timeStamp }) {
    if (!data?.length) return;
    /** @type {MidiMessage} */
    const detail = { port, data, timeMs: timeStamp || performance.now() };
    this.dispatchEvent(new CustomEvent("message", { detail }));
  }

  /** Names of the inputs, by id. @returns {[string, string][]} */
  get inputs() {
    return [...(this.#access?.inputs ?? [])].map(([id, port]) => [id, port.name || id]);
  }

  /** Names of the outputs, by id. @returns {[string, string][]} */
  get outputs() {
    return [...(this.#access?.outputs ?? [])].map(([id, port]) => [id, port.name || id]);
  }

  /** @param {string} id @returns {MIDIOutput | null} */
  output(id) {
    return this.#access?.outputs?.get(id) ?? null;
  }
}
