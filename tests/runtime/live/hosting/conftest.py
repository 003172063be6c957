"""An open pipeline on the tiny bundle, shared by the tests of one module, and hosts that a test drives."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from conftest import Built
from helpers.lock_check import lock_checked
from helpers.scripted_sessions import Client, Drive, Driven, Opened, ScriptedSession

from runtime.live.hosting import hosted_session
from runtime.live.hosting.inbox import Inbox
from runtime.live.hosting.slots import HostLimits
from runtime.pipeline.pipeline import Pipeline, open_pipeline

NO_LIMITS = HostLimits(client_sessions=0, max_refresh_s=float("inf"))


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built()) as opened:
        yield opened


@pytest.fixture
def drive(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    """`drive(**options)` gives a host of scripted sessions that is closed at the end of the test."""
    monkeypatch.setitem(vars(hosted_session), "Inbox", lock_checked(Inbox, "_waiting", "_audio_s", "_rooms"))
    with ExitStack() as closing:

        def make(**options: Any) -> Driven:
            driven = Driven(pipeline, **{"limits": NO_LIMITS, **options})
            closing.callback(driven.host.close)
            return driven

        yield make


@pytest.fixture
def opened(drive: Drive) -> Opened:
    """`opened(**options)` gives such a host, an open session and its client."""

    def make(**options: Any) -> tuple[Driven, ScriptedSession, Client]:
        driven = drive(**options)
        return driven, *driven.open()

    return make
