"""Events are immutable values that name their generation."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import get_args

import numpy as np
import pytest

from runtime.base.errors import EngineError
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished, Progress, Started, Updated

EVENTS = (
    Started("a", 3),
    Progress("a", 1, 4, 3, 1.5),
    Updated("a", 4),
    Finished("a", np.zeros((4, 2), np.float32), 6, 4),
    Failed("a", EngineError("no memory")),
    Cancelled("a"),
)


def test_every_kind_of_event_names_its_generation_and_is_immutable() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))
    for event in EVENTS:
        assert event.request_id == "a"
        with pytest.raises(FrozenInstanceError):
            event.request_id = "b"  # type: ignore[misc]


def test_a_cancelled_generation_names_the_one_that_replaced_it() -> None:
    assert Cancelled("a").replaced_by == ""
    assert Cancelled("a", replaced_by="b") != Cancelled("a")
