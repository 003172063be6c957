from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.http_harness import Served, serving

from runtime.config.deployment import Deployment


@pytest.fixture(scope="session")
def tiny(built: Callable[..., Deployment]) -> Callable[..., Deployment]:
    """`tiny(depth=2, queue=3)`: the shared engines with that many places."""

    def sized(*, depth: int = 4, queue: int = 8) -> Deployment:
        deployment = built(max_rows=16)
        runtime = deployment.runtime.model_copy(update={"depth": depth, "queue": queue})
        return deployment.model_copy(update={"runtime": runtime})

    return sized


@pytest.fixture
def serve(tiny: Callable[..., Deployment]) -> Iterator[Callable[..., Served]]:
    """`serve(depth=2, queue=3, api_key="k")`: a server of this test's own."""
    running = []

    def start(*, depth: int = 4, queue: int = 8, deployment: Deployment | None = None, **settings: Any) -> Served:
        context = serving(deployment or tiny(depth=depth, queue=queue), **settings)
        running.append(context)
        return context.__enter__()

    yield start
    for context in reversed(running):
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def served(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    """One server for all tests of a module that leave it as they found it."""
    with serving(tiny()) as server:
        yield server
