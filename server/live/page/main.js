/** The page: wires the parts together. What is set on it is a preset; the session is opened with it. */

import { Player } from "./audio.js";
import { CanvasView } from "./canvas.js";
import { Connection } from "./connection.js";
import { ControlPanel, element, Knob } from "./knobs.js";
import { Midi } from "./midi.js";
import { blendColor, PromptPad } from "./pad.js";
import { download, parsePreset, presetFragment, presetOfFragment, PRESETS } from "./presets.js";
import { Scope } from "./scope.js";
import { Sources } from "./sources.js";

/** @typedef {import("./presets.js").Preset} Preset */

const SEND_EVERY_MS = 25;
const TYPING_MS = 600;
const PICTURE_EVERY_MS = 400;
const FRAME_MS = 30;
const MESSAGE_MS = 9000;
const MAX_SEED = 2 ** 32;

const find = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const field = (/** @type {string} */ id) => /** @type {HTMLInputElement} */ (find(id));
const all = (/** @type {string} */ selector) => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
const lightTheme = matchMedia("(prefers-color-scheme: light)");
const motion = matchMedia("(prefers-reduced-motion: reduce)");

let isPlaying = false;
let playedS = 0;
let recordedS = 0;
let isRecording = false;
let name = "";
/** @type {"loop" | "extend"} */ let mode = "loop";
/** @type {number | null} */ let seconds = null;
/** @type {number | null} */ let seed = null;

const player = new Player({ status: onPlayerStatus, heard: onHeard });
const connection = new Connection({
  open: openMessage,
  status: showStatus,
  audio: onAudio,
  ready: onReady,
  applied: askForPicture,
  state: onState,
  canvas: (message) => canvas.show(message),
  problem: (problem) => showMessage([problem.detail, problem.fix].filter(Boolean).join(" — ")),
});
const panel = new ControlPanel(find("knobs"), find("more-knobs"));
const pad = new PromptPad(find("pad"), /** @type {HTMLTextAreaElement[]} */ (all(".prompt textarea")), all(".share"));
const canvas = new CanvasView(find("stage"), find("band"), {
  seek: (to_s) => connection.send({ type: "seek", to_s }),
  band: limited(sendBand),
  curve: (values) => panel.setCurve(field("draw").value, values),
});
const scope = new Scope(/** @type {HTMLCanvasElement} */ (find("scope")), all(".meter"));
const sources = new Sources({ connection, player, canvas, show: showMessage });
const glide = new Knob({
  label: "glide",
  help: "Numbers move to their new value in this time",
  min: 0,
  max: 4000,
  default: 0,
  integer: true,
  format: (ms) => `${(ms / 1000).toFixed(2)} s`,
});
const volume = new Knob({
  label: "volume",
  min: 0,
  max: 1,
  default: 1,
  format: (value) => `${Math.round(value * 100)} %`,
});
const midi = new Midi(turnByMidi, showControllers);

// Messages to the server.

/** @returns {import("./connection.js").Message} */
function openMessage() {
  return {
    type: "open",
    mode,
    ...(seconds === null ? {} : { seconds }),
    prompts: pad.items(),
    blend: field("blend").value,
    controls: panel.values,
    ...(seed === null ? {} : { seed }),
    ...sources.open,
    format: "s16",
  };
}

/** Calls `send` at once, and at most every SEND_EVERY_MS. @param {() => void} send */
function limited(send) {
  let timer = 0;
  let sentMs = -Infinity;
  const run = () => {
    timer = 0;
    sentMs = performance.now();
    send();
  };
  return () => {
    const wait = sentMs + SEND_EVERY_MS - performance.now();
    if (!timer) wait <= 0 ? run() : (timer = setTimeout(run, wait));
  };
}

/** @type {Record<string, any>} */
let changedValues = {};
const sendValues = limited(() => {
  const values = changedValues;
  changedValues = {};
  measure(connection.change("set", { values, ...(glide.value ? { ramp_ms: glide.value } : {}) }));
});
const sendPrompts = limited(() => measure(connection.change("prompts", { items: pad.items(), blend: field("blend").value })));

panel.addEventListener("change", (event) => {
  Object.assign(changedValues, /** @type {CustomEvent} */ (event).detail);
  sendValues();
});
let typingTimer = 0;
pad.addEventListener("change", (event) => {
  tint();
  clearTimeout(typingTimer);
  if (/** @type {CustomEvent} */ (event).detail === "text") typingTimer = setTimeout(sendPrompts, TYPING_MS);
  else sendPrompts();
});

/** @param {number | null} value */
function setSeed(value) {
  seed = value;
  field("seed").value = value === null ? "" : String(value);
  measure(connection.change("set", { values: { seed: value } }));
}

// Messages from the server.

/** @param {import("./connection.js").Message} ready */
function onReady(ready) {
  player.clear(ready.sample_rate_hz, ready.channels, ready.next_sample);
  panel.draw(ready.controls.schema);
  panel.show(ready.controls.values);
  offerCurves();
  showControllers();
  canvas.seconds = ready.canvas.seconds;
  find("band").style.setProperty("--seconds", String(ready.canvas.seconds));
  canvas.showBand(canvas.bandStart, canvas.bandEnd);
  canvas.isEndless = ready.mode === "extend";
  find("band").classList.toggle("is-off", canvas.isEndless);
  offerLengths(ready.canvas.seconds);
  seed = ready.controls.seed;
  field("seed").value = String(seed);
  isBandUnsent = !ready.resumed && mode === "loop" && (canvas.bandStart > 0 || canvas.bandEnd < 1);
  if (playedS && !isPlaying) connection.send({ type: "pause" });
  sentAt.clear();
  askForPicture();
}

/** A new session takes a band once it has a canvas. */
let isBandUnsent = false;

/** @param {import("./connection.js").Chunk} chunk */
function onAudio(chunk) {
  player.write(chunk);
  if (isBandUnsent) sendBand();
}

function sendBand() {
  isBandUnsent = false;
  const isWhole = canvas.bandStart <= 0 && canvas.bandEnd >= 1;
  const [start_s, end_s] = [canvas.bandStart, canvas.bandEnd].map((share) => (isWhole ? null : share * canvas.seconds));
  connection.change("band", { start_s, end_s });
}

let position = { seconds: 0, sample: 0 };
let lastTicks = { count: 0, atMs: 0 };
/** @param {import("./connection.js").Message} state */
function onState(state) {
  position = { seconds: state.canvas_position_s, sample: state.playhead_sample };
  const now = performance.now();
  const rate = ((state.ticks - lastTicks.count) * 1000) / (now - lastTicks.atMs);
  if (lastTicks.atMs && rate >= 0) find("stat-ticks").textContent = rate.toFixed(0);
  if (state.ticks !== lastTicks.count || canvas.isEndless) askForPicture();
  lastTicks = { count: state.ticks, atMs: now };
  find("stat-tick").textContent = `${state.tick_ms.toFixed(1)} ms`;
  find("stat-generation").textContent = `${Math.round(state.generation_s * 1000)} ms`;
}

let pictureTimer = 0;
function askForPicture() {
  pictureTimer ||= setTimeout(() => {
    pictureTimer = 0;
    connection.send({ type: "canvas" });
  }, PICTURE_EVERY_MS);
}

/** @param {import("./connection.js").Status} status @param {string} text */
function showStatus(status, text) {
  find("status").dataset.status = status;
  find("status").textContent = status === "live" ? "live" : status === "key" ? "key needed" : text;
  const dialog = /** @type {HTMLDialogElement} */ (find("key-dialog"));
  if (status !== "key") return;
  find("key-detail").textContent = text || "It stays in this tab.";
  if (!dialog.open) dialog.showModal();
}

// Playing, and what is heard.

async function togglePlay() {
  isPlaying = !isPlaying;
  find("play").setAttribute("aria-pressed", String(isPlaying));
  find("play").setAttribute("aria-label", isPlaying ? "Pause" : "Play");
  find("hint").hidden = true;
  try {
    await player.play(isPlaying);
  } catch (error) {
    showMessage(`This browser cannot play: ${/** @type {Error} */ (error).message}`);
  }
  connection.send({ type: isPlaying ? "play" : "pause" });
}

/** @param {import("./audio.js").PlayerStatus} status */
function onPlayerStatus(status) {
  if (isPlaying) connection.ack(status.playheadSample, status.worstLeadS);
  if (status.isRunning) playedS += 0.05;
  if (isRecording) recordedS += status.isRunning ? 0.05 : 0;
  find("record").lastElementChild?.replaceChildren(isRecording ? time(recordedS) : "Record");
  scope.level(status.peaks);
  find("clock").textContent = time(playedS);
  find("stat-lead").textContent = `${Math.round(status.leadS * 1000)} ms`;
  find("stat-underruns").textContent = String(status.underruns);
}

/** @type {Map<number, {atMs: number, isFirstHeard: boolean}>} */
const sentAt = new Map();
/** @param {number} seq */
function measure(seq) {
  if (connection.isLive) sentAt.set(seq, { atMs: performance.now(), isFirstHeard: false });
}

/** The time from the newest change that is heard now to its sound. @param {number} firstSeq @param {number} fullSeq */
function onHeard(firstSeq, fullSeq) {
  const now = performance.now();
  for (const [seq, sent] of sentAt) {
    const elapsed = `${Math.round(now - sent.atMs)} ms`;
    if (seq <= firstSeq && !sent.isFirstHeard) {
      sent.isFirstHeard = true;
      find("stat-first").textContent = elapsed;
    }
    if (seq <= fullSeq) {
      find("stat-full").textContent = elapsed;
      sentAt.delete(seq);
    }
  }
}

/** @param {number} value */
function time(value) {
  return `${Math.floor(value / 60)}:${(value % 60).toFixed(1).padStart(4, "0")}`;
}

// Pictures.

/** @param {string} variable @returns {[number, number, number]} */
function color(variable) {
  const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue(variable).trim().split(/\s+/).map(Number);
  return [red, green, blue];
}

/** Everything takes the color of the blend. */
function tint() {
  const corners = ["--a", "--b", "--c", "--d"].map(color);
  const weights = pad.weights();
  const mix = blendColor(corners, weights);
  const [, runnerUp] = [0, 1, 2, 3].sort((i, k) => weights[k] - weights[i]);
  document.documentElement.style.setProperty("--mix", mix.join(" "));
  const isLight = lightTheme.matches;
  const ground = color("--ground-color");
  const tone = blendColor([corners[runnerUp], ground], [0.6, 0.4]);
  canvas.setColors(isLight ? [ground, tone, mix, [24, 20, 30]] : [ground, tone, mix, [255, 252, 240]]);
  const ink = isLight ? "#1b1c22" : "#fff";
  paintColors = { playhead: ink, shade: `rgb(${ground.join(" ")} / 0.75)`, curve: ink, wave: `rgb(${mix.join(" ")})` };
}

function paintTheme() {
  pad.paint(["--a", "--b", "--c", "--d"].map(color));
  tint();
}

let paintColors = { playhead: "", shade: "", curve: "", wave: "" };

let paintedMs = 0;
/** @param {number} now */
function paint(now) {
  requestAnimationFrame(paint);
  if (now - paintedMs < (motion.matches ? 250 : FRAME_MS)) return;
  paintedMs = now;
  canvas.positionS = playPosition();
  canvas.paint(paintColors, motion.matches);
  scope.paint(player.analyser, paintColors.wave);
}

/** The canvas position of what is heard now: the server's last report, moved on by the player's clock. */
function playPosition() {
  const start = canvas.bandStart * canvas.seconds;
  const end = canvas.bandEnd * canvas.seconds;
  const moved = position.seconds + (isPlaying ? (player.playheadSample - position.sample) / player.rateHz : 0);
  return canvas.isEndless || moved < end ? Math.max(0, moved) : start + ((moved - start) % (end - start));
}

// Presets, curves, MIDI and the rest of the page.

/** @returns {Preset} */
function currentPreset() {
  return {
    version: 1,
    name,
    mode,
    seconds,
    prompts: pad.texts,
    pad: [pad.x, pad.y],
    blend: field("blend").value,
    controls: panel.values,
    seed,
    band: [canvas.bandStart, canvas.bandEnd],
  };
}

/** Set the page, without a message to the server. @param {Preset} preset */
function showPreset(preset) {
  ({ name, mode, seconds, seed } = preset);
  field("seed").value = seed === null ? "" : String(seed);
  field("blend").value = preset.blend;
  pad.show(preset.pad[0], preset.pad[1], preset.prompts);
  panel.show(preset.controls);
  canvas.showBand(preset.band[0], preset.band[1]);
  for (const input of all("input[name=mode]")) /** @type {HTMLInputElement} */ (input).checked = /** @type {HTMLInputElement} */ (input).value === mode;
  for (const chip of all("#presets button")) chip.classList.toggle("is-on", chip.textContent === name);
  tint();
}

/** @param {Preset} preset */
function usePreset(preset) {
  const isSameCanvas = preset.mode === mode && preset.seconds === seconds;
  const before = Object.keys(panel.values);
  showPreset(preset);
  if (!isSameCanvas) {
    connection.restart();
    return;
  }
  const defaults = Object.fromEntries(before.map((one) => [one, null]));
  measure(connection.change("set", { values: { ...defaults, ...preset.controls, seed } }));
  measure(connection.change("prompts", { items: pad.items(), blend: field("blend").value }));
  if (mode === "loop") sendBand();
}

/** @param {number} whole the length of the model's canvas, where no other was asked for */
function offerLengths(whole) {
  const select = /** @type {HTMLSelectElement} */ (find("length"));
  if (seconds === null && !select.options.length) {
    const lengths = [whole, whole / 2, whole / 4];
    select.append(...lengths.map((length, i) => new Option(`${length.toFixed(1)} s`, i ? String(length) : "")));
  }
  find("length-field").hidden = mode === "extend" || !select.options.length;
  select.value = seconds === null ? "" : String(seconds);
}

function offerCurves() {
  const select = /** @type {HTMLSelectElement} */ (find("draw"));
  if (select.options.length > 1) return;
  select.append(...panel.controls.filter((one) => one.takesCurve && one.isStep).map((one) => new Option(one.label, one.id)));
}

function editCurve() {
  const control = panel.controls.find((one) => one.id === field("draw").value);
  const knob = control && panel.knobs.get(control.id);
  find("clear-curve").hidden = !knob;
  // A curve over the dial's whole range could not be drawn finely: it ends at twice the default, or where the dial does.
  const max = control && Math.min(control.max, Math.max(1, 2 * control.default, knob?.value ?? 0, ...(knob?.curve ?? [])));
  canvas.edit(control && knob ? { min: control.min, max: max ?? 1, value: knob.value, points: knob.curve } : null);
}

/** @returns {[string, Knob][]} */
function allKnobs() {
  return [...panel.knobs, ["volume", volume], ["glide", glide], ["strength", sources.strength]];
}

/** @param {string} target @param {number} level */
function turnByMidi(target, level) {
  if (target === "pad.x") pad.move(level, pad.y);
  else if (target === "pad.y") pad.move(pad.x, level);
  else new Map(allKnobs()).get(target)?.setPosition(level);
}

function showControllers() {
  for (const [id, knob] of allKnobs()) {
    knob.showController(midi.controllerOf(id));
  }
  for (const target of all(".is-target")) target.classList.remove("is-target");
}

async function toggleLearning() {
  const isLearning = !document.body.classList.contains("is-learning");
  try {
    if (isLearning) await midi.open();
  } catch (error) {
    showMessage(`MIDI cannot be used: ${/** @type {Error} */ (error).message}`);
    return;
  }
  document.body.classList.toggle("is-learning", isLearning);
  find("midi").setAttribute("aria-pressed", String(isLearning));
  if (isLearning) showMessage("Touch a knob, then move a controller. Shift-click on MIDI learn forgets all.", true);
  else midi.learn(null);
}

/** Choose what the next controller turns; on the pad its two axes come one after the other. @param {Event} event */
function chooseTarget(event) {
  if (!document.body.classList.contains("is-learning") || !(event.target instanceof Element)) return;
  const root = event.target.closest(".knob, .pad");
  const id = root?.id === "pad" ? (midi.controllerOf("pad.x") ? "pad.y" : "pad.x") : allKnobs().find(([, knob]) => knob.root === root)?.[0];
  if (!root || !id) return;
  for (const target of all(".is-target")) target.classList.remove("is-target");
  root.classList.add("is-target");
  midi.learn(id);
}

async function toggleRecording() {
  isRecording = !isRecording;
  find("record").setAttribute("aria-pressed", String(isRecording));
  if (isRecording) {
    recordedS = 0;
    player.startRecording();
  } else {
    download(await player.stopRecording(), `tickrt-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.wav`);
  }
}

/** @param {string} text @param {boolean} [isNote] */
function showMessage(text, isNote = false) {
  if ([...find("messages").children].some((one) => one.textContent === text)) return;
  const message = element("div", isNote ? "is-note" : "", text);
  find("messages").append(message);
  setTimeout(() => message.remove(), MESSAGE_MS);
}

async function share() {
  history.replaceState(null, "", presetFragment(currentPreset()));
  try {
    await navigator.clipboard.writeText(location.href);
    showMessage("The address holds this preset and is in the clipboard.", true);
  } catch {
    showMessage("The address holds this preset: copy it.", true);
  }
}

async function loadPresetFile() {
  const file = field("preset-file").files?.[0];
  field("preset-file").value = "";
  try {
    if (file) usePreset(parsePreset(await file.text()));
  } catch (error) {
    showMessage(/** @type {Error} */ (error).message);
  }
}

function listen() {
  const click = (/** @type {string} */ id, /** @type {(event: MouseEvent) => void} */ action) => find(id).addEventListener("click", action);
  click("play", togglePlay);
  click("record", toggleRecording);
  click("save", () => download(new Blob([JSON.stringify(currentPreset(), null, 2)], { type: "application/json" }), "tickrt-preset.json"));
  click("load", () => find("preset-file").click());
  click("share", share);
  click("dice", () => setSeed(Math.floor(Math.random() * MAX_SEED)));
  click("midi", (event) => (event.shiftKey ? midi.forget() : toggleLearning()));
  click("reset", () => usePreset({ ...currentPreset(), controls: {} }));
  click("clear-curve", () => {
    panel.setCurve(field("draw").value, null);
    editCurve();
  });
  click("more", () => {
    const isOpen = find("more-knobs").hidden;
    find("more-knobs").hidden = !isOpen;
    find("more").setAttribute("aria-expanded", String(isOpen));
  });
  find("preset-file").addEventListener("change", loadPresetFile);
  find("seed").addEventListener("change", () => setSeed(/^\d+$/.test(field("seed").value) ? Number(field("seed").value) : null));
  find("length").addEventListener("change", () => {
    seconds = field("length").value ? Number(field("length").value) : null;
    connection.restart();
  });
  find("blend").addEventListener("change", sendPrompts);
  find("draw").addEventListener("change", editCurve);
  find("key-form").addEventListener("submit", () => connection.setKey(field("key").value.trim()));
  volume.addEventListener("input", () => (player.volume = volume.value));
  for (const type of ["pointerdown", "focusin"]) document.addEventListener(type, chooseTarget, true);
  for (const input of all("input[name=mode]")) {
    input.addEventListener("change", () => {
      mode = /** @type {"loop" | "extend"} */ (/** @type {HTMLInputElement} */ (input).value);
      connection.restart();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.code !== "Space" || (event.target instanceof Element && event.target.closest("button, input, textarea, select"))) return;
    event.preventDefault();
    togglePlay();
  });
  lightTheme.addEventListener("change", paintTheme);
  // A page that is left ends its session: it would count against the limit of its client's sessions.
  addEventListener("pagehide", () => connection.end());
  addEventListener("pageshow", (event) => event.persisted && connection.restart());
}

function begin() {
  document.body.classList.add("without-source");
  find("volume").append(volume.root);
  find("knobs").append(glide.root); // the last one: the panel puts the others before it
  for (const preset of PRESETS) {
    const chip = /** @type {HTMLButtonElement} */ (element("button", "", preset.name));
    chip.type = "button";
    chip.addEventListener("click", () => usePreset(preset));
    find("presets").append(chip);
  }
  let first = PRESETS[0];
  try {
    first = presetOfFragment(location.hash) ?? first;
  } catch (error) {
    showMessage(/** @type {Error} */ (error).message);
  }
  showPreset(first);
  paintTheme();
  listen();
  requestAnimationFrame(paint);
  connection.restart();
}

begin();
