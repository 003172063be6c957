/** Types of /page/tickrt.js: a live session in pages and programs of your own. */

/** A message of the live protocol, as server/live/PROTOCOL.md has it. */
export type Message = { type: string; [member: string]: any };

/** A text, or one with its weight. */
export type Prompt = string | [text: string, weight: number] | { text: string; weight?: number };

/** Seconds of the session, its next bar, or a later one. */
export type At = number | "bar" | { bars: number };

export interface Change {
  /** Numbers move to their new value in this time. */
  ramp_ms?: number;
  at?: At | null;
}

/** Audio as it came: interleaved samples from `startSample` on, made with the changes up to `fullSeq`. */
export interface Chunk {
  epoch: number;
  startSample: number;
  firstSeq: number;
  fullSeq: number;
  pcm: Float32Array;
}

/** What the speakers report, twenty times a second. */
export interface Played {
  playheadSample: number;
  isRunning: boolean;
  leadS: number;
  worstLeadS: number;
  underruns: number;
  peaks: [left: number, right: number];
  playedS: number;
}

export interface LiveOptions {
  /** The server's API key, where it has one. */
  key?: string;
  prompts?: Prompt | Prompt[];
  controls?: Record<string, any>;
  /** loop: a canvas that repeats; extend: music without an end. */
  mode?: "loop" | "extend";
  seed?: number;
  seconds?: number;
  /** Further members of the message `open`. */
  [member: string]: any;
}

export interface Events {
  ready: Message;
  applied: Message;
  state: Message;
  changed: Message;
  notes: Message;
  canvas: Message;
  plan: Message;
  problem: Message;
  audio: Chunk;
  played: Played;
  heard: { firstSeq: number; fullSeq: number };
  /** Whether the system has taken the sound away (a call, sleep, a device that is unplugged); it comes back by itself or at a touch. */
  interrupted: boolean;
  status: { status: "connecting" | "live" | "waiting" | "key"; text: string };
}

/** A live session. It survives its connection: what is lost is resumed. */
export class Live {
  /** Opens a session. It waits, without work for the server, until play() or audio(). */
  constructor(address: string | URL, options?: LiveOptions);
  /** The first `ready`; rejected where the session is refused. */
  readonly opened: Promise<Message>;
  /** The newest `ready`; null before the first. */
  ready: Message | null;
  /** Calls `listener` with every event of a kind; the function that it returns ends that. */
  on<Kind extends keyof Events>(kind: Kind, listener: (value: Events[Kind]) => void): () => void;
  /** Turns controls; null is the default. Returns the `seq` of the change, which `applied` and `heard` name. */
  set(values: Record<string, any>, how?: Change): number;
  /** Replaces all prompts. */
  prompts(prompts: Prompt | Prompt[], how?: Change & { blend?: "velocity" | "tokens" }): number;
  /** Sends another message that changes the sound: band, seek, mute, notes, source, adapter, set_plan, ... Throws before `opened`. */
  change(type: string, members?: Record<string, any>, binary?: ArrayBuffer): number;
  /** Plays on the speakers of a browser; the first call has to come from a click or a key. */
  play(): Promise<void>;
  /** Nothing is generated or sent meanwhile. */
  pause(): Promise<void>;
  /** What it plays, 0.1 s at a time, a Float32Array per channel, at the pace of the reader: in place of play(). */
  audio(): AsyncGenerator<Float32Array[], void, void>;
  /** Uploads audio; returns its id, for change("source", { id, strength }). */
  upload(file: Blob): Promise<string>;
  /** The stems of what plays, as a zip archive, of models that have them. */
  stems(): Promise<Blob>;
  /** Ends the session. */
  close(): void;
}
