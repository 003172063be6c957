/**
 * The live protocol (server/live/PROTOCOL.md): one WebSocket that opens a session and resumes it after a loss.
 *
 * @typedef {{type: string, [member: string]: any}} Message
 * @typedef {{epoch: number, startSample: number, firstSeq: number, fullSeq: number, pcm: Float32Array}} Chunk
 * @typedef {{getItem: (name: string) => string | null, setItem: (name: string, value: string) => void}} Store
 * @typedef {"connecting" | "live" | "waiting" | "key"} Status
 * @typedef {{
 *   open: () => Message, status: (status: Status, text: string) => void, audio: (chunk: Chunk) => void,
 *   ready: (message: Message) => void, applied: (message: Message) => void, state: (message: Message) => void,
 *   changed: (message: Message) => void,
 *   notes: (message: Message) => void, canvas: (message: Message) => void, plan: (message: Message) => void,
 *   problem: (message: Message) => void, refused: (problem: Message) => void, isAtBar: () => boolean,
 * }} Handlers
 */

const SUBPROTOCOL = "tickrt.live.v1";
const HEADER_BYTES = 28;
const FIRST_RETRY_MS = 250;
const LONGEST_RETRY_MS = 5000;
const JITTER_MS = 100;
/** A server that plays says something four times a second; one that is silent for so long is frozen or cut off. */
const SILENCE_MS = 3000;
const WATCH_MS = 500;
const KEY_ITEM = "tickrt.key";
const SESSION_ITEM = "tickrt.session";
/** Changes that can begin with a bar. */
const AT_BAR = ["set", "prompts", "source", "structure", "timbre", "band", "mute", "seek"];

export class Connection {
  /** @type {WebSocket | null} */ #socket = null;
  /** @type {{id: string, token: string} | null} */ #session = null;
  /** @type {Map<string, Message>} newest of each kind, sent after the next `ready` */ #unsent = new Map();
  /** Addresses of the servers, the one in use first. @type {string[]} */ #addresses;
  #heardMs = 0;
  #ackedMs = 0;
  #isPlaying = false;
  #attempts = 0;
  #leastDelayMs = 0;
  #refusal = "";
  #retryTimer = 0;
  #seq = 0;
  #epoch = -1;
  #isClosed = false;
  #receivedBytes = 0;
  isLive = false;

  /**
   * @param {Handlers} handlers isAtBar: whether changes begin with the next bar that can be reached
   * @param {{address?: string, store?: Store}} [place] the server, and what keeps the key and the session: those of the page
   */
  constructor(handlers, { address = location.href, store = sessionStorage } = {}) {
    this.handlers = handlers;
    this.address = address;
    this.store = store;
    this.#addresses = [address];
    this.watching = setInterval(() => this.#watch(), WATCH_MS);
  }

  /** Give up a connection on which nothing comes while audio is played. */
  #watch() {
    const nowMs = performance.now();
    const isSilent = nowMs > this.#heardMs + SILENCE_MS && nowMs < this.#ackedMs + 2 * WATCH_MS;
    if (!this.isLive || !this.#isPlaying || !isSilent) return;
    this.#socket?.close();
    this.#socket = null;
    this.#lost();
  }

  get key() {
    return this.store.getItem(KEY_ITEM) ?? "";
  }

  /** @param {string} key */
  setKey(key) {
    this.store.setItem(KEY_ITEM, key);
    this.#attempts = 0;
    this.#connect();
  }

  /** Go on with the session that this tab had before the page was loaded again; open one where there is none. */
  begin() {
    const kept = JSON.parse(this.store.getItem(SESSION_ITEM) ?? "null");
    this.#session = kept?.session ?? null;
    // The session goes on counting.
    this.#seq = Math.max(this.#seq, kept?.seq ?? 0);
    this.#attempts = 0;
    this.#connect();
  }

  /** Open a new session; one that is open ends. */
  restart() {
    this.end();
    this.#attempts = 0;
    this.#connect();
  }

  /** End the session and the connection. */
  end() {
    if (this.isLive) this.#post({ type: "close" });
    this.#session = null;
    this.#drop();
  }

  /** The page is left, or loaded again: a message would not arrive any more, but a request does. */
  leave() {
    if (this.#session && this.#epoch >= 0) {
      const path = `v1/sessions/${this.#session.id}/epochs/${this.#epoch}`;
      fetch(this.url(path), { method: "DELETE", headers: this.headers(), keepalive: true });
    }
    this.store.setItem(SESSION_ITEM, JSON.stringify({ session: this.#session, seq: this.#seq }));
    this.#drop();
  }

  /** The stems of what plays, as a zip archive. Throws what the server says. */
  async stems() {
    if (!this.#session) throw new Error("there is no session");
    const response = await fetch(this.url(`v1/sessions/${this.#session.id}/stems`), { headers: this.headers() });
    if (response.ok) return response.blob();
    const problem = await response.json().catch(() => ({ detail: response.statusText }));
    throw new Error([problem.detail, problem.fix].filter(Boolean).join(" — "));
  }

  /** The session and this connection are not used any more. */
  close() {
    this.#isClosed = true;
    clearInterval(this.watching);
    this.end();
  }

  /** The address of a path of the server. @param {string} path */
  url(path) {
    return new URL(path, this.address);
  }

  /** Headers of an HTTP request to this server. */
  headers() {
    return this.key ? { authorization: `Bearer ${this.key}` } : undefined;
  }

  /**
   * Send a message that changes the sound; returns its seq. While there is no connection the newest of each kind waits.
   * @param {string} type
   * @param {Record<string, any>} members
   * @param {ArrayBuffer} [binary] the binary message that follows
   */
  change(type, members, binary) {
    const seq = ++this.#seq;
    const message = { type, seq, ...members };
    const isAtBar = AT_BAR.includes(type) && this.handlers.isAtBar();
    if (this.isLive) this.#post(isAtBar ? { ...message, at: "bar" } : message, binary);
    else if (!binary) this.#keep(type, message);
    return seq;
  }

  /** Send a message without a seq, or nothing while there is no connection. @param {Message} message */
  send(message) {
    if (!this.isLive) return;
    this.#post(message);
    if (message.type !== "play") return;
    // The server answers, unless it is gone since it was heard last, as after a sleep.
    this.#isPlaying = true;
    this.#heardMs = performance.now();
  }

  /** @param {number} playheadSample @param {number} worstLeadS */
  ack(playheadSample, worstLeadS) {
    this.#ackedMs = performance.now();
    const client_time_s = this.#ackedMs / 1000;
    const received_bytes = this.#receivedBytes;
    this.send({
      type: "ack",
      playhead_sample: playheadSample,
      worst_lead_s: worstLeadS,
      received_bytes,
      client_time_s,
    });
  }

  /** @param {string} type @param {Message} message */
  #keep(type, message) {
    const older = this.#unsent.get(type);
    const values = { ...older?.values, ...message.values };
    this.#unsent.delete(type);
    this.#unsent.set(type, type === "set" ? { ...message, values } : message);
  }

  /** @param {Message} message @param {ArrayBuffer} [binary] */
  #post(message, binary) {
    this.#socket?.send(JSON.stringify(message));
    if (binary) this.#socket?.send(binary);
  }

  #connect() {
    this.#drop();
    this.handlers.status("connecting", this.#session ? "reconnecting …" : "connecting …");
    const url = new URL(this.#session ? `v1/live/${this.#session.id}` : "v1/live", this.#addresses[0]);
    url.protocol = url.protocol.replace("http", "ws");
    url.hash = "";
    url.search = this.key ? `?key=${encodeURIComponent(this.key)}` : "";
    const socket = new WebSocket(url, [SUBPROTOCOL]);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      const open = this.#session ? { type: "open", resume: this.#session.token } : this.handlers.open();
      socket.send(JSON.stringify(open));
    };
    socket.onmessage = (event) => {
      if (socket !== this.#socket) return;
      this.#heardMs = performance.now();
      if (typeof event.data === "string") this.#receive(JSON.parse(event.data));
      else this.#receiveAudio(event.data);
    };
    // Browsers tell both, older Node.js the error alone where the handshake is refused.
    socket.onclose = socket.onerror = () => {
      if (socket !== this.#socket) return;
      this.#socket = null;
      this.#lost();
    };
    this.#socket = socket;
  }

  #drop() {
    clearTimeout(this.#retryTimer);
    const socket = this.#socket;
    this.#socket = null;
    this.isLive = false;
    socket?.close();
  }

  /** @param {Message} message */
  #receive(message) {
    switch (message.type) {
      case "ready":
        this.#begin(message);
        break;
      case "problem":
        this.#refuse(message);
        break;
      case "closed":
        if (this.isLive && !message.resumable) this.#session = null;
        if (message.url) this.#follow(message.url);
        break;
      case "state":
        this.#isPlaying = message.playing;
        this.handlers.state(message);
        break;
      case "applied":
      case "changed":
      case "notes":
      case "canvas":
      case "plan":
        this.handlers[message.type](message);
    }
  }

  /** @param {Message} ready */
  #begin(ready) {
    this.#session = { id: ready.session, token: ready.resume_token };
    this.#epoch = ready.epoch;
    this.#addresses = [...new Set([...this.#addresses, ...ready.edges])];
    this.#isPlaying = false;
    this.#attempts = 0;
    this.isLive = true;
    // A new session began with everything that waited: it is in its `open`.
    const waiting = ready.resumed ? [...this.#unsent.values()] : [];
    this.#unsent.clear();
    this.handlers.status("live", "");
    for (const { values, layers } of waiting) {
      Object.assign(ready.controls.values, values);
      ready.muted = layers ?? ready.muted;
    }
    this.handlers.ready(ready);
    for (const message of waiting) this.#post({ ...message, seq: ++this.#seq });
  }

  /** A problem before `ready` is the reason why the connection ends. @param {Message} problem */
  #refuse(problem) {
    if (!this.isLive && problem.status === 503) {
      this.#leastDelayMs = (problem.retry_after_s ?? 0) * 1000;
      this.#refusal = problem.detail;
    } else if (!this.isLive && this.#session) {
      const isOfPageBefore = this.#epoch < 0;
      this.#session = null;
      this.#attempts = 0;
      if (isOfPageBefore) return;
      this.handlers.problem({ ...problem, detail: "The session is gone. A new one begins as it was.", fix: null });
    } else {
      if (!this.isLive) this.handlers.refused(problem);
      else this.handlers.problem(problem);
    }
  }

  /** Another server has room, or goes on with the session: it is the next address. @param {string} url */
  #follow(url) {
    this.#addresses = [...new Set([this.#addresses[0], url, ...this.#addresses])];
    this.#leastDelayMs = 0;
  }

  /** @param {ArrayBuffer} data */
  #receiveAudio(data) {
    this.#receivedBytes += data.byteLength;
    const chunk = parseChunk(data);
    if (chunk.epoch === this.#epoch) this.handlers.audio(chunk);
  }

  async #lost() {
    const wasLive = this.isLive;
    this.isLive = false;
    const numAddresses = this.#addresses.push(/** @type {string} */ (this.#addresses.shift()));
    const rounds = Math.floor(this.#attempts++ / numAddresses);
    const isOther = numAddresses > 1 && !rounds;
    const waitMs = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** rounds) * (0.75 + Math.random() / 2);
    const backoff = isOther ? JITTER_MS * Math.random() : waitMs;
    const delay = Math.max(backoff, this.#leastDelayMs);
    this.#leastDelayMs = 0;
    const status = wasLive ? "waiting" : this.#refusal || (await this.#reason());
    if (this.#isClosed) return;
    this.#refusal = "";
    if (status === "key") {
      this.handlers.status("key", this.key ? "The server does not accept this key." : "");
      return;
    }
    this.handlers.status("waiting", status === "waiting" ? "reconnecting …" : status);
    clearTimeout(this.#retryTimer);
    this.#retryTimer = setTimeout(() => this.#connect(), delay);
  }

  /** Why the WebSocket was refused: a browser does not say, so HTTP is asked. */
  async #reason() {
    try {
      const response = await fetch(this.url("v1/models"), { headers: this.headers(), cache: "no-store" });
      if (response.status === 401) return "key";
      return response.ok ? "waiting" : ((await response.json()).detail ?? "waiting");
    } catch {
      return "waiting";
    }
  }
}

/** @param {ArrayBuffer} data @returns {Chunk} */
export function parseChunk(data) {
  const view = new DataView(data);
  const pcm = new Float32Array(
    view.getUint16(24, true) === 1
      ? data.slice(HEADER_BYTES)
      : Float32Array.from(new Int16Array(data, HEADER_BYTES), (value) => value / 32768),
  );
  return {
    epoch: view.getUint32(0, true),
    startSample: Number(view.getBigUint64(4, true)),
    firstSeq: view.getUint32(16, true),
    fullSeq: view.getUint32(20, true),
    pcm,
  };
}
