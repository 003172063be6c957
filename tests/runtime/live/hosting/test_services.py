"""What the sessions of a host share: latents of an uploaded source; times from a control's message to its sound."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import pytest
from helpers.live_simulation import MODEL

from runtime.base.errors import RequestError
from runtime.live.hosting.control_times import MAX_CHANGES, ControlTimes, Observer, kind_of
from runtime.live.hosting.services import HostServices
from runtime.live.protocol.messages import (
    Ack,
    LivePrompt,
    ReferenceKind,
    SetAdapter,
    SetControls,
    SetPrompts,
    SetSource,
    SetStructure,
    SetTimbre,
)
from runtime.live.protocol.server_messages import Applied

LATENTS = np.arange(12.0, dtype=np.float32).reshape(6, 2)


def services(untaken: Iterable[str] = (), **members: Any) -> HostServices:
    inputs = SimpleNamespace(timbre_latents=lambda latents: latents[:3])
    structure = SimpleNamespace(hints=lambda latents: -latents)
    pipeline: Any = SimpleNamespace(inputs=inputs, structure=structure)
    model, codec_work = replace(MODEL, untaken=frozenset(untaken)), cast(Any, None)
    return HostServices(model, pipeline, codec_work, time.monotonic, 60.0, **members)


@pytest.mark.parametrize(("kind", "expected"), [("source", LATENTS), ("timbre", LATENTS[:3]), ("structure", -LATENTS)])
def test_a_source_as_a_reference(kind: ReferenceKind, expected: Any) -> None:
    asked: list[str] = []

    def sources(source_id: str) -> Any:
        asked.append(source_id)
        return LATENTS

    assert np.array_equal(services(sources=sources).reference(kind, "a"), expected)
    assert asked == ["a"]


@pytest.mark.parametrize("kind", ["timbre", "structure"])
def test_a_source_is_not_read_for_a_part_that_the_bundle_lacks(kind: ReferenceKind) -> None:
    read: list[str] = []
    shared = services(sources=read.append, untaken=("timbre_strength", "structure_strength"))
    with pytest.raises(RequestError, match=rf"type: the bundle has no \[{kind}\]"):
        shared.reference(kind, "a")
    assert not read


def test_without_sources_there_are_no_references() -> None:
    with pytest.raises(RequestError, match="id: there are no sources here"):
        services().reference("timbre", "a")


def test_every_observer_is_told_of_a_change() -> None:
    told: list[tuple[str, str, float]] = []
    shared = services(control_observers=[lambda *change: told.append(change)] * 2)
    shared.observe_control("step", "first", 0.1)
    assert told == [("step", "first", 0.1)] * 2


RATE_HZ = 1000


class TimesAt(ControlTimes):
    """By a clock that the test sets."""

    def __init__(self, observe: Observer = lambda *values: None) -> None:
        super().__init__(observe, lambda: self.now_s)

    def at(self, now_s: float) -> Self:
        self.now_s = now_s
        return self


def step(seq: int) -> SetControls:
    return SetControls(seq=seq, values={"guidance": 3.0})


def test_kinds_of_messages() -> None:
    assert kind_of(step(1)) == "step"
    assert kind_of(SetControls(seq=1, values={"guidance": 3.0, "shift": 2.0})) == "generation"
    assert kind_of(SetPrompts(seq=1, items=[LivePrompt(text="a")])) == "generation"
    assert kind_of(SetAdapter(seq=1, id="soft", strength=1.0)) == "step"
    assert [kind_of(kind(seq=1, id="x")) for kind in (SetSource, SetStructure, SetTimbre)] == ["generation"] * 3
    assert kind_of(Ack(playhead_sample=0)) is None


def test_first_and_full_are_observed_once_when_their_samples_are_known() -> None:
    seen: list[tuple[str, str, float]] = []
    times = TimesAt(lambda *values: seen.append(values))
    times.at(10.0).receive(step(4))
    times.at(10.1).apply(Applied(seq=4, first_sample=1200), 1000, RATE_HZ)
    times.at(10.2).apply(Applied(seq=4, first_sample=1200, full_sample=1500), 1100, RATE_HZ)
    times.at(10.3).apply(Applied(seq=4, first_sample=1200, full_sample=1500), 1100, RATE_HZ)
    assert [(kind, stage) for kind, stage, _ in seen] == [("step", "first"), ("step", "full")]
    assert [seconds for _, _, seconds in seen] == pytest.approx([0.3, 0.6])


def test_a_change_that_is_played_at_once_has_no_negative_wait() -> None:
    seen: list[float] = []
    times = TimesAt(lambda kind, stage, seconds: seen.append(seconds))
    times.at(0.0).receive(step(1))
    times.at(0.25).apply(Applied(seq=1, first_sample=10), 500, RATE_HZ)
    assert seen == pytest.approx([0.25])


def test_stages_are_the_first_times_that_cover_a_change() -> None:
    times = TimesAt()
    times.at(1.0).receive(step(2))
    times.at(1.1).receive(step(3))
    times.at(1.15).mark("submitted", 1)
    times.at(1.2).mark("submitted", 2)
    times.at(1.3).mark("submitted", 3)
    times.at(1.5).mark("finished", 3)
    expected = {2: (200.0, 500.0), 3: (200.0, 400.0)}
    for seq, (submitted, finished) in expected.items():
        stages = times.at(2.0).apply(Applied(seq=seq), 0, RATE_HZ).stages_ms
        assert (stages.submitted, stages.finished) == pytest.approx((submitted, finished))
        assert stages.decoded is None


def test_a_complete_change_has_the_stages_of_what_completed_it() -> None:
    times = TimesAt()
    times.at(1.0).receive(step(1))
    for stage, now_s in (("submitted", 1.0), ("finished", 1.1), ("submitted", 1.1)):
        times.at(now_s).mark(stage, 1)
    first = times.at(1.15).apply(Applied(seq=1, first_sample=1), 0, RATE_HZ).stages_ms
    times.at(1.3).mark("finished", 1)
    full = times.at(1.35).apply(Applied(seq=1, full_sample=9), 0, RATE_HZ).stages_ms
    assert (first.submitted, first.finished) == pytest.approx((0.0, 100.0))
    assert (full.submitted, full.finished) == pytest.approx((100.0, 300.0))


def test_changes_that_are_never_heard_are_forgotten() -> None:
    times = TimesAt()
    for seq in range(1, MAX_CHANGES + 2):
        times.at(float(seq)).receive(step(seq))
    assert times.at(99.0).apply(Applied(seq=1), 0, RATE_HZ).stages_ms is None
    assert times.at(99.0).apply(Applied(seq=2), 0, RATE_HZ).stages_ms is not None
