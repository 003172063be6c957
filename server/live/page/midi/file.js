/** Standard MIDI files of notes. */

const TICKS_PER_BEAT = 480;
const END_OF_TRACK = [0, 0xff, 0x2f, 0];

/**
 * A file of format 1 with a track per layer.
 * @param {import("./placed_notes.js").PlacedNote[]} notes
 * @param {{startS: number, bpm: number, beats: number, channelOf: (layer: string) => number}} passage
 *   where on the canvas it begins, and its tempo
 */
export function midiFile(notes, { startS: firstS, bpm, beats, channelOf }) {
  const ticks = (/** @type {number} */ seconds) =>
    Math.max(0, Math.round(((seconds - firstS) * bpm * TICKS_PER_BEAT) / 60));
  const tempo = Math.round(60e6 / bpm);
  const meter = [0, 0xff, 0x58, 4, beats, 2, 24, 8];
  const first = [0, 0xff, 0x51, 3, tempo >> 16, (tempo >> 8) & 0xff, tempo & 0xff, ...meter, ...END_OF_TRACK];
  const layers = [...new Set(notes.map(({ note }) => note.layer))].sort();
  const tracks = layers.map((layer) => {
    const channel = channelOf(layer);
    const events = notes
      .filter(({ note }) => note.layer === layer)
      .flatMap(({ note: { pitch, velocity }, startS, seconds }) => [
        { tick: ticks(startS), data: [0x90 | channel, pitch, velocity] },
        { tick: Math.max(ticks(startS) + 1, ticks(startS + seconds)), data: [0x80 | channel, pitch, 0] },
      ])
      // At the same tick what ends comes first.
      .sort((one, other) => one.tick - other.tick || one.data[0] - other.data[0]);
    const name = [...new TextEncoder().encode(layer)];
    const timed = events.flatMap(({ tick, data }, i) => [...delta(tick - (events[i - 1]?.tick ?? 0)), ...data]);
    return [0, 0xff, 0x03, ...delta(name.length), ...name, ...timed, ...END_OF_TRACK];
  });
  const header = [0, 1, ...word(tracks.length + 1), ...word(TICKS_PER_BEAT)];
  const chunks = [chunk("MThd", header), ...[first, ...tracks].map((track) => chunk("MTrk", track))];
  return new Blob([Uint8Array.from(chunks.flat())], { type: "audio/midi" });
}

/** @param {number} value of 16 bits */
function word(value) {
  return [value >> 8, value & 0xff];
}

/** A number in groups of seven bits. @param {number} value */
function delta(value) {
  const bytes = [value & 0x7f];
  for (let rest = value >> 7; rest; rest >>= 7) bytes.unshift((rest & 0x7f) | 0x80);
  return bytes;
}

/** @param {string} name @param {number[]} data */
function chunk(name, data) {
  const length = [...word(data.length >>> 16), ...word(data.length & 0xffff)];
  return [...new TextEncoder().encode(name), ...length, ...data];
}
