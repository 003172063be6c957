"""What a user gets from the demo, as hashes and transcripts: recorded before a change, compared after it.

    python tests/behaviour.py record before.json
    python tests/behaviour.py compare before.json

It knows the server's routes and messages alone, nothing of the packages inside. Bits of generations are those of this
machine: record and compare on one.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import httpx
import mido
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).resolve().parents[1]
GENERATIONS = "/v1/audio/generations"
TIMEOUT_S = 60.0
ANSWERED_S = 1.0  # a session that ends answers nothing that is still looked up
BETWEEN_S = 0.2  # what the words of one message mean is known before the next one is answered
BY_TIME = ("state", "canvas")  # what is sent by time, without being asked for
# What differs from run to run, by name of a member or header.
VOLATILE = re.compile(
    r"(^id$|_id$|token|time|date|_at$|_s$|age|uptime|server|sha|version|path|playhead|sample|seed|memory|bytes|cpu|host"
    r"|pid|url|edges|tick|latency|started|created|finished|length|hash|builder|build|etag|retry|session)",
    re.IGNORECASE,
)
KEPT_HEADERS = {"content-type", "cache-control", "location", "allow", "accept-ranges", "vary", "x-content-type-options"}

PLAIN: dict[str, Any] = {"seconds": 4.0, "response_format": "latents"}
CURVE = [1.0, 3.0, 1.0]
# One generation per feature and format: the members of the body; source, structure and timbre name one of this table.
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "warm piano over soft drums"},
    "empty": {"prompt": ""},
    "no plan": {"prompt": "funk", "plan": False},
    "steps": {"prompt": "techno", "steps": 5},
    "shift": {"prompt": "techno", "shift": 3.0},
    "timesteps": {"prompt": "techno", "timesteps": [1.0, 0.8, 0.5, 0.2]},
    "sde": {"prompt": "ambient", "solver": "sde"},
    "ode": {"prompt": "ambient", "solver": "ode"},
    "ab2": {"prompt": "ambient", "solver": "ab2"},
    "guidance": {"prompt": "house", "guidance": 4.0},
    "guidance curve": {"prompt": "house", "guidance": CURVE},
    "momentum": {"prompt": "house", "guidance": 3.0, "momentum": -0.5},
    "rescale": {"prompt": "house", "guidance": 3.0, "rescale": 0.5},
    "interval": {"prompt": "house", "cfg_interval_start": 0.2, "cfg_interval_end": 0.8},
    "rcfg self": {"prompt": "house", "guidance_mode": "self"},
    "rcfg initialize": {"prompt": "house", "guidance_mode": "initialize"},
    "negative": {"prompt": "house", "negative_prompt": "drums"},
    "velocity scale": {"prompt": "jazz", "velocity_scale": 0.9},
    "ode noise": {"prompt": "jazz", "ode_noise": 0.2},
    "channel gain": {"prompt": "jazz", "channel_gain": 1.1},
    "dcw": {"prompt": "jazz", "dcw": {"mode": "double", "low": 0.02, "high": 0.1}},
    "dcw pix": {"prompt": "jazz", "dcw": {"mode": "pix", "low": 0.01}},
    "torch noise": {"prompt": "jazz", "noise": "torch"},
    "blend velocity": {"prompt": [{"text": "piano", "weight": 1.0}, {"text": "strings", "weight": [0.0, 1.0]}]},
    "blend tokens": {
        "prompt": [{"text": "piano", "weight": 1.0}, {"text": "bells", "weight": 0.5}],
        "blend": "tokens",
    },
    "bpm": {"prompt": "rock", "bpm": 140},
    "key": {"prompt": "rock", "key": "A minor"},
    "meter": {"prompt": "waltz", "time_signature": 3},
    "lyrics": {"prompt": "rock", "lyrics": "[verse]\n[chorus]", "seconds": 12.0},
    "planner": {"prompt": "rock", "plan": True, "plan_temperature": 0.3, "plan_guidance": 2.0, "plan_top_p": 0.8},
    "ring": {"prompt": "piano", "ending": "ring", "seconds": 9.0},
    "fade": {"prompt": "piano", "ending": "fade", "seconds": 9.0, "response_format": "wav"},
    "cut": {"prompt": "piano", "ending": "cut", "seconds": 9.0},
    "long": {"prompt": "a song that builds", "seconds": 45.0},
    "notes": {"prompt": "piano", "notes": [{"pitch": 60, "start_s": 0.5, "seconds": 0.5, "layer": "pad"}]},
    "notes exact": {
        "prompt": "piano",
        "notes": [{"pitch": 67, "start_s": 1.0, "seconds": 1.0, "layer": "pad"}],
        "notes_exact": True,
    },
    "notes strength": {
        "prompt": "piano",
        "notes": [{"pitch": 64, "start_s": 1.0, "seconds": 1.0, "layer": "pad"}],
        "notes_strength": 0.5,
    },
    "adapter": {"prompt": "piano", "adapters": [{"id": "music-box", "strength": 0.8}]},
    "cover": {"prompt": "strings", "source": "fade", "denoise": 0.6},
    "structure": {"prompt": "strings", "structure": "fade", "structure_strength": 0.7},
    "timbre": {"prompt": "strings", "timbre": "fade", "timbre_strength": 0.6},
    "repaint": {"prompt": "strings", "source": "fade", "repaint": [{"start_s": 2.0, "end_s": 4.0}]},
    "mask": {"prompt": "strings", "source": "fade", "mask": [0.0, 1.0]},
    "noise curve": {"prompt": "strings", "source": "fade", "initial_noise_curve": [0.2, 1.0]},
    "target": {"prompt": "strings", "source": "fade", "target_curve": 0.4, "target_gate": 0.5},
    "x0": {"prompt": "strings", "source": "fade", "x0_strength": 0.3},
    "sde curve": {"prompt": "strings", "source": "fade", "sde_curve": [0.0, 1.0], "solver": "sde"},
    "continue": {"prompt": "strings", "source": "fade", "seconds": 16.0},
    "unfinished": {"prompt": "piano", "finish": False, "response_format": "wav"},
    "pcm": {"prompt": "piano", "response_format": "pcm"},
    "midi": {"prompt": "piano", "response_format": "mid"},
    "flac": {"prompt": "piano", "response_format": "flac"},
    "mp3": {"prompt": "piano", "response_format": "mp3"},
}
# Requests whose answers are compared as texts.
REFUSED: tuple[dict[str, Any], ...] = (
    {},
    {"prompt": 3},
    {"prompt": "a", "steps": 0},
    {"prompt": "a", "steps": 9999},
    {"prompt": "a", "seconds": 1e9},
    {"prompt": "a", "unknown": 1},
    {"prompt": "a", "guidance": "loud"},
    {"prompt": "a", "key": "H flat"},
    {"prompt": "a", "source_id": "none"},
    {"prompt": "a", "repaint": [[0, 1]]},
    {"prompt": "a", "timesteps": [0.1, 0.9]},
    {"prompt": "a", "adapters": [{"id": "no"}]},
    {"prompt": "a", "model": "other"},
    {"prompt": "a", "solver": "rk4"},
    {"prompt": "a", "task": "extract"},
)
PATHS = (
    "/", "/docs", "/openapi.json", "/health", "/health/live", "/health/ready", "/v1/models", "/v1/models/none",
    "/v1/adapters", "/v1/sources", "/v1/sources/none", "/v1/sessions", "/v1/sessions/none", "/v1/model_inventory",
    "/v1/stats", "/v1/lora/status",
    "/none", "/page/none", f"{GENERATIONS}/none", "/metrics",
)  # fmt: skip
LIVE_OPENS: tuple[dict[str, Any], ...] = (
    {},
    {"mode": "extend"},
    {"plan": False},
    {"prompts": [{"text": "funk"}], "format": "f32"},
)
# Messages to a session that is paused, so that nothing of the answers depends on time.
LIVE_MESSAGES: tuple[Any, ...] = (
    {"type": "set", "seq": 1, "values": {"guidance": 4.0}},
    {"type": "set", "seq": 2, "values": {"guidance": -4.0}},
    {"type": "set", "seq": 3, "values": {"nothing": 1}},
    {"type": "set", "seq": 4, "values": {"steps": 5, "shift": 2.0}, "ramp_ms": 500.0},
    {"type": "set", "seq": 5, "values": {"bpm": 128, "key": "D minor"}},
    {"type": "prompts", "seq": 6, "items": [{"text": "loud drums and soft piano"}]},
    {"type": "prompts", "seq": 7, "items": [{"text": "xyzzy"}, {"text": "bells", "weight": 0.5}], "blend": "tokens"},
    {"type": "source", "seq": 8, "id": "none"},
    {"type": "structure", "seq": 9, "id": None},
    {"type": "timbre", "seq": 10, "id": None, "strength": 0.5},
    {"type": "adapter", "seq": 11, "id": "music-box", "strength": 0.5},
    {"type": "adapter", "seq": 12, "id": "none", "strength": 0.5},
    {"type": "band", "seq": 13, "start_s": 1.0, "end_s": 2.0},
    {"type": "band", "seq": 14, "start_s": None, "end_s": None},
    {"type": "mute", "seq": 15, "layers": ["drums"]},
    {"type": "mute", "seq": 16, "layers": ["nobody"]},
    {"type": "clock", "seq": 17, "bpm": 123.0},
    {"type": "clock", "seq": 18, "bpm": 0.0},
    {"type": "seek", "to_s": 1.0, "seq": 19},
    {"type": "reset", "seq": 20},
    {"type": "set_plan", "seq": 21, "start_s": 0.0, "sections": [{"kind": "verse", "layers": ["drums"], "bars": 4}]},
    {"type": "get_plan"},
    {"type": "notes", "seq": 22, "mode": "hold", "items": [{"pitch": 60}]},
    {"type": "notes", "seq": 23, "mode": "at", "items": [{"pitch": 300}]},
    {"type": "set", "seq": 3, "values": {"guidance": 2.0}},
    {"type": "ack", "playhead_sample": 0},
    {"type": "canvas"},
)  # fmt: skip
# Each on a connection of its own, which it may end.
LIVE_FAULTS: tuple[Any, ...] = (
    {"type": "nonsense"},
    {"type": "open"},
    {"type": "set"},
    {"type": "seek", "to_s": "x"},
    "text",
    [1],
)


@contextmanager
def demo_server() -> Iterator[str]:
    """The demo's server on a free port; its address."""
    command = [sys.executable, "-m", "server", "configs/demo.toml", "--port", "0", "--log-level", "warning"]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": home}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
            assert process.stdout is not None
            try:
                found = (re.search(r"ready on (https?://\S+)", line) for line in process.stdout)
                yield next(each.group(1) for each in found if each)
            finally:
                process.send_signal(signal.SIGTERM)


def steady(value: Any, name: str = "") -> Any:
    """A JSON value without what differs from run to run: numbers and strings of volatile members tell their type."""
    if isinstance(value, dict):
        return {key: steady(item, key) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [steady(item, name) for item in value]
    if VOLATILE.search(name) and value is not None:
        return type(value).__name__
    if isinstance(value, str):
        return re.sub(r"[0-9a-f]{8,}|127\.0\.0\.1:\d+|/\S*/", "*", value)
    return round(value, 6) if isinstance(value, float) else value


def content_hash(content: bytes, form: str) -> str:
    """Of what is heard: samples of audio, tensors of latents, notes; not what a file says of its making."""
    if form == "wav":
        with wave.open(io.BytesIO(content)) as file:
            content = file.readframes(file.getnframes())
    elif form == "latents":
        length = int.from_bytes(content[:8], "little")
        content = content[8 + length :]
    elif form == "mid":
        tracks = mido.MidiFile(file=io.BytesIO(content)).tracks
        content = "".join(str(each) for track in tracks for each in track if each.type != "text").encode()
    elif form in ("flac", "mp3"):
        with av.open(io.BytesIO(content)) as file:
            content = b"".join(frame.to_ndarray().tobytes() for frame in file.decode(audio=0))
    return hashlib.sha256(content).hexdigest()[:16]


def generations(client: httpx.Client) -> Iterator[tuple[str, Any]]:
    made: dict[str, bytes] = {}
    for name, members in BODIES.items():
        body = {**PLAIN, "seed": 7, **members}
        files = {
            part: (f"{part}.wav", made[body.pop(part)]) for part in ("source", "structure", "timbre") if part in body
        }
        form = body["response_format"]
        if files:
            answer = client.post(GENERATIONS, data={"request": json.dumps(body)}, files=files)
        else:
            answer = client.post(GENERATIONS, json=body)
        made[name] = answer.content
        is_made = answer.status_code == 200
        yield name, content_hash(answer.content, form) if is_made else [answer.status_code, steady(answer.json())]


def shown(answer: httpx.Response) -> list[Any]:
    headers = {key: value for key, value in sorted(answer.headers.items()) if key in KEPT_HEADERS}
    kind = answer.headers.get("content-type", "")
    if "json" in kind:
        return [answer.status_code, headers, steady(answer.json())]
    if kind.startswith("text/plain") and "/metrics" in str(answer.url):
        return [answer.status_code, headers, sorted(re.findall(r"^# HELP .*", answer.text, re.MULTILINE))]
    return [answer.status_code, headers, hashlib.sha256(answer.content).hexdigest()[:16]]


def exchanges(client: httpx.Client) -> Iterator[tuple[str, Any]]:
    for path in PATHS:
        for method in ("GET", "POST", "DELETE") if path.startswith("/v1") else ("GET",):
            yield f"{method} {path}", shown(client.request(method, path))
    for body in REFUSED:
        yield f"POST {json.dumps(body)}", shown(client.post(GENERATIONS, json=body))
    for content in (b"", b"{", b"\xff", b"[]"):
        headers = {"Content-Type": "application/json"}
        yield f"POST {content!r}", shown(client.post(GENERATIONS, content=content, headers=headers))


def conversation(address: str, opened: dict[str, Any], messages: Iterable[Any]) -> Iterator[Any]:
    """`ready` of a paused session; then the texts that answer the messages, sorted, and how it ended."""
    with connect(address, max_size=None) as socket:
        socket.send(json.dumps({"type": "open", "paused": True, "seed": 1, **opened}))
        yield steady(json.loads(socket.recv(TIMEOUT_S)))
        with suppress(ConnectionClosed):
            for message in messages:
                socket.send(message if isinstance(message, str) else json.dumps(message))
                time.sleep(BETWEEN_S)
            time.sleep(ANSWERED_S)
            socket.send('{"type": "close"}')
        answers = [steady(json.loads(each)) for each in received(socket) if isinstance(each, str)]
        yield sorted(json.dumps(each) for each in answers if each.get("type") not in BY_TIME)
        yield socket.close_code, socket.close_reason


def received(socket: ClientConnection) -> Iterator[str | bytes]:
    with suppress(ConnectionClosed):
        while True:
            yield socket.recv(TIMEOUT_S)


def live(address: str) -> Iterator[tuple[str, Any]]:
    for opened in LIVE_OPENS:
        yield f"open {json.dumps(opened)}", list(conversation(address, opened, ()))
    yield "messages", list(conversation(address, {}, LIVE_MESSAGES))
    for fault in LIVE_FAULTS:
        yield f"fault {json.dumps(fault)}", list(conversation(address, {}, [fault]))[1:]


def record() -> dict[str, Any]:
    with demo_server() as url, httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        return {
            "generations": dict(generations(client)),
            "http": dict(exchanges(client)),
            "live": dict(live(url.replace("http", "ws") + "/v1/live")),
        }


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), f"{where} / {key}")
    elif before != after:
        yield f"{where}:\n  before {json.dumps(before)[:600]}\n  after  {json.dumps(after)[:600]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    now = json.loads(json.dumps(record()))
    if asked.what == "record":
        asked.file.write_text(json.dumps(now, indent=1), encoding="utf-8")
        return 0
    found = list(differences(json.loads(asked.file.read_text(encoding="utf-8")), now))
    print("\n".join(found) or f"as before: {', '.join(f'{len(each)} {name}' for name, each in now.items())}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
