"""Builds on the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from simulator.fixture import simulated

from engine_build.compile.builder import build_engine
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.compile.worker import BuildLog
from engine_build.config import load_request
from runtime.engines.manifest import Manifest

FEW = '[build]\nstep_variants = ["plain"]\n'

Build = Callable[..., Manifest]


@pytest.fixture(params=["10.16.1.11", "11.4.0.106"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which TensorRT is simulated."""
    monkeypatch.setenv("SIMULATED_TENSORRT", request.param)
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, more=FEW)


@pytest.fixture
def gpu() -> Iterator[None]:
    """A simulated GPU in this process; build processes have one of their own, with the same options."""
    with simulated():
        yield


@pytest.fixture
def build_one(gpu: None) -> Build:
    """`build_one(path)` builds one engine of a deployment; `log` receives the builder's messages."""

    def build(path: Path, name: str = "decoder", log: BuildLog | None = None) -> Manifest:
        request = load_request(path)
        environment = build_environment("tensorrt", request.options)
        folder = request.deployment.engine_folder("tensorrt")
        with locked(folder):
            decisions = {item.spec.name: item for item in check_rebuilds(request, "tensorrt", environment=environment)}
            return build_engine(decisions[name], request, folder, environment, log)

    return build
