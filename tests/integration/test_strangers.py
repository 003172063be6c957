"""Graphs as strangers export them, through the commands: each cell of the table is right, or refused with its sentence.

`python tests/integration/test_strangers.py` prints the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import numpy as np
import onnxruntime
import pytest
import safetensors.numpy
from helpers.http_harness import GENERATIONS, serving
from helpers.oracle import schedule
from helpers.strangers_graphs import STRANGERS, Stranger, condition
from numpy.typing import NDArray
from real_builder.judge import need_builder
from typer.testing import CliRunner

from engine_build.cli import app as build
from profiling.bench_cli import app as bench
from profiling.profile_cli import app as profile
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment
from runtime.requests.timesteps import noise

STEPS, SEEDS = 3, range(1, 9)
LIMIT = 1e-4  # of the largest value
SOUND_LIMIT = 1e-3  # with 16 bits, and a level that follows the piece


class Case(NamedTuple):
    """A stranger, and the folder that it is in."""

    stranger: Stranger
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "deployment.toml"


def command(app: Any, *arguments: object) -> str:
    """The sentence with which a command refuses; "" where it works. What is not one of our errors is raised."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output if result.exit_code else ""


def initialized(case: Case) -> str:
    codec = ["--codec", case.folder / "codec.onnx"] if case.stranger.has_codec else []
    said = command(build, "init", case.folder / "model.onnx", *codec, *case.stranger.flags)
    if not said:
        with case.config.open("a") as file:
            file.write('[build]\nstep_variants = ["plain"]\nthreads = 1\n' + case.stranger.build)
    return said


def built(case: Case) -> str:
    return command(build, "build", case.config)


def built_for_rtx(case: Case) -> str:
    return command(build, "build", case.config, "--target", "tensorrt-rtx")


def served(case: Case) -> str:
    """All seeds at once; what differs from Euler's loop over the graph as it is."""
    pool = ThreadPoolExecutor(len(SEEDS))
    with pool, serving(load_deployment(case.config)) as server, server.client() as client:
        found = list(pool.map(lambda seed: generated(case, client, seed), SEEDS))
        if case.stranger.has_codec and (off := sounds_off(case, client)) > SOUND_LIMIT:
            return f"the sound is off by {off:.2g}"
    for seed, latents in zip(SEEDS, found, strict=True):
        expected = euler(case, seed)
        if (off := float(np.abs(latents - expected).max() / np.abs(expected).max())) > LIMIT:
            return f"seed {seed} is off by {off:.2g}"
    return ""


def generated(case: Case, client: httpx.Client, seed: int) -> NDArray[np.float32]:
    body = {"seed": seed, "steps": STEPS, "shift": 1.0, "guidance": 1.0, "response_format": "latents"}
    given, sent = condition(case.stranger), {"json": body}
    if given is not None:
        tensor = safetensors.numpy.save({"condition": given})
        sent = {"files": {"request": (None, json.dumps(body), "application/json"), "condition": ("c", tensor)}}
    response = client.post(GENERATIONS, **sent)
    assert response.status_code == 200, response.text
    found: NDArray[np.float32] = safetensors.numpy.load(response.content)["latents"]
    return found


def sounds_off(case: Case, client: httpx.Client) -> float:
    """How far the middle of one generation's sound is from the codec's of the same latents; its level is free."""
    body = {"seed": 1, "steps": STEPS, "shift": 1.0, "response_format": "pcm"}
    pcm = np.frombuffer(client.post(GENERATIONS, json=body).content, "<i2").astype(np.float64)
    codec = onnxruntime.InferenceSession(str(case.folder / "codec.onnx"))
    expected = codec.run(None, {"x": euler(case, 1)[None]})[0].ravel().astype(np.float64)
    middle = slice(len(expected) // 3, 2 * len(expected) // 3)
    found, wanted = pcm[middle], expected[middle]
    gain = found @ wanted / (wanted @ wanted)
    return float(np.abs(found - gain * wanted).max() / np.abs(found).max())


def euler(case: Case, seed: int) -> NDArray[np.float32]:
    """One generation alone, by ONNX Runtime."""
    bundle, session = load_bundle(case.folder), onnxruntime.InferenceSession(str(case.folder / "model.onnx"))
    names, given = bundle.decoder.inputs, condition(case.stranger)
    x = noise(bundle.latents.canvas_frames, bundle.latents.channels, seed)
    feeds: dict[str, NDArray[np.float32]] = {}
    if given is not None and names.condition is not None:
        rank = len(next(item.shape for item in session.get_inputs() if item.name == names.condition))
        feeds[names.condition] = given if rank == 2 else given[None]
    if names.condition_mask is not None and given is not None:
        feeds[names.condition_mask] = np.ones((1, len(given)), np.float32)
    times = schedule(STEPS, 1.0, 1.0).astype(np.float32)
    for now, then in pairwise(times):
        (velocity,) = session.run(None, {names.latents: x[None], names.time: now[None], **feeds})
        x = x - (now - then) * velocity[0]
    return x


def benched(case: Case) -> str:
    return command(bench, case.config, "--depth", 2, "--ticks", 2, "--steps", 2)


def profiled(case: Case) -> str:
    return command(profile, case.config, "--runs", 1)


COMMANDS: dict[str, Callable[[Case], str]] = {
    "init": initialized,
    "build": built,
    "serve": served,
    "bench": benched,
    "profile": profiled,
}


def case_of(name: str, folder: Path) -> Case:
    STRANGERS[name].write(folder)
    return Case(STRANGERS[name], folder)


def check(stage: str, case: Case, said: str) -> bool:
    """Whether the next command makes sense."""
    wanted = case.stranger.refused.get(stage, "")
    assert wanted in said if wanted else not said, said
    assert not said or "fix: " in said, said
    return not wanted


@pytest.mark.parametrize("name", STRANGERS)
def test_init_writes_a_bundle_or_says_why_not(name: str, tmp_path: Path) -> None:
    case = case_of(name, tmp_path)
    check("init", case, initialized(case))


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
def test_every_command_is_right_or_says_why_not(name: str, tmp_path: Path) -> None:
    case = case_of(name, tmp_path)
    for stage, run in COMMANDS.items():
        if not check(stage, case, run(case)):
            return


@pytest.mark.builder
@pytest.mark.parametrize("name", STRANGERS)
def test_the_builder_for_rtx_takes_it_or_says_why_not(name: str, tmp_path: Path) -> None:
    need_builder()
    case = case_of(name, tmp_path)
    if check("init", case, initialized(case)) and "build" not in case.stranger.refused:
        check("rtx", case, built_for_rtx(case))


def cell(run: Callable[[Case], str], case: Case) -> str:
    try:
        return " ".join(run(case).split()).removeprefix("error: ")[:100] or "right"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:100]


def main() -> None:
    """A line per graph and command."""
    stages = {**COMMANDS, "rtx": built_for_rtx}
    for name in sys.argv[1:] or STRANGERS:
        with TemporaryDirectory() as folder:
            case = case_of(name, Path(folder))
            for stage, run in stages.items():
                said = cell(run, case)
                print(f"{name:36} {stage:8} {said}", flush=True)
                if said != "right" and stage in ("init", "build"):
                    break


if __name__ == "__main__":
    main()
