"""Models with fewer parts, and other names of their axes, through every command: build to profile."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import Built
from helpers.factories import TinySpec
from helpers.http_harness import GENERATIONS, serving
from typer.testing import CliRunner

import tickrt
from profiling.bench_cli import app as bench
from profiling.profile_cli import app as profile
from runtime.base.errors import ConfigError
from runtime.commands.generate import app as generate
from runtime.config.deployment import Deployment
from server.cli import print_ready

SPEC = TinySpec()
T, C, D = SPEC.canvas_frames, SPEC.channels, SPEC.condition_width
BARE = {"text_encoder": False, "codec": False, "context": False, "guidance": 1.0}
MODELS: dict[str, dict[str, Any]] = {
    "no condition": {**BARE, "condition": "", "mask": False},
    "no condition, with codec": {**BARE, "condition": "", "mask": False, "codec": True},
    "no condition, with context": {**BARE, "condition": "", "mask": False, "context": True},
    "a vector as condition": {**BARE, "condition": "vector", "mask": False},
    "tokens without a mask": {**BARE, "mask": False},
    "tokens with a mask": BARE,
    "axes without names": {**BARE, "axes": ("", "", "")},
    "one name for all axes": {**BARE, "axes": ("n", "n", "n")},
}


@dataclass(frozen=True)
class Case:
    """One of MODELS, built, and how many condition tokens `[L, D]` it is given; None for none."""

    deployment: Deployment
    num_tokens: int | None
    has_codec: bool

    @property
    def config(self) -> str:
        return str(self.deployment.path)

    @property
    def condition(self) -> np.ndarray | None:
        if self.num_tokens is None:
            return None
        return np.random.default_rng(2).standard_normal((self.num_tokens, D)).astype(np.float32)


@pytest.fixture(scope="module", params=MODELS)
def case(built: Built, request: pytest.FixtureRequest) -> Iterator[Case]:
    spec = MODELS[request.param]
    deployment = built(more='[build]\nstep_variants = ["plain", "guidance"]\n', **spec)
    num_tokens = {"": None, "vector": 1}.get(spec.get("condition", "tokens"), 5)
    return Case(deployment, num_tokens, spec["codec"])


def run(app: Any, *arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def flags(case: Case, folder: Path) -> list[str]:
    """The flags that give the condition, where there is one."""
    if case.condition is None:
        return []
    np.save(folder / "condition.npy", case.condition)
    return ["--condition", str(folder / "condition.npy")]


def test_latents_are_generated(case: Case, tmp_path: Path) -> None:
    run(generate, case.config, *flags(case, tmp_path), "--seed", 1, "--out", tmp_path / "a.safetensors")
    latents = safetensors.numpy.load_file(tmp_path / "a.safetensors")["latents"]
    assert latents.shape == (T, C)
    with tickrt.open(case.config) as model:
        again = model.generate(seed=1) if case.condition is None else model.generate(condition=case.condition, seed=1)
        assert np.array_equal(again.latents, latents)
        assert not case.has_codec or len(again.pcm)


def test_it_is_served_with_the_defaults_that_hold(case: Case) -> None:
    with serving(case.deployment) as served, served.client() as client:
        schema = client.get("/v1/schema").json()
        assert "prompt" not in schema["properties"]
        assert "prompt" not in schema.get("required", [])
        defaults = {name: schema["properties"][name]["default"] for name in ("steps", "guidance", "response_format")}
        assert defaults == {"steps": 4, "guidance": 1.0, "response_format": "wav" if case.has_codec else "latents"}
        response = client.post(GENERATIONS, **sent(case))
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == ("audio/wav" if case.has_codec else "application/vnd.safetensors")
        if case.condition is not None:
            refused = client.post(GENERATIONS, json={}).json()
            assert refused["errors"][0]["pointer"] == "/condition"
            assert "a form's part `condition` over HTTP" in refused["fix"]
        refused = client.post(GENERATIONS, json={"prompt": "piano"})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/prompt")


def sent(case: Case, **body: Any) -> dict[str, Any]:
    """Arguments of httpx for a generation: JSON, or a form with the condition."""
    if case.condition is None:
        return {"json": body}
    tensor = safetensors.numpy.save({"condition": case.condition})
    return {"files": {"request": (None, json.dumps(body), "application/json"), "condition": ("condition", tensor)}}


def test_a_condition_over_http_gives_the_same_latents(case: Case) -> None:
    with serving(case.deployment) as served, served.client() as client:
        response = client.post(GENERATIONS, **sent(case, seed=1, response_format="latents"))
        assert response.status_code == 200, response.text
        found = safetensors.numpy.load(response.content)["latents"]
    with tickrt.open(case.config) as model:
        inputs = {} if case.condition is None else {"condition": case.condition}
        assert np.array_equal(model.generate(seed=1, **inputs).latents, found)


def test_the_printed_command_works(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if case.condition is not None:
        safetensors.numpy.save_file({"condition": case.condition}, tmp_path / "condition.safetensors")
    with serving(case.deployment) as served:
        print_ready(served.url, served.service.settings, served.pipeline.bundle)
        command = shlex.split(capsys.readouterr().out.splitlines()[-1])
        subprocess.run([*command, "--fail"], cwd=tmp_path, capture_output=True, timeout=30, check=True)
    name = "out.wav" if case.has_codec else "out.safetensors"
    assert (tmp_path / name).stat().st_size > 1000


def test_live_is_refused_where_it_cannot_play(case: Case) -> None:
    with tickrt.open(case.config) as model:
        if case.has_codec:
            with model.live() as live:
                assert len(next(iter(live)))
            return
        with pytest.raises(ConfigError, match=r"has no \[codec\]: it makes latents, and live sessions need audio"):
            model.live()


def test_it_is_measured(case: Case, tmp_path: Path) -> None:
    short = ("--depth", 2, "--ticks", 2, "--steps", 2, "--json", tmp_path / "result.json")
    run(bench, case.config, *short)
    assert json.loads((tmp_path / "result.json").read_text())["tokens"] == (16 if case.num_tokens == 5 else 1)
    run(bench, case.config, *short, "--guidance", 3)
    assert "decoder" in run(profile, case.config, "--runs", 1)
    assert "step" in run(profile, case.config, "--runs", 1, "--engine", "step")
