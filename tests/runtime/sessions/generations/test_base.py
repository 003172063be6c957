"""What both modes have in common: the estimate of a generation's time, retries, step controls, complete seqs."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, MODEL, RATE

from runtime.sessions.control.control_state import ControlState
from runtime.sessions.generations.base import ESTIMATE_START_S, GenerationTimes
from runtime.sessions.generations.loop import LoopGenerations
from runtime.sessions.playback.canvas import Piece, PlacedSource, Timeline
from runtime.sessions.playback.playhead import Playhead
from runtime.sessions.protocol.messages import Ack


class Loop:
    """Generations of a loop of 16 frames that plays."""

    def __init__(self, slots: int = 2, **controls: object) -> None:
        self.controls = ControlState(MODEL, controls, [], "velocity", 1)
        self.playhead, self.timeline = Playhead(RATE), Timeline()
        self.playhead.attach(0.0)
        self.playhead.ack(Ack(playhead_sample=0), 0.0)
        self.generations = LoopGenerations(MODEL, 16, slots, self.controls, self.timeline, self.playhead)

    def generate(self, now_s: float, value: float = 0.0) -> bool:
        """Start and finish a generation."""
        job = self.generations.start("s", now_s)
        return self.generations.finish(job.id, np.full((16, CHANNELS), value, np.float32), now_s)


def test_the_estimate_is_a_high_quantile_of_the_newest() -> None:
    times = GenerationTimes()
    assert times.estimate_s == ESTIMATE_START_S
    times.newest_s.extend([9.0, *[0.1] * 7, 0.2])
    assert times.estimate_s == pytest.approx(0.22)


def test_the_host_knows_how_long_a_generation_took_where_the_session_s_time_is_no_clock() -> None:
    loop = Loop()
    job = loop.generations.start("s", 1.0)
    loop.generations.finish(job.id, np.zeros((16, CHANNELS), np.float32), 7.0, 0.2)
    assert loop.generations.times.estimate_s == pytest.approx(0.22)


def test_a_generation_is_wanted_until_one_has_all_changes() -> None:
    loop = Loop()
    assert loop.generations.wanted_s(0.0) == 0.0
    assert loop.generations.wanted_s(0.2) == 0.0
    loop.generate(0.2)
    assert loop.generations.wanted_s(0.3) is None
    loop.controls.change({"shift": 2.0}, 1, 0.3)
    assert loop.generations.wanted_s(0.3) == 0.3
    assert not loop.generations.is_current(0.3)


def test_a_failure_is_tried_again_after_longer_and_longer_times() -> None:
    loop = Loop()
    now_s = 0.0
    for wait_s in (1.0, 2.0, 4.0):
        assert loop.generations.fail(loop.generations.start("s", now_s).id, now_s)
        loop.playhead.ack(Ack(playhead_sample=0), now_s + wait_s)
        assert loop.generations.wanted_s(now_s + wait_s - 0.01) is None
        assert loop.generations.due_s(now_s) == now_s + wait_s
        now_s += wait_s
        assert loop.generations.wanted_s(now_s) == now_s
    assert not loop.generations.fail("unknown", now_s)
    for _ in range(1100):  # many hours
        assert loop.generations.fail(loop.generations.start("s", now_s).id, now_s)
    assert loop.generations.due_s(now_s) == now_s + 30.0


def test_step_controls_reach_generations_in_flight_at_most_every_20_ms() -> None:
    loop = Loop()
    job = loop.generations.start("s", 0.0)
    assert loop.generations.update(0.0) is None
    loop.controls.change({"guidance": 5.0}, 1, 0.0)
    update = loop.generations.update(0.0)
    assert update is not None
    assert (update.job_ids, update.patch, update.seq) == ((job.id,), {"guidance": 5.0}, 1)
    loop.controls.change({"guidance": None, "x0_strength": 0.5}, 2, 0.01)
    assert loop.generations.update(0.01) is None
    assert loop.generations.due_s(0.01) == pytest.approx(0.03)
    later = loop.generations.update(0.02)
    assert later is not None
    assert later.patch == {"guidance": 3.0}
    loop.generations.step_applied(2, [job.id])
    assert loop.generations.running[0].basis.first_seq == 2
    assert loop.generations.running[0].basis.full_seq == 0


def test_a_glide_is_followed_every_20_ms_to_its_end() -> None:
    loop = Loop()
    loop.generate(0.0)
    assert loop.generations.due_s(5.0) is None
    loop.controls.change({"guidance": 5.0}, 1, 5.0, ramp_s=1.0)
    assert loop.generations.due_s(5.5) == pytest.approx(5.52)
    assert loop.generations.due_s(6.0) is None


def test_a_generation_whose_step_controls_changed_is_followed_by_another() -> None:
    loop = Loop(slots=1)
    job = loop.generations.start("s", 0.0)
    loop.controls.change({"guidance": 5.0}, 1, 0.0)
    loop.generations.update(0.0)
    loop.generations.finish(job.id, np.zeros((16, CHANNELS), np.float32), 0.1)
    assert loop.generations.wanted_s(0.1) is not None


def test_changes_of_nothing_raise_the_seq_of_what_is_there() -> None:
    loop = Loop()
    loop.generate(0.0)
    loop.controls.change({"guidance": 3.0}, 4, 0.1)
    loop.generations.settle(0.1)
    assert loop.timeline.canvas.parts[0].full_seq == 4
    loop.controls.change({"guidance": 4.0}, 5, 0.1)
    loop.generations.settle(0.1)
    assert loop.timeline.canvas.parts[0].full_seq == 4


def test_a_source_is_part_of_what_a_generation_is_made_with() -> None:
    loop = Loop()
    loop.generate(0.0)
    loop.generations.references.put(
        "source", PlacedSource("x", None, Piece("source", np.ones((5, CHANNELS), np.float32)))
    )
    assert loop.generations.wanted_s(0.1) == 0.1
    source = loop.generations.start("s", 0.1).source
    assert source is not None
    assert source.shape == (16, CHANNELS)


def test_a_write_stops_generations_that_do_not_know_of_it() -> None:
    loop = Loop()
    loop.generate(0.0)
    loop.controls.change({"shift": 2.0}, 1, 0.1)
    job = loop.generations.start("s", 0.1)
    loop.controls.accept(2)
    assert loop.generations.write(3, Piece("w", np.ones((2, CHANNELS), np.float32)), 2, 0.1) == [job.id]
    assert not loop.generations.finish(job.id, np.zeros((16, CHANNELS), np.float32), 0.2)
    assert loop.generations.wanted_s(0.2) is not None
