"""The programs of server/clients, as they are, against a server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from helpers.http_harness import Served, eventually, serving
from helpers.paths import ROOT

CLIENTS = ROOT / "server" / "clients"
KEY = "a-key-of-these-tests"
SECONDS = 8.0


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Any]) -> Iterator[Served]:
    """A server with a key."""
    with serving(tiny(), api_key=KEY, client_sessions=0) as served:
        yield served


def run(served: Served, folder: Path, *command: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, with the address and the key of the server."""
    environment = {**os.environ, "TICKRT_URL": served.url, "TICKRT_API_KEY": key}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def node(*, websocket: bool = False) -> list[str]:
    """The command of Node.js; the test is skipped where it is not installed, or too old."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.findall(r"\d+", version)[0])
    if major < (20 if websocket else 18):
        pytest.skip(f"node {version.strip()} has no WebSocket" if websocket else f"node {version.strip()} has no fetch")
    return [path, "--experimental-websocket"] if websocket and major < 22 else [path]


def assert_is_music(file: Path, seconds: float = SECONDS) -> None:
    pcm, rate_hz = soundfile.read(file)
    assert len(pcm) / rate_hz == pytest.approx(seconds, abs=0.5)
    assert np.abs(pcm).max() > 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: Served, tmp_path: Path) -> None:
    done = run(server, tmp_path, "sh", str(CLIENTS / "generate.sh"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_is_music(tmp_path / "melody.flac")
    assert_is_music(tmp_path / "cover.flac")
    assert (tmp_path / "melody.flac").read_bytes() != (tmp_path / "cover.flac").read_bytes()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_ends_with_what_the_server_says(server: Served, tmp_path: Path) -> None:
    done = run(server, tmp_path, "sh", str(CLIENTS / "generate.sh"), key="wrong")
    assert done.returncode != 0
    assert json.loads((tmp_path / "melody.flac").read_text())["status"] == 401


@pytest.mark.parametrize("language", ["python", "node"])
def test_a_generation_becomes_a_file(server: Served, tmp_path: Path, language: str) -> None:
    program = [sys.executable, str(CLIENTS / "generate.py")]
    if language == "node":
        program = [*node(), str(CLIENTS / "generate.mjs")]
    done = run(server, tmp_path, *program, "calm piano", "calm.flac")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"calm\.flac: seed \d+\n", done.stdout)
    assert_is_music(tmp_path / "calm.flac")
    refused = run(server, tmp_path, *program, "calm piano", "calm.doc")
    assert refused.returncode == 1
    assert "response_format" in refused.stderr
    assert not (tmp_path / "calm.doc").exists()


# The client as one module.


@pytest.fixture
def folder(server: Served, tmp_path: Path) -> Path:
    """A folder with the module of the server and the programs that import it."""
    (tmp_path / "tickrt.mjs").write_bytes(server.get("/page/tickrt.js").content)
    shutil.copy(CLIENTS / "live.mjs", tmp_path)
    return tmp_path


def test_node_plays_a_live_session(server: Served, folder: Path) -> None:
    done = run(server, folder, *node(websocket=True), "live.mjs", "live.pcm")
    assert done.returncode == 0, done.stderr
    pcm = np.fromfile(folder / "live.pcm", "<f4")
    codec = server.pipeline.bundle.codec
    assert codec is not None
    assert len(pcm) == 50 * round(0.1 * codec.sample_rate_hz) * codec.channels
    assert np.abs(pcm).max() > 0
    assert_has_no_session(server)


def assert_has_no_session(server: Served) -> None:
    """The server ends it when it has read that it is closed."""
    with httpx.Client(base_url=server.url, headers={"x-api-key": KEY}) as client:
        eventually(lambda: client.get("/v1/sessions").json()["data"] == [])


def evaluate(server: Served, folder: Path, program: str, key: str = KEY) -> dict[str, Any]:
    """What a program that has the module's `Live` prints as JSON."""
    (folder / "program.mjs").write_text(
        f'import {{ Live }} from "./tickrt.mjs";\nconst {{ TICKRT_URL, TICKRT_API_KEY }} = process.env;\n{program}'
    )
    done = run(server, folder, *node(websocket=True), "program.mjs", key=key)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_change_is_applied_and_said(server: Served, folder: Path) -> None:
    found = evaluate(
        server,
        folder,
        """
const live = new Live(TICKRT_URL, { key: TICKRT_API_KEY, prompts: ["a", ["b", 0.5]], controls: { guidance: 2 } });
const told = {}, problems = [];
live.on("ready", (ready) => (told.first = ready.controls));
live.on("applied", ({ seq }) => (told.applied = seq));
live.on("problem", ({ field }) => problems.push(field));
const early = (() => { try { live.change("mute", { layers: [] }); } catch (error) { return error.message; } })();
const seqs = [];
for await (const _ of live.audio()) {
  if (!seqs.length) {
    seqs.push(live.set({ guidance: 4 }), live.prompts("c"), live.change("set", { values: { gudance: 1 } }));
  }
  if (told.applied >= 2 && problems.length) live.close();
}
console.log(JSON.stringify({ seqs, problems, early, ...told }));
""",
    )
    assert "await live.opened" in found["early"]
    assert found["seqs"] == [1, 2, 3]
    assert found["problems"] == ["values.gudance"]
    assert found["first"]["values"]["guidance"] == 2
    assert found["first"]["prompts"] == [{"text": "a", "weight": 1.0}, {"text": "b", "weight": 0.5}]
    assert_has_no_session(server)


def test_the_lines_of_the_readme(server: Served, folder: Path) -> None:
    (shown,) = re.findall(r"^```js\n(.*?)^```", (CLIENTS / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    lines = re.sub(r"^import .*\n", "", shown)
    lines = lines.replace('"http://localhost:8000", {', "TICKRT_URL, { key: TICKRT_API_KEY,")
    found = evaluate(
        server,
        folder,
        f"""
const button = {{}}, slider = {{ value: "4" }}, problems = [], applied = [];
console.log = () => {{}};
{lines}
live.on("problem", ({{ seq }}) => problems.push(seq)), live.on("applied", ({{ seq }}) => applied.push(seq));
const said = await button.onclick().catch((error) => error.message);
slider.oninput();
for await (const _ of live.audio()) if (applied.includes(3) && problems.length === 2) live.close();
console.info(JSON.stringify({{ said, problems }}));
""",
    )
    # Node.js has no speakers; and this model has neither bars nor layers.
    assert "speakers" in found["said"]
    assert found["problems"] == [1, 2]


LOST = """
let sockets = [];
const Real = WebSocket;
globalThis.WebSocket = class extends Real { constructor(...given) { super(...given); sockets.push(this); } };
const live = new Live(TICKRT_URL, { key: TICKRT_API_KEY, prompts: "a", seed: 3 });
const resumed = [];
live.on("ready", (ready) => resumed.push(ready.resumed));
let blocks = 0;
for await (const _ of live.audio()) {
  if (++blocks === 5) sockets.at(-1).close();
  if (resumed.length > 1 && blocks > 10) live.close();
}
console.log(JSON.stringify({ resumed }));
"""


def test_a_lost_connection_is_resumed(server: Served, folder: Path) -> None:
    assert evaluate(server, folder, LOST) == {"resumed": [False, True]}


REFUSED = """
const live = new Live(TICKRT_URL, { key: TICKRT_API_KEY, ...OPTIONS });
const said = await live.opened.catch((error) => error.message);
const read = await live.audio().next().catch((error) => error.message);
console.log(JSON.stringify({ said, read }));
"""


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [('{ mode: "backwards" }', KEY, "mode"), ("{}", "wrong", "key")],
    ids=["an invalid member", "a wrong key"],
)
def test_a_refused_session_says_why_and_ends(server: Served, folder: Path, options: str, key: str, said: str) -> None:
    found = evaluate(server, folder, REFUSED.replace("OPTIONS", options), key=key)
    assert said in found["said"]
    assert found["read"] == found["said"]


def test_audio_is_uploaded_and_played_from(server: Served, folder: Path) -> None:
    soundfile.write(folder / "tone.wav", 0.1 * np.sin(np.arange(48_000) / 20), 48_000)
    found = evaluate(
        server,
        folder,
        """
import { readFileSync } from "node:fs";
const live = new Live(TICKRT_URL, { key: TICKRT_API_KEY, prompts: "a" });
await live.opened;
const id = await live.upload(new Blob([readFileSync("tone.wav")]));
const refused = await live.upload(new Blob(["no audio"])).catch((error) => error.message);
live.close();
console.log(JSON.stringify({ id, refused }));
""",
    )
    assert re.fullmatch("[0-9a-f]{64}", found["id"])
    assert "audio" in found["refused"]


# ComfyUI.


@pytest.fixture
def comfyui(server: Served, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The node's module, as ComfyUI loads it, with NumPy's arrays in place of torch's tensors."""
    monkeypatch.setenv("TICKRT_URL", server.url)
    monkeypatch.setenv("TICKRT_API_KEY", KEY)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_numpy=lambda array: array))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("comfyui_tickrt", CLIENTS / "comfyui_tickrt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_node_gives_comfyuis_audio(server: Served, comfyui: ModuleType) -> None:
    node = comfyui.NODE_CLASS_MAPPINGS["TickRTGenerate"]()
    audio, parameters = getattr(node, node.FUNCTION)("a", seconds=2.0, seed=7, options='{"guidance": 2}')
    codec = server.pipeline.bundle.codec
    assert codec is not None
    assert audio["sample_rate"] == codec.sample_rate_hz
    assert audio["waveform"].shape == (1, codec.channels, 2 * codec.sample_rate_hz)
    assert audio["waveform"].dtype == np.float32
    assert 0 < np.abs(audio["waveform"]).max() <= 1
    made = json.loads(parameters)
    assert (made["seed"], made["guidance"]) == (7, 2)
    again, _ = node.generate("a", seconds=2.0, seed=7, options=parameters)
    assert np.array_equal(again["waveform"], audio["waveform"])


def test_the_nodes_parameters_are_all_of_them_where_they_are_long(comfyui: ModuleType) -> None:
    node, curve = comfyui.TickRTGenerate(), [1.5] * 500
    _, parameters = node.generate("a", seconds=2.0, seed=7, options=json.dumps({"guidance": curve}))
    assert json.loads(parameters)["guidance"] == curve


def test_the_node_covers_what_another_node_gives(comfyui: ModuleType) -> None:
    node = comfyui.TickRTGenerate()
    source, _ = node.generate("a", seconds=2.0, seed=1)
    near, parameters = node.generate("b", seconds=2.0, seed=2, source=source, denoise=0.25)
    plain, _ = node.generate("b", seconds=2.0, seed=2)
    assert json.loads(parameters)["denoise"] == 0.25
    assert not np.array_equal(near["waveform"], plain["waveform"])


def test_the_nodes_inputs_are_arguments_and_options_of_the_server(server: Served, comfyui: ModuleType) -> None:
    inputs = comfyui.TickRTGenerate.INPUT_TYPES()
    with httpx.Client(base_url=server.url, headers={"x-api-key": KEY}) as client:
        known = client.get("/v1/schema").json()["properties"]
    given = {**inputs["required"], **inputs["optional"]}
    assert set(given) - set(known) == {"source", "options", "server"}
    assert len(comfyui.TickRTGenerate.RETURN_TYPES) == len(comfyui.TickRTGenerate.RETURN_NAMES) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"options": "{guidance: 2}"}, "options: expected JSON"),
        ({"options": "[2]"}, "options: expected an object"),
        ({"options": '{"gudance": 2}'}, "guidance"),
        ({"server": "http://127.0.0.1:9"}, "does not answer"),
    ],
)
def test_the_node_says_what_is_wrong(comfyui: ModuleType, arguments: dict[str, str], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        comfyui.TickRTGenerate().generate("a", seconds=1.0, seed=1, **arguments)


def test_an_interrupted_workflow_ends_the_generation(comfyui: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptError(Exception):
        pass

    def interrupt() -> None:
        raise InterruptError

    management = SimpleNamespace(throw_exception_if_processing_interrupted=interrupt)
    monkeypatch.setitem(sys.modules, "comfy", SimpleNamespace(model_management=management))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)  # type: ignore[arg-type]
    with pytest.raises(InterruptError):
        comfyui.TickRTGenerate().generate("a", seconds=2.0, seed=1)


def test_every_client_is_shown_and_every_shown_one_exists() -> None:
    shown = set(re.findall(r"^\| \[([\w.]+)\]", (CLIENTS / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == {path.name for path in CLIENTS.iterdir() if path.suffix in (".py", ".mjs", ".sh", ".html")}
