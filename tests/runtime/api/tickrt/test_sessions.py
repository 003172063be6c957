"""What a live session in Python can do works in this process and on a server, by the same tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import soundfile
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import eventually, serving

import tickrt
from runtime.config.deployment import Deployment
from runtime.live.protocol.messages import EventKind
from tickrt.midi import MidiClock

RATE_HZ = 8000
PLACES = ("in this process", "on a server")
SECONDS = 0.2


class Port:
    """An output for MIDI."""

    def send(self, message: Any) -> None:
        """What is sent is not kept."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(scope="module")
def deployment(built: Built) -> Deployment:
    planner = {"capacity": 1024, "plan": True}
    return built(planner=planner, conditions=True, notes=True, stems=True, max_rows=16, more=FEW_VARIANTS)


@pytest.fixture(scope="module", params=PLACES)
def opener(request: pytest.FixtureRequest, deployment: Deployment) -> Iterator[Any]:
    """What opens live sessions."""
    if request.param == PLACES[0]:
        with tickrt.open(deployment.path) as model:
            yield model
    else:
        with serving(deployment) as served:
            yield tickrt.TickRT(served.url)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.wav"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.3, 0.3, (2 * RATE_HZ, 2)), RATE_HZ)
    return path


def clock(live: tickrt.Live, _: Path) -> None:
    with live.midi_clock(Port()) as made:  # type: ignore[arg-type]
        assert isinstance(made, MidiClock)


def recorded(live: tickrt.Live, _: Path) -> None:
    audio = live.record(SECONDS)
    assert audio.pcm.shape == (round(SECONDS * RATE_HZ), 2)
    assert audio.score.seconds == pytest.approx(SECONDS)


def edited(live: tickrt.Live, _: Path) -> None:
    def starts() -> list[float]:
        assert live.plan is not None
        assert live.state is not None
        return [each.start_s for each in live.plan.sections if each.start_s > live.state.canvas_position_s + 3.0]

    eventually(lambda: live.read(400) is not None and bool(starts()))
    live.set_plan(starts()[-1], [])


def refused(live: tickrt.Live) -> None:
    """A change that is wrong is raised at once, or by the next read()."""
    live.adapter("soft", 0.5, ramp_ms=10)
    live.read(600 * RATE_HZ)


# Method -> what uses it, in a session of mode loop, or of mode extend with a plan.
CHANGES: dict[str, Callable[[tickrt.Live, Path], Any]] = {
    "set": lambda live, _: live.set(guidance=2.0, bpm="118,5 BPM", at="bar"),
    "prompts": lambda live, _: live.prompts([("a", 0.7), {"text": "b"}], blend="velocity", ramp_ms=5),
    "source": lambda live, path: live.source(path, 0.5),
    "timbre": lambda live, path: live.timbre(path, 0.5),
    "structure": lambda live, path: live.structure(path, 0.5),
    "write": lambda live, _: live.write(np.zeros((800, 2)), 0.5, mode="sum"),
    "band": lambda live, _: live.band(0.0, 1.0),
    "mute": lambda live, _: live.mute(["drums"]),
    "adapter": lambda live, _: refused(live),
    "seek": lambda live, _: live.seek(0.5),
    "follow": lambda live, _: live.follow(119.0),
    "midi_clock": clock,
    "reset": lambda live, _: live.reset(),
    "set_plan": edited,
    "notes": lambda live, _: live.notes([{"pitch": 40}], mode="at", layer="bass", at=5.0),
    "read": lambda live, _: live.read(800),
    "record": recorded,
    "close": lambda live, _: live.close(),
}
# Those that a loop refuses.
EXTEND = ("follow", "reset", "set_plan", "notes")
PROPERTIES: dict[str, Callable[[Any], bool]] = {
    "state": lambda state: state is not None and state.playhead_sample > 0,
    "plan": lambda plan: plan is not None and len(plan.sections) > 0,
    "prompt_words": lambda words: "a" in words.understood,
    "meanings": lambda meanings: meanings == (),
    "events": lambda events: len(events) > 0,
    "beat": lambda beat: beat is not None and beat.bpm > 0,
}


def test_every_method_and_property_is_in_the_tables() -> None:
    members = {name: member for name, member in inspect.getmembers(tickrt.Live) if not name.startswith("_")}
    assert {name for name, member in members.items() if inspect.isfunction(member)} == set(CHANGES)
    assert {name for name, member in members.items() if isinstance(member, property)} == set(PROPERTIES)


def test_both_places_take_the_same_arguments() -> None:
    local, remote = (
        {name: each.default for name, each in inspect.signature(kind.live).parameters.items()}
        for kind in (tickrt.Model, tickrt.TickRT)
    )
    del local["sample_rate_hz"]  # of PCM: a server takes files
    assert local == remote


@pytest.mark.parametrize("name", CHANGES)
def test_every_method_does_its_work(name: str, opener: Any, source: Path) -> None:
    options = {"mode": "extend", "plan": True} if name in EXTEND else {"seconds": 1.28, "bpm": 240.0}
    with opener.live("a", seed=3, events=["notes"], **options) as live:
        eventually(lambda: live.read(400) is not None and (name not in EXTEND or live.beat is not None))
        if name == "adapter":
            with pytest.raises(tickrt.RequestError) as error:
                refused(live)
            assert error.value.what.startswith("id: there is no adapter") or "'soft'" in error.value.what
            assert error.value.what.count("id: ") == 1
            return
        CHANGES[name](live, source)
        if name == "close":
            with pytest.raises(tickrt.DrainingError):
                live.read(1)
        else:
            assert live.read(2 * RATE_HZ).shape == (2 * RATE_HZ, 2)  # which raises what was refused


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_tells_what_there_is(name: str, opener: Any) -> None:
    with opener.live("a", mode="extend", plan=True, seed=3, events=list(get_args(EventKind))) as live:
        eventually(lambda: live.read(800) is not None and PROPERTIES[name](getattr(live, name)))


def test_a_session_begins_with_a_source(opener: Any, source: Path) -> None:
    with opener.live("a", seed=3, source=source, source_strength=0.9) as with_source, opener.live("a", seed=3) as plain:
        assert np.abs(with_source.read(RATE_HZ) - plain.read(RATE_HZ)).max() > 1e-3
