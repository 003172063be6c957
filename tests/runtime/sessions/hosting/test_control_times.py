"""Times from a control's message to its sound."""

from __future__ import annotations

import pytest

from runtime.sessions.hosting.control_times import MAX_CHANGES, ControlTimes, kind_of
from runtime.sessions.protocol.messages import (
    Ack,
    Applied,
    LivePrompt,
    SetAdapter,
    SetControls,
    SetPrompts,
    SetSource,
    SetStructure,
    SetTimbre,
)

RATE_HZ = 1000


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
    times = ControlTimes(lambda *values: seen.append(values))
    times.receive(step(4), 10.0)
    times.apply(Applied(seq=4, first_sample=1200), 1000, RATE_HZ, 10.1)
    times.apply(Applied(seq=4, first_sample=1200, full_sample=1500), 1100, RATE_HZ, 10.2)
    times.apply(Applied(seq=4, first_sample=1200, full_sample=1500), 1100, RATE_HZ, 10.3)
    assert [(kind, stage) for kind, stage, _ in seen] == [("step", "first"), ("step", "full")]
    assert [seconds for _, _, seconds in seen] == pytest.approx([0.3, 0.6])


def test_a_change_that_is_played_at_once_has_no_negative_wait() -> None:
    seen: list[float] = []
    times = ControlTimes(lambda kind, stage, seconds: seen.append(seconds))
    times.receive(step(1), 0.0)
    times.apply(Applied(seq=1, first_sample=10), 500, RATE_HZ, 0.25)
    assert seen == pytest.approx([0.25])


def test_stages_are_the_first_times_that_cover_a_change() -> None:
    times = ControlTimes(lambda *values: None)
    times.receive(step(2), 1.0)
    times.receive(step(3), 1.1)
    times.mark("submitted", 1, 1.15)
    times.mark("submitted", 2, 1.2)
    times.mark("submitted", 3, 1.3)
    times.mark("finished", 3, 1.5)
    expected = {2: (200.0, 500.0), 3: (200.0, 400.0)}
    for seq, (submitted, finished) in expected.items():
        stages = times.apply(Applied(seq=seq), 0, RATE_HZ, 2.0).stages_ms
        assert stages is not None
        assert (stages.submitted, stages.finished) == pytest.approx((submitted, finished))
        assert stages.decoded is None


def test_a_complete_change_has_the_stages_of_what_completed_it() -> None:
    times = ControlTimes(lambda *values: None)
    times.receive(step(1), 1.0)
    for stage, now_s in (("submitted", 1.0), ("finished", 1.1), ("submitted", 1.1)):
        times.mark(stage, 1, now_s)
    first = times.apply(Applied(seq=1, first_sample=1), 0, RATE_HZ, 1.15).stages_ms
    times.mark("finished", 1, 1.3)
    full = times.apply(Applied(seq=1, full_sample=9), 0, RATE_HZ, 1.35).stages_ms
    assert first is not None
    assert full is not None
    assert (first.submitted, first.finished) == pytest.approx((0.0, 100.0))
    assert (full.submitted, full.finished) == pytest.approx((100.0, 300.0))


def test_changes_that_are_never_heard_are_forgotten() -> None:
    times = ControlTimes(lambda *values: None)
    for seq in range(1, MAX_CHANGES + 2):
        times.receive(step(seq), float(seq))
    assert times.apply(Applied(seq=1), 0, RATE_HZ, 99.0).stages_ms is None
    assert times.apply(Applied(seq=2), 0, RATE_HZ, 99.0).stages_ms is not None
