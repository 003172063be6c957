/** The page: wires the parts together. What is set on it is a preset; the session is opened with it. */

import { Connection } from "./connection.js";
import { ControlPanel } from "./controls.js";
import { CurveEditor } from "./curve_editor.js";
import { Figures } from "./figures.js";
import { History } from "./history.js";
import { LoopFile } from "./loop_file.js";
import { NO_BEAT, Passage } from "./midi/passage.js";
import { Music } from "./music.js";
import { Plan } from "./plan.js";
import { PresetBar } from "./preset_bar.js";
import { Sources } from "./sources.js";
import { Takes } from "./takes.js";
import { cornerColors, onThemeChange, tint } from "./theme.js";
import { Transport } from "./transport.js";
import { Band } from "./widgets/band.js";
import { CanvasView } from "./widgets/canvas_view.js";
import { element, field, find } from "./widgets/element.js";
import { Knob } from "./widgets/knob.js";
import { Lanes } from "./widgets/lanes.js";
import { MOST_PROMPTS, PromptPad } from "./widgets/pad.js";
import { barsText } from "./widgets/plan_view.js";

/** @typedef {import("./presets.js").Preset} Preset */
/** @typedef {import("./history.js").State} State */
/** @typedef {import("./connection.js").Message} Message */

const SEND_EVERY_MS = 25;
/** Changes that wait for a bar: the server holds some tens of them. */
const SEND_AT_BAR_EVERY_MS = 250;
const TYPING_MS = 600;
const PICTURE_EVERY_MS = 400;
const FRAME_MS = 30;
const STILL_FRAME_MS = 250;
const NOTICE_MS = 9000;
/** A loop that is so little off a bar line ends there: its length is in frames. */
const CUT_S = 0.05;
const MAX_SEED = 2 ** 32;

const stillness = matchMedia("(prefers-reduced-motion: reduce)");
let name = "";
/** @type {"loop" | "extend"} */ let mode = "loop";
/** Length of the canvas; null: the model's. @type {number | null} */ let seconds = null;
/** @type {number | null} */ let seed = null;
/** The newest values of controls that are not sent yet. @type {Record<string, any>} */ let changedValues = {};
/** Whether the session has a canvas: it takes a band only then. */ let hasCanvas = false;
let isBandUnsent = false;
/** Whether this model tells its notes: it is not known before it was asked. */ let hasNotes = true;
/** Of the newest seek. */ let seekSeq = 0;
let connectionStatus = { status: "connecting", text: "" };
let position = { seconds: 0, sample: 0 };
let colors = { ink: "", shade: "", wave: "" };

const figures = new Figures();
const connection = new Connection({
  open: openMessage,
  status: showStatus,
  audio: onAudio,
  ready: onReady,
  applied: onApplied,
  changed: onChanged,
  state: onState,
  notes: (message) => passage.notes.tell(message),
  canvas: (message) => canvas.show(message),
  plan: (message) => plan.show(message),
  refused: forgetWhatMayBeWrong,
  problem: showProblem,
  isAtBar,
});
const transport = new Transport({ connection, figures, notify, reported });
const { player } = transport;
const panel = new ControlPanel(find("knobs"), find("more-knobs"), {
  timbre_strength: find("timbre-strength"),
  structure_strength: find("structure-strength"),
  loop_bars: find("bars"),
  variation: find("music-knobs"),
});
const music = new Music(panel);
const takes = new Takes(setSeed);
const pad = new PromptPad(find("pad"));
const band = new Band(find("band"));
const plan = new Plan(connection);
const lanes = new Lanes(find("lanes"));
const canvas = new CanvasView(find("stage"), band, plan.view, lanes, {
  seek,
  section: (section, layer) => plan.edit(section, layer),
  curve: (values) => curveEditor.drawn(values),
});
const curveEditor = new CurveEditor(panel, canvas);
const isVaried = () => Boolean(panel.values.variation);
const loopFile = new LoopFile({ canvas, player, isPlaying: () => transport.isPlaying, isVaried, notify });
const sources = new Sources({ connection, player, canvas, notify, changed: (kind) => history.changed(kind) });
const glide = new Knob({
  label: "glide",
  help: "Numbers move to their new value in this time",
  min: 0,
  max: 4000,
  default: 0,
  integer: true,
  format: (ms) => `${(ms / 1000).toFixed(2)} s`,
  parse: (text) => 1000 * Number(text.replace(/ *s$/, "")),
});
const passage = new Passage();
/** Loaded when it is first used. @type {import("./midi/midi.js").Midi | null} */ let midi = null;
const presetBar = new PresetBar({ current: currentPreset, use: choosePreset, notify });
/** Two states to compare, each with what led to it. */
const histories = [0, 1].map(() => new History({ current: currentState, use: useState }));
let history = histories[0];
/** What the state that is not chosen was left as. @type {State | null} */ let otherState = null;

// To the server.

/** @returns {Message} */
function openMessage() {
  return {
    type: "open",
    mode,
    ...(seconds === null || mode === "extend" ? {} : { seconds }),
    prompts: pad.items(),
    blend: field("blend").value,
    controls: panel.values,
    ...(seed === null ? {} : { seed }),
    ...sources.open,
    ...(mode === "extend" && !plan.isWanted ? { plan: false } : {}),
    ...(hasNotes ? { events: ["notes"] } : {}),
    ...(lanes.silent.length ? { muted: lanes.silent } : {}),
    format: "s16",
  };
}

/** A change, whose way to the sound is measured. @param {string} type @param {Record<string, any>} members */
function change(type, members) {
  const seq = connection.change(type, members);
  if (connection.isLive) figures.await(seq);
}

/** Calls `send` at once, and then not sooner than SEND_EVERY_MS, or SEND_AT_BAR_EVERY_MS. @param {() => void} send */
function limited(send) {
  let timer = 0;
  let sentMs = -Infinity;
  const run = () => {
    timer = 0;
    sentMs = performance.now();
    send();
  };
  return () => {
    const wait = sentMs + (isAtBar() ? SEND_AT_BAR_EVERY_MS : SEND_EVERY_MS) - performance.now();
    if (!timer) wait <= 0 ? run() : (timer = setTimeout(run, wait));
  };
}

const sendValues = limited(() => {
  const values = changedValues;
  changedValues = {};
  change("set", { values, ...(glide.value ? { ramp_ms: glide.value } : {}) });
});

const sendPrompts = limited(() => change("prompts", { items: pad.items(), blend: field("blend").value }));

function sendBand() {
  isBandUnsent = !hasCanvas;
  if (isBandUnsent) return;
  const [start_s, end_s] = band.isWhole ? [null, null] : [band.start * canvas.seconds, band.end * canvas.seconds];
  connection.change("band", { start_s, end_s });
}

function sendMute() {
  connection.change("mute", { layers: lanes.silent });
}

/** Whether changes begin with the next bar; while nothing plays none comes, and they are made at once. */
function isAtBar() {
  return transport.isPlaying && passage.beat !== null && field("at-bar").checked;
}

/** @param {number} to_s */
function seek(to_s) {
  if (!connection.isLive) return;
  seekSeq = connection.change("seek", { to_s });
  if (!isAtBar()) midi?.panel.jump(null);
}

/** @param {number | null} value */
function setSeed(value) {
  seed = value;
  showSeed();
  change("set", { values: { seed: value } });
  history.changed("seed");
}

function showSeed() {
  field("seed").value = seed === null ? "" : String(seed);
  takes.show(seed);
}

/**
 * The server took no session with these settings, such as controls of another model: the next one has fewer.
 * @param {Message} problem
 */
function forgetWhatMayBeWrong(problem) {
  if (problem.code === "no_notes" && hasNotes) {
    hasNotes = false;
    connection.restart();
    return;
  }
  showProblem(problem);
  seconds = null;
  panel.show({});
  lanes.show([], []);
  sources.forget();
}

let pictureTimer = 0;
function askForPicture() {
  pictureTimer ||= setTimeout(() => {
    pictureTimer = 0;
    connection.send({ type: "canvas" });
  }, PICTURE_EVERY_MS);
}

/** Twenty times a second: what is heard. */
function reported() {
  midi?.panel.tick();
  showHeard();
}

// From the server.

/** @param {Message} ready */
function onReady(ready) {
  midi?.panel.silence(); // As long as the player tells the times of the older epoch.
  transport.begin(ready);
  figures.clear();
  music.draw(ready.controls.music, ready.stems && ready.layers.length > 0);
  panel.draw(ready.controls.schema);
  panel.show(ready.controls.values);
  find("music-tempo").hidden = !panel.fields.has("bpm");
  pad.words = music.words;
  askForMore();
  showControllers();
  // A session that another model goes on with has a new canvas, and says so.
  const isNew = !ready.resumed || Boolean(ready.notice);
  if (ready.notice) notify(ready.notice, true);
  sources.begin(isNew, panel.knobs);
  const { source_id: id, source_strength: strength } = ready.controls;
  if (!isNew && id && !sources.open.source_id) sources.follow({ source: { id, strength } });
  lanes.begin(ready.layers, ready.plan?.layers ?? [], ready.stems);
  showLanes(lanes.chosen.mute, lanes.chosen.solo);
  if (!isNew) lanes.follow(ready.muted);
  else if (lanes.silent.join() !== ready.muted.join()) sendMute();
  canvas.picture.setLanes(lanes.layers.map((layer) => layer.rows));
  canvas.bars.clear();
  passage.begin(ready, panel.knobs.has("structure_strength"));
  seed = ready.controls.seed;
  showSeed();
  canvas.seconds = ready.canvas.seconds;
  canvas.isEndless = ready.mode === "extend";
  canvas.loop = null;
  loopFile.begin(ready);
  plan.begin(ready.plan ?? null, canvas.isEndless, ready.session);
  band.show(band.start, band.end, ready.canvas.seconds);
  showLoop();
  find("band").classList.toggle("is-off", canvas.isEndless);
  find("bars").hidden = canvas.isEndless;
  hasCanvas = !isNew;
  isBandUnsent = isNew && !canvas.isEndless && !band.isWhole;
  offerLengths(ready);
  curveEditor.offer();
  showWords(ready.controls.prompt_words);
  // What words are was not known when the first session was opened.
  if (isNew && pad.items().some(({ text }, i) => text !== ready.controls.prompts[i]?.text)) sendPrompts();
  history.follow();
  askForPicture();
}

/** What the server tells beside the session: the adapters that there are, and the words that the model knows. */
async function askForMore() {
  try {
    const headers = connection.headers();
    const answers = await Promise.all(["v1/adapters", "v1/models"].map((path) => fetch(path, { headers })));
    const [adapters, models] = await Promise.all(answers.map((answer) => answer.json()));
    const ids = (adapters.data ?? []).map((/** @type {{id: string}} */ { id }) => id);
    if (adapters.max_rank) panel.drawAdapters(ids, find("styles"));
    find("styles").hidden = !adapters.max_rank || !ids.length;
    pad.vocabulary = models.data?.[0].vocabulary ?? [];
    showControllers();
  } catch {
    // Without a server there is no session either, and the next one asks again.
  }
}

/** @param {import("./widgets/pad.js").PromptWords[]} words */
function showWords(words) {
  pad.showWords(words);
  showPlayed();
}

/** One line that says what is played, as the server understood the prompts that are heard. */
function showPlayed() {
  const { heard } = pad;
  music.tell(heard[0]?.meaning ?? {});
  const kinds = [...new Set(heard.flatMap(({ meaning }) => Object.keys(meaning)))];
  const names = kinds.map((kind) => [...new Set(heard.flatMap(({ meaning }) => meaning[kind] ?? []))].join(", "));
  find("plays").textContent = find("plays").title = [pad.sharesText, ...names].join(" · ");
}

/** @param {import("./connection.js").Chunk} chunk */
function onAudio(chunk) {
  loopFile.write(chunk);
  player.write(chunk);
  hasCanvas = true;
  if (isBandUnsent) sendBand();
}

/** @param {Message} applied */
function onApplied(applied) {
  if (applied.seq === seekSeq && applied.at_sample) midi?.panel.jump(applied.at_sample);
  if (applied.prompt_words) showWords(applied.prompt_words);
  askForPicture();
}

/** Another client has turned something: show it, without a message to the server. @param {Message} changed */
function onChanged({ values }) {
  panel.show({ ...panel.values, ...values });
  if ("seed" in values) {
    seed = values.seed;
    showSeed();
  }
  if (values.blend) field("blend").value = values.blend;
  if (values.prompts) pad.follow(values.prompts);
  showCount();
  if (values.prompt_words) showWords(values.prompt_words);
  if ("band" in values && !canvas.isEndless) {
    const [start, end] = values.band ?? [0, canvas.seconds];
    band.show(start / canvas.seconds, end / canvas.seconds, canvas.seconds);
  }
  if (values.muted) lanes.follow(values.muted);
  if ("playing" in values) transport.follow(values.playing);
  sources.follow(values);
  history.follow();
  askForPicture();
}

/** @param {Message} state */
function onState(state) {
  position = { seconds: state.canvas_position_s, sample: state.playhead_sample };
  canvas.loop = state.loop;
  canvas.bars.tell(state, player.rateHz);
  showLoop();
  loopFile.follow(position);
  passage.state(state, canvas.isEndless ? 0 : canvas.playable.start);
  const hasTicked = figures.state(state);
  if (hasTicked || canvas.isEndless) askForPicture();
}

/** What loops, in bars, and whether that cuts one. */
function showLoop() {
  canvas.setBars(panel.values.loop_bars);
  const { start, end } = canvas.playable;
  const barS = canvas.bars.beat?.barS;
  const count = barS ? (end - start) / barS : 0;
  const isWhole = Math.abs(count - Math.round(count)) * (barS ?? 0) < CUT_S;
  const bars = isWhole ? barsText(Math.round(count)) : `${count.toFixed(1)} bars: cuts a bar`;
  const text = canvas.isEndless ? "" : `loops ${count ? `${bars}, ` : ""}${(end - start).toFixed(1)} s`;
  if (find("loops").textContent !== text) find("loops").textContent = text;
  const asked = panel.fields.get("loop_bars");
  if (asked instanceof HTMLInputElement) asked.placeholder = canvas.usualBars ? `default: ${canvas.usualBars}` : "default";
}

/** @param {Message} problem */
function showProblem(problem) {
  sources.refused(problem.seq);
  if (plan.refused(problem.seq)) return;
  history.follow();
  notify([problem.detail, problem.fix].filter(Boolean).join(" — "));
}

/** @param {import("./connection.js").Status} status @param {string} text */
function showStatus(status, text) {
  connectionStatus = { status, text };
  find("status").dataset.status = status;
  showHeard();
  if (status !== "key") return;
  find("key-detail").textContent = text || "It stays in this tab.";
  const dialog = /** @type {HTMLDialogElement} */ (find("key-dialog"));
  if (!dialog.open) dialog.showModal();
}

/** What the connection says, or where it has nothing to say, what is heard. */
function showHeard() {
  const { status, text } = connectionStatus;
  const shown = status === "live" ? transport.heardText : status === "key" ? "key needed" : text;
  if (find("status").textContent !== shown) find("status").textContent = shown;
}

/** Show a sentence for a while. @param {string} text @param {boolean} [isNote] not a problem */
function notify(text, isNote = false) {
  const messages = find("messages");
  if ([...messages.children].some((one) => one.firstElementChild?.textContent === text)) return;
  const message = element("div", isNote ? "is-note" : "");
  const close = element("button", "", "✕");
  close.ariaLabel = "Close the message";
  let timer = 0;
  const end = () => {
    clearTimeout(timer);
    message.remove();
    messages.firstElementChild?.dispatchEvent(new Event("shown"));
  };
  close.addEventListener("click", end);
  // One after the other: the next one has its time when this one is gone.
  message.addEventListener("shown", () => (timer = setTimeout(end, NOTICE_MS)));
  message.append(element("span", "", text), close);
  messages.append(message);
  messages.firstElementChild === message && message.dispatchEvent(new Event("shown"));
}

// Pictures.

function paintTheme() {
  pad.paint(cornerColors());
  retint();
}

function retint() {
  const { values, ...others } = tint(pad.weights());
  colors = others;
  canvas.picture.setColors(values);
}

let paintedMs = 0;
/** @param {number} now */
function paint(now) {
  requestAnimationFrame(paint);
  if (now - paintedMs < (stillness.matches ? STILL_FRAME_MS : FRAME_MS)) return;
  paintedMs = now;
  canvas.positionS = playPosition();
  plan.follow(canvas.positionS);
  canvas.notes = passage.placed.all;
  canvas.paint(colors, stillness.matches);
  transport.scope.paint(player.analyser, colors.wave);
}

/** The canvas position of what is heard now: the server's last report, moved on by the player's clock. */
function playPosition() {
  const { start, end } = canvas.playable;
  const elapsed = transport.isPlaying ? (player.playheadSample - position.sample) / player.rateHz : 0;
  const moved = position.seconds + elapsed;
  return canvas.isEndless || moved < end ? Math.max(0, moved) : start + ((moved - start) % (end - start));
}

// Presets, curves, MIDI.

/** @returns {Preset} */
function currentPreset() {
  return {
    version: 1,
    name,
    mode,
    plan: plan.isWanted,
    seconds,
    prompts: pad.texts,
    pad: [pad.x, pad.y],
    blend: field("blend").value,
    controls: structuredClone(panel.values),
    music: { ...music.values },
    takes: takes.seeds,
    ...lanes.chosen,
    seed,
    band: [band.start, band.end],
  };
}

/** Show these, and what words for layers say. @param {string[]} mute @param {string[]} solo */
function showLanes(mute, solo) {
  const layers = music.takeLayers();
  lanes.show([...new Set([...mute, ...layers.mute])], [...new Set([...solo, ...layers.solo])]);
}

/**
 * Set the page, without a message to the server; a preset without a seed keeps the one that is there.
 * @param {Preset} preset
 */
function showPreset(preset) {
  ({ name, mode, seconds } = preset);
  plan.isWanted = preset.plan;
  seed = preset.seed ?? seed;
  takes.seeds = preset.takes ?? takes.seeds;
  showSeed();
  field("blend").value = preset.blend;
  pad.show(preset.pad[0], preset.pad[1], preset.prompts);
  showCount();
  panel.show(preset.controls);
  music.show(preset.music);
  showLanes(preset.mute ?? [], preset.solo ?? []);
  pad.words = music.words;
  band.show(preset.band[0], preset.band[1]);
  field(`mode-${mode}`).checked = true;
  presetBar.show(name);
  retint();
  showPlayed();
}

/** Everything that changes what is sent. @returns {State} */
function currentState() {
  return {
    ...currentPreset(),
    kept: plan.kept,
    sources: sources.chosen,
    glide: glide.value,
    atBar: field("at-bar").checked,
    writeMode: field("write-mode").value,
  };
}

/** Show what of a state is neither in its preset nor of sources and plan. @param {State} state */
function showBeside(state) {
  glide.show(state.glide ?? glide.value);
  field("at-bar").checked = state.atBar ?? field("at-bar").checked;
  field("write-mode").value = state.writeMode ?? field("write-mode").value;
}

/** What the page is left with, to go on with when it is loaded again. */
function left() {
  const chosen = histories.indexOf(history);
  return { state: currentState(), histories: histories.map((one) => one.stored), chosen, otherState, transport: transport.state };
}

/** Go on as the page was left. @param {ReturnType<typeof left>} left */
function goOn({ state, histories: stored, chosen, otherState: other, transport: played }) {
  stored.forEach((one, i) => histories[i].restore(one));
  history = histories[chosen];
  otherState = other;
  field(chosen ? "state-b" : "state-a").checked = true;
  showBeside(state);
  if (state.sources) sources.use(state.sources, false);
  plan.kept = state.kept ?? null;
  transport.restore(played);
  showHistory();
}

/** Use a state, and send what of it is new; what a preset does not have stays. @param {State} state */
function useState(state) {
  const { kept, sources: files, ...preset } = state;
  const isSameCanvas = preset.mode === mode && preset.seconds === seconds && preset.plan === plan.isWanted;
  const before = sent();
  showBeside(state);
  if (files) sources.use(files, isSameCanvas);
  const defaults = Object.fromEntries(Object.keys(panel.values).map((control) => [control, null]));
  showPreset(preset);
  if (!isSameCanvas) {
    if (kept !== undefined) plan.use(mode === "extend" ? kept : null, false);
    connection.restart();
    return;
  }
  const after = sent();
  if (before.values !== after.values) change("set", { values: { ...defaults, ...panel.values, seed } });
  if (before.prompts !== after.prompts) sendPrompts();
  if (before.mute !== after.mute) sendMute();
  if (before.band !== after.band && mode === "loop") sendBand();
  if (kept !== undefined) plan.use(kept, before.planned !== after.planned);
}

/** What the server knows of the page, to compare. */
function sent() {
  return {
    values: JSON.stringify([panel.values, seed]),
    planned: JSON.stringify([pad.items().map(({ text }) => text), ["bpm", "key", "time_signature"].map((id) => panel.values[id])]),
    prompts: JSON.stringify([pad.items(), field("blend").value]),
    band: JSON.stringify([band.start, band.end]),
    mute: lanes.silent.join(),
  };
}

/** @param {Preset} preset */
function choosePreset(preset) {
  useState(preset);
  history.changed("preset");
}

/** Go on with the other of two states; at first it is a copy. @param {number} place */
function chooseState(place) {
  if (history === histories[place]) return;
  plan.keep();
  const left = currentState();
  history = histories[place];
  if (otherState) useState(otherState);
  else history.follow();
  otherState = left;
  showHistory();
}

/** @param {number} by -1: undo, 1: redo */
function moveHistory(by) {
  plan.keep();
  history.follow();
  history.move(by);
}

function showCount() {
  field("add-prompt").disabled = pad.count >= MOST_PROMPTS;
  field("remove-prompt").disabled = pad.count <= 1;
}

function showHistory() {
  presetBar.keep();
  field("undo").disabled = !history.canUndo;
  field("redo").disabled = !history.canRedo;
}

/** @param {Message} ready of a loop whose length may be chosen */
function offerLengths(ready) {
  const whole = ready.canvas.seconds;
  const lengths = /** @type {number[]} */ (ready.lengths_s);
  const select = /** @type {HTMLSelectElement} */ (find("length"));
  if (seconds === null && !canvas.isEndless && !select.options.length) {
    const value = (/** @type {number} */ length) => (length === whole ? "" : String(length));
    select.append(...lengths.map((length) => new Option(`${length.toFixed(1)} s`, value(length))));
  }
  find("length-field").hidden = canvas.isEndless || !select.options.length;
  select.value = seconds === null ? "" : String(seconds);
}

/** @returns {Map<string, import("./midi/learn.js").Target>} */
function midiTargets() {
  const axis = (/** @type {(level: number) => void} */ turn) => ({ root: pad.root, turn, showController: () => {} });
  /** @type {[string, import("./midi/learn.js").Target][]} */
  const others = [
    ["volume", transport.volume],
    ["glide", glide],
    ["strength", sources.strength],
    ["pad.x", axis((x) => pad.move(x, pad.y))],
    ["pad.y", axis((y) => pad.move(pad.x, y))],
  ];
  return new Map([...music.targets, ...lanes.targets, ...panel.knobs, ...others]);
}

/** Show each knob's controller, where some were learned. */
async function showControllers() {
  if (localStorage.getItem("tickrt.midi")) await openMidi();
  midi?.learn.show();
}

/** @type {Promise<import("./midi/midi.js").Midi> | null} */ let openingMidi = null;
async function openMidi() {
  const isPlaying = () => transport.isPlaying;
  openingMidi ??= import("./midi/midi.js").then(({ loadMidi }) =>
    loadMidi({ connection, player, passage, notify, isPlaying, targets: midiTargets }),
  );
  try {
    midi = await openingMidi;
  } catch {
    openingMidi = null;
    notify("MIDI cannot be loaded: the server does not answer.");
  }
}

async function openHelp() {
  try {
    const { showHelp } = await import("./help.js");
    await showHelp();
  } catch {
    notify("Help cannot be loaded: the server does not answer.");
  }
}

/** Changes can begin with a bar where there are bars. */
function offerBars() {
  const hasBeat = passage.beat !== null;
  find("at-bar-field").title = hasBeat ? "Changes begin with the next bar that can be reached" : NO_BEAT;
  field("at-bar").disabled = !hasBeat;
}

function listen() {
  const on = (/** @type {string} */ id, /** @type {string} */ type, /** @type {() => void} */ action) =>
    find(id).addEventListener(type, action);
  let typingTimer = 0;
  pad.addEventListener("move", () => {
    retint();
    showPlayed();
    sendPrompts();
    history.changed("pad");
  });
  const changeCount = (/** @type {number} */ by) => {
    pad.setCount(pad.count + by);
    showCount();
    retint();
    sendPrompts();
    history.changed("number of prompts");
  };
  on("add-prompt", "click", () => changeCount(1));
  on("remove-prompt", "click", () => changeCount(-1));
  pad.addEventListener("text", (event) => {
    const isWord = /** @type {CustomEvent} */ (event).detail === "word";
    clearTimeout(typingTimer);
    typingTimer = setTimeout(sendPrompts, isWord ? 0 : TYPING_MS);
    history.changed(isWord ? "word" : "text");
  });
  panel.addEventListener("change", (event) => {
    const { detail } = /** @type {CustomEvent} */ (event);
    Object.assign(changedValues, detail);
    sendValues();
    history.changed(Object.keys(detail).join());
  });
  music.addEventListener("change", () => {
    pad.words = music.words;
    sendPrompts();
    history.changed("music");
  });
  const sendBandSoon = limited(sendBand);
  band.addEventListener("change", () => {
    sendBandSoon();
    history.changed("band");
  });
  lanes.addEventListener("change", (event) => {
    sendMute();
    history.changed(/** @type {CustomEvent} */ (event).detail);
  });
  on("blend", "change", () => {
    sendPrompts();
    history.changed("blend");
  });
  on("plan", "change", () => history.changed("plan"));
  plan.addEventListener("edit", () => history.follow());
  plan.addEventListener("change", (event) => history.changed(`plan ${/** @type {CustomEvent} */ (event).detail}`));
  glide.addEventListener("input", () => history.changed("glide"));
  for (const id of ["at-bar", "write-mode"]) on(id, "change", () => history.changed(id));
  on("reset", "click", () => choosePreset({ ...currentPreset(), controls: {}, music: {} }));
  on("undo", "click", () => moveHistory(-1));
  on("redo", "click", () => moveHistory(1));
  on("state-a", "change", () => chooseState(0));
  on("state-b", "change", () => chooseState(1));
  for (const one of histories) one.addEventListener("change", showHistory);
  document.addEventListener("keydown", (event) => {
    const key = event.key.toLowerCase();
    const isUndo = (event.ctrlKey || event.metaKey) && !event.altKey && ["z", "y"].includes(key);
    if (!isUndo || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    moveHistory(key === "y" || event.shiftKey ? 1 : -1);
  });
  on("keep", "click", () => {
    takes.keep(seed);
    history.changed("take");
  });
  on("dice", "click", () => setSeed(Math.floor(Math.random() * MAX_SEED)));
  on("seed", "change", () => setSeed(/^\d+$/.test(field("seed").value) ? Number(field("seed").value) : null));
  on("more", "click", () => {
    find("model-panel").hidden = !find("model-panel").hidden;
    find("more").setAttribute("aria-expanded", String(!find("model-panel").hidden));
    find("model-panel").scrollIntoView({ block: "nearest" });
  });
  on("length", "change", () => {
    seconds = field("length").value ? Number(field("length").value) : null;
    connection.restart();
    history.changed("length");
  });
  for (const one of /** @type {const} */ (["loop", "extend"])) {
    on(`mode-${one}`, "change", () => {
      mode = one;
      connection.restart();
      history.changed("mode");
    });
  }
  for (const type of ["begin", "state"]) passage.addEventListener(type, offerBars);
  find("midi").addEventListener("click", async ({ shiftKey }) => {
    await openMidi();
    shiftKey ? midi?.learn.forget() : midi?.learn.toggle();
  });
  on("midi-panel-button", "click", async () => {
    await openMidi();
    midi?.panel.toggle();
  });
  on("key-form", "submit", () => connection.setKey(field("key").value.trim()));
  onThemeChange(paintTheme);
  // The session of a page that is left would count against the limit of its client's sessions.
  addEventListener("pagehide", () => {
    presetBar.keep(left());
    connection.leave();
  });
  addEventListener("pageshow", (event) => event.persisted && connection.begin());
  on("help-button", "click", openHelp);
  document.addEventListener("keydown", (event) => {
    const isTyped = event.target instanceof Element && event.target.closest("input:not([type]), textarea");
    if (event.key === "?" && !isTyped && !document.querySelector("dialog[open]")) openHelp();
  });
}

find("knobs").append(glide.root); // the last one: the panel puts the others before it
showPreset(presetBar.first());
history.follow();
paintTheme();
listen();
if (presetBar.left) goOn(presetBar.left);
requestAnimationFrame(paint);
connection.begin();
