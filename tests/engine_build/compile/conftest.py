"""Builds on the simulated GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from simulator.fixture import simulated, simulated_machine

from engine_build.compile.builder import Build as EngineBuild
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.compile.worker import BuildLog, Worker
from engine_build.request import load_request
from runtime.engines.manifest import Manifest

FEW = '[build]\nstep_variants = ["plain"]\n'

Build = Callable[..., Manifest]
Workers = Callable[[], AbstractContextManager[Worker]]


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


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """`with workers() as worker:` gives the build process of the simulator's options; starting one takes long.

    One that is to fail is not shared. Rules that the shared ones break are an error when all tests have run.
    """
    told = tmp_path_factory.mktemp("children")
    started: dict[tuple[tuple[str, str], ...], Worker] = {}
    with ExitStack() as stack:

        @contextmanager
        def shared() -> Iterator[Worker]:
            options = {name: value for name, value in os.environ.items() if name.startswith("SIMULATED_")}
            options.pop(simulated_machine.CHILDREN, None)
            if "SIMULATED_FAULTS" in options:
                with Worker() as own:
                    yield own
                return
            key = tuple(sorted(options.items()))
            if key not in started:
                started[key] = stack.enter_context(Worker())
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(simulated_machine.CHILDREN, str(told))
                yield started[key]

        yield shared
    assert simulated_machine.broken_by_children(str(told)) == []


@pytest.fixture
def build_one(gpu: None, workers: Workers) -> Build:
    """`build_one(path)` builds one engine of a deployment; `log` receives the builder's messages."""

    def build(path: Path, name: str = "decoder", log: BuildLog | None = None) -> Manifest:
        request = load_request(path)
        environment = build_environment("tensorrt", request.options)
        folder = request.deployment.engine_folder("tensorrt")
        with locked(folder), workers() as worker:
            decisions = {item.spec.name: item for item in check_rebuilds(request, "tensorrt", environment=environment)}
            return EngineBuild(request, folder, environment, worker).build_engine(decisions[name], log)

    return build
