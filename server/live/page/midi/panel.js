/** The MIDI panel: notes and clock to an output, the clock of others, a keyboard, and the passage as files. */

import { download } from "../presets.js";
import { element, field, find } from "../widgets/element.js";
import { ClockIn, ClockOut } from "./clock.js";
import { midiFile } from "./file.js";
import { Keyboard } from "./keyboard.js";
import { NoteOut } from "./note_out.js";
import { NO_BEAT } from "./passage.js";
import { NO_WEB_MIDI } from "./ports.js";
import { Synth } from "./synth.js";

/** Messages are handed to a port at most so long before they are due. */
const AHEAD_S = 0.1;
/** How often a session is told of the clock that it follows. */
const TELL_MS = 1000;
/** Keys that are pressed within this are a chord. */
const CHORD_MS = 80;
const DRUM_CHANNEL = 10;
const CHANNELS = 16;
const COMPUTER = "computer";
const CHANNELS_ITEM = "tickrt.midi.channels";
const KEYBOARD_FIELDS = ["keys", "keys-layer", "keys-mode", "keys-bars", "keys-quantize", "keys-sound", "keys-forget"];
const NO_NOTES = "This model does not tell its notes.";
const NO_STEMS = "This model does not tell its layers apart.";

/**
 * @typedef {{connection: import("../connection.js").Connection, player: import("../audio/player.js").Player,
 *   ports: import("./ports.js").MidiPorts, passage: import("./passage.js").Passage,
 *   notify: (text: string, isNote?: boolean) => void, isPlaying: () => boolean}} Parts
 */

export class MidiPanel {
  /** Of which layers channels are offered, as JSON. */ #offeredLayers = "";
  #hadBeat = false;
  /** Whether stems are being made. */ #makesStems = false;
  /** @type {MIDIOutput | null} */ #output = null;
  #noteOut = new NoteOut();
  #clockOut = new ClockOut();
  #clockIn = new ClockIn();
  #synth = new Synth();
  /** Sample at which the music continues elsewhere. @type {number | null} */ #jumpsAt = null;
  /** When the newest message of the clock is due. */ #clockMs = 0;
  /** The newest beat of a clock that the session was told of. */ #toldMs = 0;
  #chordTimer = 0;
  /** Pitches of a chord, also of keys that are up again. @type {Set<number>} */ #chord = new Set();

  /** @param {Parts} parts */
  constructor({ connection, player, ports, passage, notify, isPlaying }) {
    this.connection = connection;
    this.player = player;
    this.ports = ports;
    this.passage = passage;
    this.notify = notify;
    this.isPlaying = isPlaying;
    this.keyboard = new Keyboard({
      struck: (pitch, velocity) => this.#struck(pitch, velocity),
      released: (note) => this.#released(note),
    });
    ports.addEventListener("change", () => this.#offerPorts());
    ports.addEventListener("message", (event) => this.#receive(/** @type {CustomEvent} */ (event).detail));
    passage.addEventListener("begin", () => this.#begin());
    passage.addEventListener("state", () => this.#state());
    this.#listen();
    this.#offerPorts();
    this.#begin();
  }

  #listen() {
    const on = (/** @type {string} */ id, /** @type {() => void} */ action, type = "change") =>
      find(id).addEventListener(type, action);
    on("midi-out", () => this.#choose());
    on("clock-in", () => (this.#clockIn = new ClockIn()));
    on("keys", () => this.#chooseKeys());
    on("keys-layer", () => this.#showLayer());
    on("keys-mode", () => this.#show());
    on("keys-forget", () => this.#forget(), "click");
    on("midi-save", () => this.#save(), "click");
    on("stems-save", () => this.#saveStems(), "click");
    addEventListener("pagehide", () => this.silence());
  }

  /** Show it or not; ask for the ports where it is shown. */
  async toggle() {
    const isOpen = find("midi-panel").hidden;
    find("midi-panel").hidden = !isOpen;
    find("midi-panel-button").setAttribute("aria-expanded", String(isOpen));
    if (!isOpen || !this.ports.areOffered) return;
    try {
      await this.ports.open();
    } catch (error) {
      this.notify(`MIDI cannot be used: ${/** @type {Error} */ (error).message}`, true);
    }
  }

  /** A session begins, or goes on in a new epoch. */
  #begin() {
    const { layers, notes } = this.passage;
    this.#jumpsAt = null;
    this.#noteOut.clear();
    this.#clockOut.clear(notes.rateHz);
    const isOther = this.#offeredLayers !== JSON.stringify(layers);
    this.#offeredLayers = JSON.stringify(layers);
    if (isOther) this.#offerLayers();
    this.#show();
  }

  /** The music continues elsewhere from a sample on, or (null) at once. @param {number | null} sample */
  jump(sample) {
    this.#jumpsAt = sample ?? this.#playhead;
  }

  #state() {
    if (this.#beat) this.#clockOut.line(this.#beat);
    if (this.#hadBeat !== (this.#beat !== null)) this.#show();
  }

  get #beat() {
    return this.passage.beat;
  }

  /** The sample that is heard now. */
  get #playhead() {
    return this.player.sampleAt(performance.now());
  }

  /** Whether something is played; what of a server that is gone is left is played to its end. */
  get #isHeard() {
    return this.isPlaying() && this.player.isRunning && (this.connection.isLive || this.player.leadS > 0);
  }

  // To the output.

  /** Hand on what is due, and follow the clock of others: 20 times a second. */
  tick() {
    if (!this.#isHeard) return this.silence();
    const now = this.#playhead;
    const until = now + AHEAD_S * this.passage.notes.rateHz;
    const jumpsAt = this.#jumpsAt !== null && this.#jumpsAt < until ? this.#jumpsAt : null;
    if (jumpsAt !== null) this.#jumpsAt = null;
    if (this.#output) this.#sendNotes(now, until, jumpsAt);
    this.#sendClock(now, until, jumpsAt);
    this.#followClock();
  }

  /** @param {number} now @param {number} until @param {number | null} jumpsAt */
  #sendNotes(now, until, jumpsAt) {
    const ended = jumpsAt === null ? [] : this.#noteOut.stop(jumpsAt);
    const due = this.#noteOut.due(this.passage.notes, (layer) => this.#channel(layer), now, until);
    for (const { data, sample } of [...ended, ...due]) this.#sendAt(data, this.player.timeMs(sample));
  }

  /** @param {number} now @param {number} until @param {number | null} jumpsAt */
  #sendClock(now, until, jumpsAt) {
    const isWanted = this.#output && this.#beat && field("clock-out").checked;
    if (jumpsAt !== null) this.#sendPulses(this.#clockOut.until(jumpsAt));
    if (!isWanted || jumpsAt !== null) this.#stopClock();
    if (!isWanted) return;
    const ahead = 0.5 * AHEAD_S * this.passage.notes.rateHz;
    if (!this.#clockOut.isOn) this.#clockOut.start(Math.max(jumpsAt ?? 0, now + ahead));
    this.#sendPulses(this.#clockOut.until(until));
  }

  /** @param {import("./clock.js").Due[]} pulses */
  #sendPulses(pulses) {
    for (const { data, sample } of pulses) {
      this.#clockMs = this.player.timeMs(sample);
      this.#sendAt(data, this.#clockMs);
    }
  }

  /** It stops behind the last pulse that was handed on. */
  #stopClock() {
    for (const data of this.#clockOut.stop()) this.#sendAt(data, this.#clockMs + 1);
  }

  /** @param {number[]} data @param {number} dueMs */
  #sendAt(data, dueMs) {
    // A port that was unplugged takes nothing.
    if (this.#output?.state !== "disconnected") this.#output?.send(data, Math.max(performance.now(), dueMs));
  }

  /** End all that sounds at the output, and its clock. */
  silence() {
    if (!this.#output) return;
    const now = this.#playhead;
    for (const { data, sample } of this.#noteOut.stop(now)) this.#sendAt(data, this.player.timeMs(sample));
    this.#noteOut.clear(now);
    this.#stopClock();
  }

  // What others play.

  /** @param {import("./ports.js").MidiMessage} message */
  #receive(message) {
    if (message.port === field("clock-in").value) this.#clockIn.receive(message.data, message.timeMs);
    this.keyboard.receive(message);
  }

  #followClock() {
    const { bpm, beatMs, pulseMs, isRunning } = this.#clockIn;
    const isStopped = isRunning === false;
    find("clock-tempo").textContent = bpm === null ? "" : `${bpm.toFixed(1)} bpm${isStopped ? ", stopped" : ""}`;
    // A clock that ran already tells its tempo alone, until it starts.
    const timeMs = beatMs ?? pulseMs;
    if (bpm === null || isStopped || !this.#beat || timeMs < this.#toldMs + TELL_MS) return;
    const sample = beatMs === null ? null : Math.round(this.player.sampleAt(beatMs));
    if ((sample !== null && sample < 0) || !this.connection.isLive) return;
    this.#toldMs = timeMs;
    this.connection.change("clock", { bpm: Number(bpm.toFixed(2)), sample });
  }

  /** @param {number} pitch @param {number} velocity */
  #struck(pitch, velocity) {
    const { context } = this.player;
    const isDrum = Boolean(this.#playedLayer?.is_percussion);
    if (context && field("keys-sound").checked) this.#synth.strike(context, pitch, velocity, isDrum);
    if (!this.#isHold) return;
    this.#chord = new Set([...this.#chord, ...this.keyboard.held]);
    clearTimeout(this.#chordTimer);
    this.#chordTimer = setTimeout(() => {
      this.#play({ mode: "hold", items: [...this.#chord].map((held) => ({ pitch: held, velocity })) });
      this.#chord.clear();
    }, CHORD_MS);
  }

  /** @param {import("./keyboard.js").PlayedNote} note */
  #released({ pitch, velocity, beganMs, endedMs }) {
    this.#synth.release(pitch);
    const at = this.player.sampleAt(beganMs) / this.passage.notes.rateHz;
    if (this.#isHold || !this.#isHeard || at < 0) return;
    this.#play({
      mode: "echo",
      layer: field("keys-layer").value || null,
      at,
      items: [{ pitch, velocity, seconds: Math.max(0.01, (endedMs - beganMs) / 1000) }],
      bars: Number(field("keys-bars").value),
      quantize: field("keys-quantize").checked,
    });
  }

  /** @param {Record<string, any>} message */
  #play(message) {
    if (this.#canPlay && this.connection.isLive) this.connection.change("notes", message);
  }

  #forget() {
    this.#play({ mode: this.#isHold ? "hold" : "echo", items: [] });
  }

  // What is shown.

  get #canPlay() {
    return this.passage.takesNotes && this.passage.layers.length > 0 && (this.passage.isLoop || this.#beat !== null);
  }

  get #isHold() {
    return field("keys-mode").value === "hold";
  }

  get #playedLayer() {
    return this.passage.layers.find((layer) => layer.name === field("keys-layer").value);
  }

  /** What can be used in this session, and why the rest cannot. */
  #show() {
    const [hasBeat, hasNotes, hasPorts] = [this.#beat !== null, this.passage.layers.length > 0, this.ports.areOffered];
    this.#hadBeat = hasBeat;
    enable(["midi-out"], hasPorts && (hasNotes || hasBeat));
    enable(["clock-out", "clock-in"], hasPorts && hasBeat);
    enable(KEYBOARD_FIELDS, this.#canPlay);
    enable(["midi-save"], hasNotes);
    enable(["stems-save"], this.passage.hasStems && !this.#makesStems);
    explain("midi-out-note", !hasPorts ? NO_WEB_MIDI : !hasNotes ? NO_NOTES : !hasBeat ? NO_BEAT : "");
    explain("clock-in-note", !hasPorts ? NO_WEB_MIDI : !hasBeat ? NO_BEAT : "");
    const isTaken = this.passage.takesNotes && hasNotes;
    explain("keys-note", !isTaken ? "This model does not play notes of others." : !this.#canPlay ? NO_BEAT : "");
    explain("midi-save-note", hasNotes ? "" : NO_NOTES);
    explain("stems-save-note", !this.passage.hasStems ? NO_STEMS : this.#makesStems ? "Making stems …" : "");
    this.#showMode();
  }

  #showMode() {
    const [echo, hold] = /** @type {HTMLSelectElement} */ (find("keys-mode")).options;
    echo.textContent = this.passage.isLoop ? "stays in the loop" : "comes back";
    hold.disabled = hold.hidden = this.passage.isLoop;
    if (this.passage.isLoop) field("keys-mode").value = "echo";
    find("keys-bars-field").hidden = this.passage.isLoop || this.#isHold;
    find("keys-quantize-field").hidden = this.#isHold || !this.#beat;
    find("keys-forget").hidden = !this.passage.isLoop && !this.#isHold;
  }

  #offerPorts() {
    offer("midi-out", [["", "none"], ...this.ports.outputs]);
    offer("clock-in", [["", "none"], ...this.ports.inputs]);
    offer("keys", [["", "none"], [COMPUTER, "computer keys"], ...this.ports.inputs]);
    this.#choose();
    this.#chooseKeys();
  }

  #choose() {
    const output = this.ports.output(field("midi-out").value);
    if (output !== this.#output) this.silence();
    this.#output = output;
    find("midi-channels").hidden = !output;
  }

  #chooseKeys() {
    const chosen = field("keys").value;
    this.keyboard.releaseAll();
    this.keyboard.port = chosen;
    this.keyboard.hasComputerKeys = chosen === COMPUTER;
    find("keys-help").hidden = chosen !== COMPUTER;
    // The keys play, instead of choosing in the list.
    if (chosen === COMPUTER) find("keys").blur();
  }

  #offerLayers() {
    const kept = storedChannels();
    const texts = ["off", ...Array.from({ length: CHANNELS }, (_, i) => String(i + 1))];
    const free = texts.map((_, i) => i).filter((channel) => channel && channel !== DRUM_CHANNEL);
    const fields = this.passage.layers.map((layer) => {
      const channel = layer.is_percussion ? DRUM_CHANNEL : (free.shift() ?? 0);
      const label = element("label", "field", layer.name);
      const select = /** @type {HTMLSelectElement} */ (element("select"));
      select.dataset.layer = layer.name;
      select.append(...texts.map((text, i) => new Option(text, String(i))));
      select.value = String(kept[layer.name] ?? channel);
      select.addEventListener("change", () => this.#keepChannels());
      label.append(select);
      return label;
    });
    find("midi-channels").replaceChildren(...fields);
    const names = this.passage.layers.map((layer) => layer.name);
    offer("keys-layer", [["", "by pitch"], ...names.map((name) => /** @type {[string, string]} */ ([name, name]))]);
    if (names.includes("melody")) field("keys-layer").value = "melody";
    this.#showLayer();
  }

  /** Channel of each layer, 1 to 16; 0: off. @returns {Record<string, number>} */
  get #channels() {
    const selects = /** @type {NodeListOf<HTMLSelectElement>} */ (find("midi-channels").querySelectorAll("select"));
    return Object.fromEntries([...selects].map((select) => [select.dataset.layer ?? "", Number(select.value)]));
  }

  #keepChannels() {
    localStorage.setItem(CHANNELS_ITEM, JSON.stringify(this.#channels));
  }

  /** As in messages, 0 to 15; null: off. @param {string} layer */
  #channel(layer) {
    const channel = this.#channels[layer];
    return channel ? channel - 1 : null;
  }

  /** One of its own for a layer that is off, as in messages. @param {string} name */
  #freeChannel(name) {
    const off = this.passage.layers.filter((layer) => this.#channel(layer.name) === null && !layer.is_percussion);
    const place = off.findIndex((layer) => layer.name === name);
    if (place < 0) return DRUM_CHANNEL - 1;
    const used = [DRUM_CHANNEL, ...Object.values(this.#channels)];
    return Array.from({ length: CHANNELS }, (_, i) => i).filter((channel) => !used.includes(channel + 1))[place] ?? 0;
  }

  #showLayer() {
    const layer = this.#playedLayer;
    this.keyboard.startAt(layer ? Math.min(...layer.keys) + (layer.is_percussion ? 0 : 6) : 60);
  }

  #save() {
    const notes = this.passage.placed.passed;
    if (!notes.length) return this.notify("There are no notes yet: press play.");
    const { bpm, beats, sample } = this.#beat ?? { bpm: 120, beats: 4, sample: 0 };
    const barS = (beats * 60) / bpm;
    const { isLoop, loopStartS, position, notes: all } = this.passage;
    const lineS = position.seconds + (sample - position.sample) / all.rateHz;
    const firstS = notes.reduce((least, { startS }) => Math.min(least, startS), Infinity);
    const startS = isLoop ? loopStartS : lineS - Math.ceil((lineS - firstS) / barS - 0.02) * barS;
    const channelOf = (/** @type {string} */ layer) => this.#channel(layer) ?? this.#freeChannel(layer);
    download(midiFile(notes, { startS, bpm, beats, channelOf }), "tickrt.mid");
  }

  async #saveStems() {
    this.#makesStems = true;
    this.#show();
    try {
      download(await this.connection.stems(), "tickrt-stems.zip");
    } catch (error) {
      this.notify(`The stems cannot be saved: ${/** @type {Error} */ (error).message}`);
    } finally {
      this.#makesStems = false;
      this.#show();
    }
  }
}

/** @returns {Record<string, number>} */
function storedChannels() {
  try {
    return JSON.parse(localStorage.getItem(CHANNELS_ITEM) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {string[]} ids @param {boolean} isUsable */
function enable(ids, isUsable) {
  for (const id of ids) field(id).disabled = !isUsable;
}

/** Say why something cannot be used; nothing where it can. @param {string} id @param {string} reason */
function explain(id, reason) {
  find(id).textContent = reason;
  find(id).hidden = !reason;
}

/**
 * Options of a select, which keeps its choice where it is still there.
 * @param {string} id
 * @param {[string, string][]} options
 */
function offer(id, options) {
  const select = /** @type {HTMLSelectElement} */ (find(id));
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  select.value = options.some(([value]) => value === chosen) ? chosen : options[0][0];
}
