// Five seconds of a live session, two prompts, into raw audio, with Node.js: 22 and later (20: --experimental-websocket).
//   curl http://localhost:8000/page/tickrt.js -o tickrt.mjs
//   node live.mjs live.pcm
// TICKRT_URL and TICKRT_API_KEY name the server and its key. Interleaved float32 at the session's rate:
//   ffplay -f f32le -ar 48000 -ch_layout stereo live.pcm
import { createWriteStream } from "node:fs";
import { Live } from "./tickrt.mjs";

const { TICKRT_URL = "http://localhost:8000", TICKRT_API_KEY } = process.env;
const live = new Live(TICKRT_URL, { key: TICKRT_API_KEY, mode: "extend", prompts: "calm piano melody in D minor", seed: 1 });
live.on("problem", (problem) => console.error(problem.detail));
live.on("applied", ({ seq, full_sample }) => console.log(`change ${seq} is complete from sample ${full_sample} on`));

const file = createWriteStream(process.argv[2]);
let seconds = 0;
for await (const planes of live.audio()) {
  const block = new Float32Array(planes.length * planes[0].length);
  planes.forEach((plane, channel) => plane.forEach((sample, i) => (block[i * planes.length + channel] = sample)));
  file.write(new Uint8Array(block.buffer));
  if (++seconds === 20) live.prompts([["calm piano melody in D minor", 0.5], ["drums and bass", 1]]); // after 2 s
  if (seconds === 50) live.close();
}
file.end();
