"""The model of configs/docs/pages/model.md, by its own lines: script, init, build, generate, serve, bench, profile."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.http_harness import serving
from helpers.paths import ROOT
from typer.testing import CliRunner

from engine_build.cli import app as build
from profiling.bench_cli import app as bench
from profiling.profile_cli import app as profile
from runtime.commands.generate import app as generate
from runtime.config.deployment import load_deployment
from runtime.config.explain import validated
from runtime.config.planner import PlannerSpec

PAGE = ROOT / "configs/docs/pages/model.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = {
    "tickrt-build": build,
    "tickrt-generate": generate,
    "tickrt-bench": bench,
    "tickrt-profile": profile,
}
SHORTER = {"tickrt-bench": ["--ticks", "2", "--steps", "2"], "tickrt-profile": ["--runs", "1"]}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def lines() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the model, in which the shown commands up to the server have run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("model"))
        (program,) = (block for block in blocks("python") if not block.startswith(">>>"))
        exec(compile(program, "model.md", "exec"), {})
        before = [words[0] for words in lines()].index("tickrt-serve")
        for words in lines()[:before]:
            run(words)
        yield Path.cwd()


def run(words: list[str]) -> None:
    result = CliRunner().invoke(COMMANDS[words[0]], [*words[1:], *SHORTER.get(words[0], [])])
    assert result.exit_code == 0, f"{' '.join(words)}\n{result.output}"


def assert_is_the_sound(path: Path) -> None:
    """Two seconds of the four sines that the script names, each half as loud as the one before."""
    pcm, rate_hz = soundfile.read(path)
    assert (len(pcm), rate_hz) == (96_000, 48_000)
    spectrum = np.abs(np.fft.rfft(pcm[24_000:72_000])) / 24_000  # between the fades
    assert np.allclose(spectrum[[400, 800, 1200, 1600]] / spectrum[400], [1, 0.5, 0.25, 0.125], atol=1e-3)
    assert spectrum[400] > 0.1


def test_the_sound_is_that_of_the_script(folder: Path) -> None:
    assert_is_the_sound(folder / "tone.wav")


def test_the_shown_files_are_those_that_init_writes(folder: Path) -> None:
    shown = [tomllib.loads(block) for block in blocks("toml")[:2]]
    assert [tomllib.loads((folder / name).read_text()) for name in ("bundle.toml", "deployment.toml")] == shown


def test_the_shown_request_works(folder: Path) -> None:
    (words,) = (words for words in lines() if words[0] == "curl")
    body = json.loads(words[words.index("-d") + 1])
    with serving(load_deployment(Path("deployment.toml"))) as served, served.client() as client:
        response = client.post("/v1/audio/generations", json=body)
        assert response.status_code == 200, response.text
        (folder / "served.wav").write_bytes(response.content)
        assert "prompt" not in client.get("/v1/schema").json()["properties"]
    assert "/v1/audio/generations" in " ".join(words)


@pytest.mark.parametrize("command", ["tickrt-bench", "tickrt-profile"])
def test_it_is_measured(folder: Path, command: str) -> None:
    for words in lines():
        if words[0] == command:
            run(words)


def test_the_shown_planner_is_one() -> None:
    (table,) = (found["planner"] for found in map(tomllib.loads, blocks("toml")) if "planner" in found)
    planner = validated(PlannerSpec, table, "planner")
    assert planner.codes.tokens(624) == (224, 249)
    assert [planner.codes.numbers(planner.codes.tokens(number)) for number in (0, 26)] == [[0], [26]]


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (PAGE.parent / link).exists(), link
