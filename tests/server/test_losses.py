"""What cannot be read of a file is told at every door that files come in by, in the same words."""

from __future__ import annotations

import json
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Built
from helpers import odd_midi
from helpers.acestep_client import AceStepClient
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import GENERATIONS, Served, serving
from helpers.live_player import player
from helpers.mcp_client import talk
from helpers.odd_audio import DAMAGED
from helpers.paths import ROOT
from pythonosc.udp_client import SimpleUDPClient
from typer.testing import CliRunner

import tickrt
from runtime.commands.generate import app

DATA, TOLD = DAMAGED["cut flac"][0], re.compile(r"at least 0\.\d\d s of the audio cannot be decoded and are left out")
MIDI = odd_midi.HEAD + odd_midi.chunk(b"MTrk", odd_midi.notes(40) + odd_midi.notes(43)[:2])
MIDI_TOLD = re.compile(r"of the MIDI file what follows is left out where track 1")
READERS = (
    r"_?read_source|read_timbre|read_notes|notes_of_midi|(?<!pieces\.)store_source|sources\.(?:add|data|latents|read)|self\.sources|"
    r"inputs\.(?:read|file)"
)
READS = re.compile(rf"(?<!def )(?<!\w)(?:{READERS})[(,]")
SHORT = {"prompt": "a", "seconds": 0.64, "steps": 1}
OPEN = {"prompts": [{"text": "a"}], "seconds": 1.28}


class Doors:
    """Each method gives all that a client is told where it brings the damaged file."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.path, self.folder = served, folder / "a.flac", folder
        self.path.write_bytes(DATA)
        self.source_id = self._uploaded().json()["id"]

    def _uploaded(self) -> Any:
        with self.served.client() as client:
            return client.post("/v1/sources", content=DATA)

    def store(self) -> Iterator[Any]:
        """Also where the file is there already."""
        with self.served.client() as client:
            client.delete(f"/v1/sources/{self.source_id}")
            yield self._uploaded().json()
            yield self._uploaded().json()
            yield client.get(f"/v1/sources/{self.source_id}").json()
            yield client.get("/v1/sources").json()

    def generation(self) -> Iterator[Any]:
        form = {"request": (None, json.dumps(SHORT))}
        with self.served.client() as client:
            for part in ("source", "structure"):
                yield self.served.card(client.post(GENERATIONS, files={**form, part: ("a.flac", DATA)}))
        for name in ("source_id", "structure_id"):
            made = self.served.post(**SHORT, **{name: self.source_id})
            assert made.headers["x-damaged"] == "true"
            yield self.served.card(made)

    def live(self) -> Iterator[Any]:
        with player(self.served) as client:
            yield client.open(**OPEN, source_id=self.source_id).losses
            client.send(type="source", seq=1, id=self.source_id)
            yield client.receive_until(lambda item: getattr(item, "losses", ())).losses

    def mcp(self) -> Iterator[Any]:
        for tool in ("cover", "live_open"):
            values = (
                {**SHORT, "source_id": self.source_id} if tool == "cover" else {**OPEN, "source_id": self.source_id}
            )
            yield talk(self.served, lambda client, tool=tool, values=values: client.call_tool(tool, values))

    def acestep(self) -> Iterator[Any]:
        with self.served.client() as http:
            yield AceStepClient(http).daw("cover", DATA)

    def comfyui(self, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
        names: dict[str, Any] = {"__name__": "comfyui_tickrt"}
        exec((ROOT / "server/clients/comfyui_tickrt.py").read_text(encoding="utf-8"), names)
        names["_tensor"] = lambda array: array
        options = json.dumps({"source_id": self.source_id, "steps": 1})
        names["TickRTGenerate"]().generate("a", 0.64, 1, options=options, server=self.served.url)
        yield caplog.text

    def osc(self) -> Iterator[Any]:
        surfaces: Any = self.served.app.state.osc
        surface = SimpleUDPClient("127.0.0.1", surfaces.port, family=socket.AF_INET)
        with player(self.served) as client, closing(surface):
            client.open(**OPEN)
            surface.send_message("/tickrt/source", [self.source_id])
            yield next(found for found in surface.get_messages(60) if found.address == "/tickrt/error").params

    def remote(self) -> Iterator[Any]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with tickrt.TickRT(self.served.url).live("a", seconds=1.28, source=self.path) as live:
                live.structure(self.path)
        yield from (f"{item.message}" for item in told)


@pytest.fixture(scope="module")
def doors(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    limits = {"client_sessions": 0, "max_refresh_s": 1e6}
    with serving(built(conditions=True, structure=True, more=FEW_VARIANTS), osc_port=0, **limits) as served:
        yield Doors(served, tmp_path_factory.mktemp("doors"))


@pytest.mark.parametrize(
    ("door", "times"),
    [
        ("store", 4),
        ("generation", 4),
        ("live", 2),
        ("mcp", 2),
        ("acestep", 1),
        ("osc", 1),
        ("comfyui", 1),
        ("remote", 2),
    ],
)
def test_every_door_of_a_server_tells_it(doors: Doors, door: str, times: int, caplog: pytest.LogCaptureFixture) -> None:
    call = getattr(doors, door)
    told = list(call(caplog) if door == "comfyui" else call())
    assert len(told) == times
    assert [text for text in told if not TOLD.search(str(text))] == []


@pytest.mark.parametrize("name", ["source", "structure", "timbre"])
def test_python_and_the_command_line_tell_it(built: Built, tmp_path: Path, name: str) -> None:
    deployment, path, out = (
        built(conditions=True, structure=True, more=FEW_VARIANTS).path,
        tmp_path / "a.flac",
        tmp_path,
    )
    path.write_bytes(DATA)
    with tickrt.open(deployment) as model:
        with pytest.warns(UserWarning, match=TOLD) as told:
            model.generate("a", seconds=0.64, steps=1, **{name: path})
        with pytest.warns(UserWarning, match=TOLD) as live_told, model.live("a", seconds=1.28) as live:
            getattr(live, name)(path)
    assert [str(item.message).startswith(f"{path}: ") for item in (*told, *live_told)] == [True, True]
    flags = [str(deployment), "--prompt", "a", "--seconds", "0.64", "--steps", "1", f"--{name}", str(path)]
    made = CliRunner().invoke(app, [*flags, "-o", str(out / "b.wav")])
    assert made.exit_code == 0, made.output
    assert TOLD.search(made.stderr)


def test_what_is_mended_in_midi_is_told_too(built: Built, tmp_path: Path) -> None:
    deployment, path = built(notes=True, structure=True), tmp_path / "a.mid"
    path.write_bytes(MIDI)
    flags = [str(deployment.path), "--prompt", "a", "--seconds", "1.28", "--steps", "1", "--notes", str(path)]
    made = CliRunner().invoke(app, [*flags, "-o", str(tmp_path / "b.wav")])
    assert MIDI_TOLD.search(made.stderr), made.output
    with tickrt.open(deployment.path) as model, pytest.warns(UserWarning, match=MIDI_TOLD) as told:
        model.generate("a", seconds=1.28, steps=1, notes=path)
    assert [str(item.message).startswith(f"{path}: ") for item in told] == [True]
    form = {"request": (None, json.dumps({**SHORT, "seconds": 1.28})), "notes": ("a.mid", MIDI)}
    with serving(deployment) as served, served.client() as client:
        response = client.post(GENERATIONS, files=form)
        assert response.headers["x-damaged"] == "true"
        assert MIDI_TOLD.search(str(served.card(response)["losses"]))


# Modules that read files which clients bring -> the tests above that show that what is left out is told.
DOORS = {
    "runtime/commands/generate.py": "test_python_and_the_command_line_tell_it",
    "runtime/api/tickrt/model.py": "test_python_and_the_command_line_tell_it",
    "runtime/api/tickrt/live_sessions.py": "test_python_and_the_command_line_tell_it",
    "runtime/music/midi_file.py": "test_what_is_mended_in_midi_is_told_too",
    "runtime/live/hosting/services.py": "live",
    "runtime/pipeline/inputs.py": "generation",  # what the others read with
    "server/protocols/acestep/routes.py": "acestep",
    "server/protocols/mcp/tools.py": "mcp",
    "server/routes/generation_job.py": "generation",
    "server/routes/generations.py": "test_what_is_mended_in_midi_is_told_too",
    "server/routes/sources.py": "store",
    "server/service/service.py": "store",  # opens the store
}


def test_no_module_reads_files_without_telling() -> None:
    """A new one tells it, and is named above with its test."""
    modules = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").splitlines()
        for package in ("runtime", "server")
        for path in (ROOT / package).rglob("*.py")
    }
    reading = {name for name, lines in modules.items() for line in lines if READS.search(line) and '"""' not in line}
    assert reading == DOORS.keys()
    assert [test for test in DOORS.values() if test not in globals() and not hasattr(Doors, test)] == []
