"""Built engines for tests: tiny bundles, compiled once per run and shared by every test that asks for the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import tiny_deployment

from engine_build.builder import build_deployment
from runtime.config import Deployment, load_deployment
from runtime.device import open_device
from runtime.engine import open_engines
from runtime.loop import TickLoop
from runtime.spec import load_bundle

Built = Callable[..., Deployment]
Loops = Callable[..., TickLoop]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`built(**changes)` gives a tiny deployment with its engines built; equal changes give the same one."""
    made: dict[str, Deployment] = {}

    def build(path: Path | None = None, **changes: Any) -> Deployment:
        key = repr((path, sorted(changes.items())))
        if key not in made:
            target = path or tiny_deployment(tmp_path_factory.mktemp("tiny"), **changes)
            made[key] = load_deployment(target)
            build_deployment(made[key])
        return made[key]

    return build


def resized(deployment: Deployment, depth: int, max_rows: int) -> Deployment:
    """The same engines with another number of slots and of rows per execute."""
    shapes = deployment.shapes[0]
    rows = shapes.rows.model_copy(update={"opt": min(shapes.rows.opt, max_rows), "max": max_rows})
    runtime = deployment.runtime.model_copy(update={"depth": depth})
    return deployment.model_copy(update={"runtime": runtime, "shapes": (shapes.model_copy(update={"rows": rows}),)})


@pytest.fixture
def loops(built: Built) -> Iterator[Loops]:
    """`loops(**changes)` gives a tick loop on a tiny deployment, without a thread; closed at the end of the test."""
    opened: list[TickLoop] = []

    def open_loop(
        deployment: Deployment | None = None, *, depth: int = 4, max_rows: int = 8, **changes: Any
    ) -> TickLoop:
        deployment = deployment or resized(built(max_rows=16, **changes), depth, max_rows)
        device = open_device("cpu")
        opened.append(TickLoop(open_engines(deployment, device), load_bundle(deployment.bundle), deployment, device))
        return opened[-1]

    yield open_loop
    for loop in opened:
        loop.close()
