// Music from a text into a file, while it is generated, with Node.js (18 and later): node generate.mjs "calm piano" calm.wav
// TICKRT_URL and TICKRT_API_KEY name the server and its key.
import { createWriteStream } from "node:fs";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

const { TICKRT_URL = "http://localhost:8000", TICKRT_API_KEY = "none" } = process.env;
const [prompt, path] = process.argv.slice(2);

const answer = await fetch(`${TICKRT_URL}/v1/audio/generations`, {
  method: "POST",
  headers: { "content-type": "application/json", authorization: `Bearer ${TICKRT_API_KEY}` },
  body: JSON.stringify({ prompt, seconds: 8, response_format: path.split(".").at(-1) }),
});
if (!answer.ok) {
  const { detail, fix } = await answer.json(); // RFC 9457
  console.error([detail, fix].filter(Boolean).join(" "));
  process.exit(1);
}
await pipeline(Readable.fromWeb(answer.body), createWriteStream(path));
console.log(`${path}: seed ${answer.headers.get("x-seed")}`);
