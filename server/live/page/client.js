/**
 * A live session in pages and programs of other people: what the page plays with, as one module (`/page/tickrt.js`, its
 * types in `/page/tickrt.d.ts`; server/live/client_module.py joins the modules of the page).
 */

import { Player } from "./audio/player.js";
import { AudioRing } from "./audio/ring.js";
import { Connection } from "./connection.js";

/**
 * @typedef {import("./connection.js").Message} Message
 * @typedef {import("./connection.js").Chunk} Chunk
 * @typedef {string | [string, number] | {text: string, weight?: number}} Prompt
 * @typedef {{key?: string, prompts?: Prompt | Prompt[], controls?: Record<string, any>, mode?: "loop" | "extend",
 *   [member: string]: any}} LiveOptions
 */

/** Of each item of audio(). */ const READ_S = 0.1;
/** A session that is resumed may begin so much before what was read, which then goes on. */ const RESUMED_S = 2;

export class Live {
  #key;
  /** Its members of `open`, as they are now. @type {Message} */ #now;
  /** @type {Map<string, Set<(value: any) => void>>} */ #listeners = new Map();
  /** @type {AudioRing | null} */ #ring = null;
  #arrived = () => {};
  #isClosed = false;
  #isPlaying = false;
  /** @type {(ready: Message) => void} */ #resolveOpened = () => {};
  /** @type {(error: Error) => void} */ #rejectOpened = () => {};
  /** The newest `ready` of the server. @type {Message | null} */ ready = null;

  /**
   * Open a session. It waits, without work for the server, until play() or audio().
   * @param {string | URL} address of the server: scheme, host and port
   * @param {LiveOptions} [options] key, prompts, controls, and further members of the message `open`
   */
  constructor(address, { key = "", prompts = "", controls = {}, ...open } = {}) {
    this.#key = key;
    this.#now = { type: "open", prompts: promptItems(prompts), controls, ...open };
    this.opened = new Promise((resolve, reject) => {
      this.#resolveOpened = resolve;
      this.#rejectOpened = reject;
    });
    this.opened.catch(() => {}); // Those that wait for it are told.
    this.player = new Player({
      status: (status) => {
        if (this.#isPlaying) this.connection.ack(status.playheadSample, status.worstLeadS);
        this.#tell("played", status);
      },
      heard: (firstSeq, fullSeq) => this.#tell("heard", { firstSeq, fullSeq }),
      interrupted: (isInterrupted) => {
        this.connection.send({ type: isInterrupted ? "pause" : "play" });
        this.#tell("interrupted", isInterrupted);
      },
    });
    const store = { getItem: () => this.#key || null, setItem: () => {} };
    this.connection = new Connection(
      {
        open: () => ({ ...this.#now, paused: !this.#isPlaying }),
        status: (status, text) => this.#showStatus(status, text),
        ready: (ready) => this.#begin(ready),
        audio: (chunk) => this.#take(chunk),
        applied: (message) => this.#tell("applied", message),
        state: (message) => this.#follow(message),
        changed: (message) => this.#tell("changed", message),
        notes: (message) => this.#tell("notes", message),
        canvas: (message) => this.#tell("canvas", message),
        plan: (message) => this.#tell("plan", message),
        problem: (problem) => this.#tell("problem", problem),
        refused: (problem) => this.#refuse(problem),
        isAtBar: () => false,
      },
      { address: String(address), store },
    );
    this.connection.restart();
  }

  /**
   * Call `listener` with every message of a kind: `ready`, `applied`, `state`, `changed`, `notes`, `canvas`, `plan`, `problem`;
   * and `audio` (each chunk), `played`, `heard` and `interrupted` (of the speakers: the system has taken the sound away, or given it
   * back), `status` (of the connection).
   * @param {string} kind
   * @param {(value: any) => void} listener
   * @returns {() => void} call it no more
   */
  on(kind, listener) {
    const listeners = this.#listeners.get(kind) ?? new Set();
    this.#listeners.set(kind, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  /**
   * Turn controls; null is the default. Before the session is open, they are those that it opens with. Returns the `seq` of the change, which `applied` and `heard` name.
   * @param {Record<string, any>} values
   * @param {{ramp_ms?: number, at?: any}} [how]
   */
  set(values, how = {}) {
    const controls = { ...this.#now.controls, ...values };
    this.#now.controls = Object.fromEntries(Object.entries(controls).filter(([, value]) => value !== null));
    return this.connection.change("set", { values, ...how });
  }

  /**
   * Replace all prompts.
   * @param {Prompt | Prompt[]} prompts
   * @param {{blend?: "velocity" | "tokens", ramp_ms?: number, at?: any}} [how]
   */
  prompts(prompts, how = {}) {
    const items = promptItems(prompts);
    this.#now.prompts = items;
    if (how.blend) this.#now.blend = how.blend;
    return this.connection.change("prompts", { items, ...how });
  }

  /**
   * Send another message that changes the sound: band, seek, mute, notes, source, adapter, set_plan, ...
   * Throws before the session is open: wait for `opened`.
   * @param {string} type
   * @param {Record<string, any>} members
   * @param {ArrayBuffer} [binary] the binary message that follows
   */
  change(type, members = {}, binary) {
    if (!this.ready) throw new Error(`there is no session yet for ${type}: await live.opened`);
    return this.connection.change(type, members, binary);
  }

  /** Play on the speakers of a browser. The first call has to come from a click or a key: browsers ask for that. */
  async play() {
    if (!globalThis.AudioContext) throw new Error("there are no speakers here: read audio() instead");
    this.#isPlaying = true;
    await this.player.play(true);
    this.connection.send({ type: "play" });
  }

  /** Pause; nothing is generated or sent meanwhile. */
  async pause() {
    this.#isPlaying = false;
    this.connection.send({ type: "pause" });
    await this.player.play(false);
  }

  /**
   * What the session plays, 0.1 s at a time, at the pace of the reader: a Float32Array per channel. For programs without
   * speakers, in place of play(). It ends with close(). Throws where the session is refused.
   * @returns {AsyncGenerator<Float32Array[], void, void>}
   */
  async *audio() {
    const { sample_rate_hz, channels, next_sample } = await this.opened;
    const ring = (this.#ring ??= new AudioRing(sample_rate_hz, channels, 10, next_sample));
    const samples = Math.round(READ_S * sample_rate_hz);
    this.#isPlaying = true;
    this.connection.send({ type: "play" });
    for (;;) {
      // Until enough of it has arrived, or the session has ended.
      while (!this.#isClosed && ring.lead < samples) await new Promise((arrived) => (this.#arrived = () => arrived(null)));
      if (this.#isClosed) return;
      const planes = Array.from({ length: channels }, () => new Float32Array(samples));
      ring.read(planes);
      this.#acknowledge(ring);
      yield planes;
    }
  }

  /**
   * Upload audio; returns its id, for `change("source", { id, strength })`. Throws what the server says.
   * @param {Blob} file
   * @returns {Promise<string>}
   */
  async upload(file) {
    const headers = { "content-type": "application/octet-stream", ...this.connection.headers() };
    const response = await fetch(this.connection.url("v1/sources"), { method: "POST", body: file, headers });
    const answer = await response.json();
    if (!response.ok) throw problemError(answer);
    return answer.id;
  }

  /** The stems of what plays, as a zip archive, of models that have them. Throws what the server says. */
  stems() {
    return this.connection.stems();
  }

  /** End the session. */
  close() {
    this.#isClosed = true;
    this.#isPlaying = false;
    this.connection.close();
    this.player.play(false);
    this.#rejectOpened(new Error("the session was closed"));
    this.#arrived();
  }

  /** @param {string} kind @param {any} value */
  #tell(kind, value) {
    for (const listener of this.#listeners.get(kind) ?? []) listener(value);
  }

  /** @param {Message} ready */
  #begin(ready) {
    this.ready = ready;
    const goesOn = ready.resumed && !ready.notice;
    this.player.clear(ready.sample_rate_hz, ready.channels, ready.next_sample, goesOn);
    if (this.#ring && !(goesOn && this.#isNear(this.#ring, ready.next_sample))) this.#ring.clear(ready.next_sample);
    if (this.#isPlaying && !this.player.isInterrupted) this.connection.send({ type: "play" });
    this.#tell("ready", ready);
    this.#resolveOpened(ready);
  }

  /** @param {AudioRing} ring */
  #acknowledge(ring) {
    this.connection.ack(ring.playheadSample, ring.takeWorstLeadS());
  }

  /** A server that has resumed the session does not know what was read since. @param {Message} state */
  #follow(state) {
    if (this.#ring) this.#acknowledge(this.#ring);
    this.#tell("state", state);
  }

  /** @param {AudioRing} ring @param {number} nextSample */
  #isNear(ring, nextSample) {
    return nextSample <= ring.endSample && nextSample >= ring.playheadSample - RESUMED_S * ring.sampleRateHz;
  }

  /** @param {Chunk} chunk */
  #take(chunk) {
    this.#tell("audio", chunk);
    if (this.#ring) {
      this.#ring.write(chunk.startSample, chunk.pcm, chunk.firstSeq, chunk.fullSeq);
      this.#arrived();
    } else {
      this.player.write(chunk);
    }
  }

  /** A key that is missing or wrong ends it: nothing asks for another one. @param {string} status @param {string} text */
  #showStatus(status, text) {
    this.#tell("status", { status, text });
    if (status === "key") this.#end(new Error(text || "The server needs a key."));
  }

  /** @param {Message} problem */
  #refuse(problem) {
    this.#tell("problem", problem);
    this.#end(problemError(problem));
  }

  /** @param {Error} error */
  #end(error) {
    this.#rejectOpened(error);
    this.close();
  }
}

/** @param {Record<string, any>} problem */
function problemError(problem) {
  return new Error([problem.detail ?? problem.title, problem.fix].filter(Boolean).join(" — "));
}

/** @param {Prompt | Prompt[]} prompts */
function promptItems(prompts) {
  const isPair = Array.isArray(prompts) && prompts.length === 2 && typeof prompts[1] === "number";
  const items = /** @type {Prompt[]} */ (Array.isArray(prompts) && !isPair ? prompts : [prompts]);
  return items.map((item) => {
    if (typeof item === "string") return { text: item, weight: 1 };
    return Array.isArray(item) ? { text: item[0], weight: item[1] } : { weight: 1, ...item };
  });
}
