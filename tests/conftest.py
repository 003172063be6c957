"""Built engines for tests: tiny bundles, compiled once per run and shared by every test that asks for the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_build.builder import build_deployment
from factories import tiny_deployment

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


@pytest.fixture
def loops(built: Built) -> Iterator[Loops]:
    """`loops(**changes)` gives a tick loop on a tiny deployment, without a thread; closed at the end of the test."""
    opened: list[TickLoop] = []

    def open_loop(deployment: Deployment | None = None, **changes: Any) -> TickLoop:
        deployment = deployment or built(**changes)
        device = open_device("cpu")
        opened.append(TickLoop(open_engines(deployment, device), load_bundle(deployment.bundle), deployment, device))
        return opened[-1]

    yield open_loop
    for loop in opened:
        loop.close()
