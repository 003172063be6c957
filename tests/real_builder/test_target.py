"""The target tensorrt-rtx: what the real builder is asked for, and engines that it builds without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from real_builder.judge import TARGET, need_builder, release
from simulator.fixture import SITE

from engine_build.compile.worker import BuildLog, CompileRequest, OnLog, Worker
from engine_build.config import RTX_CAPABILITIES, RTX_OPTIONS, BuildConfig
from runtime.engines.tensorrt.binding import bind

pytestmark = pytest.mark.builder


def configuration(options: dict[str, Any], cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Task: what the compiler sets in the builder's configuration."""
    bind(TARGET)

    from engine_build.compile import tensorrt_compiler as compiler

    request = CompileRequest(TARGET, "graph", Path("graph"), Path("plan"), options, [])
    config = compiler._configured(compiler.trt.Builder(compiler.Log(on_log)), request)
    found = [config.get_compute_capability(index).name for index in range(config.num_compute_capabilities)]
    return {"capabilities": found, "flags": compiler._flag_names(config)}


@pytest.mark.parametrize("capabilities", [(), ("SM89",), RTX_CAPABILITIES])
def test_the_builder_is_asked_for_these_cards(capabilities: tuple[str, ...]) -> None:
    need_builder()
    options = BuildConfig(capabilities=capabilities).of("decoder").model_dump(include=set(RTX_OPTIONS))
    with Worker() as worker:
        found = worker.run(configuration, {**options, "strict_nans": False}, BuildLog())
    assert found == {"capabilities": list(capabilities), "flags": ["REQUIRE_USER_ALLOCATION"]}


def run(words: list[str], folder: Path, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A Python process on a machine that has CUDA's packages and TensorRT-RTX, but no driver."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    for file in SITE.iterdir():
        if not file.name.startswith("tensorrt") and not (site / file.name).exists():
            (site / file.name).symlink_to(file)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", ""), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "SIMULATED_NO_DRIVER": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    return done


OPEN = """
import sys
from pathlib import Path
from runtime.engines.loading import open_engine

class Gpu:
    kind = "cuda"

open_engine(Path(sys.argv[1]), "decoder", Gpu(), fix="build it")
"""


def test_engines_built_here_are_accepted_there_up_to_the_driver(tmp_path: Path) -> None:
    """Manifest, machine, release, hash and header: all that is checked before the first call that needs a driver."""
    need_builder()
    more = '[build]\nstep_variants = ["plain"]\ncapabilities = ["SM86", "SM89"]\n'
    path = tiny_deployment(tmp_path / "here", codec=False, text_encoder=False, more=more)
    build = ["-m", "engine_build.cli"]
    built = run([*build, str(path), "--target", TARGET, "--out", str(tmp_path / "out")], tmp_path)
    assert "not measured here" in built.stdout
    shutil.move(tmp_path / "out", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    shipped = tmp_path / "there" / "deployment.toml"

    entries = json.loads(run([*build, "list", str(shipped), "--json"], tmp_path).stdout)
    assert {entry["why_not"] for entry in entries} == {
        "an NVIDIA GPU with its driver is needed: there is no NVIDIA driver on this machine"
    }
    assert {tuple(entry["tool_versions"].items()) for entry in entries} == {(("tensorrt-rtx", release()),)}
    assert not [entry for entry in entries if entry["device"] or "max_rel" in entry["error"]]
    assert "9 reused" in run([*build, str(shipped)], tmp_path).stdout

    engines = shipped.parent / "engines" / TARGET
    assert "there is no NVIDIA driver" in run(["-c", OPEN, str(engines)], tmp_path, code=1).stderr
    serve = run(
        ["-m", "runtime.commands.generate", str(shipped), "--seconds", "1", "--out", str(tmp_path / "x.wav")],
        tmp_path,
        code=3,
    )
    assert "there is no NVIDIA driver" in serve.stderr

    manifest = engines / "decoder.manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(release(), "1.6.1.120"))
    refused = run(["-c", OPEN, str(engines)], tmp_path, code=1).stderr
    assert f"was built for tensorrt-rtx 1.6.1.120, this machine has {release()}" in refused
    assert "fix: pip install tensorrt-rtx==1.6.1.120, or build it" in refused
    manifest.write_text(text)
    plan = engines / "decoder.plan"
    plan.write_bytes(plan.read_bytes()[:-1] + b"x")
    assert "has SHA-256" in run(["-c", OPEN, str(engines)], tmp_path, code=1).stderr
