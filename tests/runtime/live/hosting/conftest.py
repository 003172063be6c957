"""An open pipeline on the tiny bundle, shared by the tests of one module, and hosts that a test drives."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from conftest import Built
from helpers.scripted_sessions import Driven

from runtime.live.hosting.slots import HostLimits
from runtime.pipeline.pipeline import Pipeline, open_pipeline

Drive = Callable[..., Driven]
NO_LIMITS = HostLimits(client_sessions=0, max_refresh_s=float("inf"))


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built()) as opened:
        yield opened


@pytest.fixture
def drive(pipeline: Pipeline) -> Iterator[Drive]:
    """`drive(**options)` gives a host of scripted sessions that is closed at the end of the test."""
    with ExitStack() as closing:

        def make(**options: Any) -> Driven:
            driven = Driven(pipeline, **{"limits": NO_LIMITS, **options})
            closing.callback(driven.host.close)
            return driven

        yield make
