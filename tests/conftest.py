"""Built engines for tests: tiny bundles, compiled once per run and shared by every test that asks for the same one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.backends import CPU, FEW_VARIANTS, Backend
from helpers.factories import tiny_deployment
from hypothesis import HealthCheck, settings
from simulator.fixture import Machine

from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines
from runtime.tick.loop import TickLoop

# A run in the background inherits SIGINT as ignored, and would pass that on to the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine is slow, not wrong.
settings.register_profile("at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any speed")

Built = Callable[..., Deployment]
Loops = Callable[..., TickLoop]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`built(**changes)` gives a tiny deployment with its engines built; equal changes give the same one."""
    made: dict[str, Deployment] = {}

    def build(path: Path | None = None, backend: Backend = CPU, **changes: Any) -> Deployment:
        key = repr((path, backend.target, sorted(changes.items())))
        if key not in made:
            more = (
                {}
                if backend.target == "cpu"
                else {"more": FEW_VARIANTS, "depth": 8, "codec": False, "text_encoder": False}
            )
            target = path or tiny_deployment(tmp_path_factory.mktemp("tiny"), **{**more, **changes})
            made[key] = load_deployment(target).model_copy(update={"target": backend.target})
            backend.build(made[key])
        return made[key]

    return build


@pytest.fixture
def backend() -> Backend:
    """Where ticks run; a module that runs everywhere has a fixture of this name with BACKENDS as its parameters."""
    return CPU


def resized(deployment: Deployment, depth: int, max_rows: int) -> Deployment:
    """The same engines with another number of slots and of rows per execute."""
    shapes = deployment.shapes[0]
    rows = shapes.rows.model_copy(update={"opt": min(shapes.rows.opt, max_rows), "max": max_rows})
    runtime = deployment.runtime.model_copy(update={"depth": depth})
    return deployment.model_copy(update={"runtime": runtime, "shapes": (shapes.model_copy(update={"rows": rows}),)})


@pytest.fixture
def machine(backend: Backend) -> Iterator[Machine | None]:
    """The simulated GPU of this test, if it has one."""
    with backend.running() as found:
        yield found


@pytest.fixture
def loops(built: Built, backend: Backend, machine: Machine | None) -> Iterator[Loops]:
    """`loops(**changes)` gives a tick loop on a tiny deployment, without a thread; closed at the end of the test."""
    closing = ExitStack()

    def open_loop(
        deployment: Deployment | None = None, *, depth: int = 4, max_rows: int = 8, **changes: Any
    ) -> TickLoop:
        deployment = deployment or resized(built(max_rows=16, backend=backend, **changes), depth, max_rows)
        deployment = captured(deployment, backend.capture)
        device = open_device(backend.target)
        closing.callback(device.close)
        loop = TickLoop(open_engines(deployment, device), load_bundle(deployment.bundle), deployment, device)
        closing.callback(loop.close)
        return loop

    with closing:
        yield open_loop


def captured(deployment: Deployment, capture: bool) -> Deployment:
    """The same deployment with captured graphs or without."""
    runtime = deployment.runtime.model_copy(update={"capture": capture})
    return deployment.model_copy(update={"runtime": runtime})
