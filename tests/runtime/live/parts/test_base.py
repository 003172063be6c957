"""What both modes have in common: the estimate of a generation's time, retries, step controls, complete seqs."""

from __future__ import annotations

from typing import Self

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, MODEL, RATE

from runtime.live.parts.base import ESTIMATE_START_S, GenerationTimes
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.loop import LoopGenerations
from runtime.live.playback.canvas import Piece, PlacedSource, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import CancelJob, LiveModel
from runtime.live.protocol.messages import Ack


class Loop:
    """Generations of a loop of 16 frames that plays."""

    def __init__(self, slots: int = 2, model: LiveModel = MODEL, **controls: object) -> None:
        self.clock = SessionClock(0.0)
        self.controls = ControlState(model, self.clock, controls, [], "velocity", 1)
        self.playhead, self.timeline = Playhead(self.clock, RATE), Timeline()
        self.playhead.attach()
        self.playhead.ack(Ack(playhead_sample=0))
        self.generations = LoopGenerations(model, 16, slots, self.controls, self.timeline, self.playhead)

    def at(self, now_s: float) -> Self:
        self.clock.now_s = now_s
        return self

    def generate(self, now_s: float, value: float = 0.0) -> bool:
        """Start and finish a generation."""
        job = self.at(now_s).generations.start("s")
        return self.generations.finish(job.id, np.full((16, CHANNELS), value, np.float32))


def test_the_estimate_is_a_high_quantile_of_the_newest() -> None:
    times = GenerationTimes()
    assert times.estimate_s == ESTIMATE_START_S
    times.newest_s.extend([9.0, *[0.1] * 7, 0.2])
    assert times.estimate_s == pytest.approx(0.22)


def test_the_host_knows_how_long_a_generation_took_where_the_session_s_time_is_no_clock() -> None:
    loop = Loop()
    job = loop.at(1.0).generations.start("s")
    loop.at(7.0).generations.finish(job.id, np.zeros((16, CHANNELS), np.float32), 0.2)
    assert loop.generations.times.estimate_s == pytest.approx(0.22)


def test_a_generation_is_wanted_until_one_has_all_changes() -> None:
    loop = Loop()
    assert loop.at(0.0).generations.wanted_s() == 0.0
    assert loop.at(0.2).generations.wanted_s() == 0.0
    loop.generate(0.2)
    assert loop.at(0.3).generations.wanted_s() is None
    loop.at(0.3).controls.change({"shift": 2.0}, 1)
    assert loop.at(0.3).generations.wanted_s() == 0.3
    assert not loop.at(0.3).generations.is_current()


def test_a_failure_is_tried_again_after_longer_and_longer_times() -> None:
    loop = Loop()
    now_s = 0.0
    for wait_s in (1.0, 2.0, 4.0):
        assert loop.at(now_s).generations.fail(loop.at(now_s).generations.start("s").id)
        loop.at(now_s + wait_s).playhead.ack(Ack(playhead_sample=0))
        assert loop.at(now_s + wait_s - 0.01).generations.wanted_s() is None
        assert loop.at(now_s).generations.due_s() == now_s + wait_s
        now_s += wait_s
        assert loop.at(now_s).generations.wanted_s() == now_s
    assert not loop.at(now_s).generations.fail("unknown")
    for _ in range(1100):  # many hours
        assert loop.at(now_s).generations.fail(loop.at(now_s).generations.start("s").id)
    assert loop.at(now_s).generations.due_s() == now_s + 30.0


def test_what_is_in_flight_is_wanted_again_after_a_stop() -> None:
    loop = Loop()
    older = loop.at(0.0).generations.start("s")
    loop.at(0.1).controls.change({"shift": 2.0}, 1)
    newest = loop.at(0.1).generations.start("s")
    assert loop.at(0.1).generations.wanted_s() is None
    assert loop.generations.stop() == [CancelJob(older.id), CancelJob(newest.id)]
    assert loop.at(0.2).generations.wanted_s() == 0.2
    loop.generate(0.2)
    assert loop.generations.stop() == []
    assert loop.at(0.3).generations.wanted_s() is None


def test_step_controls_reach_generations_in_flight_at_most_every_20_ms() -> None:
    loop = Loop()
    job = loop.at(0.0).generations.start("s")
    assert loop.at(0.0).generations.update() is None
    loop.at(0.0).controls.change({"guidance": 5.0}, 1)
    update = loop.at(0.0).generations.update()
    assert update is not None
    assert (update.job_ids, update.patch, update.seq) == ((job.id,), {"guidance": 5.0}, 1)
    loop.at(0.01).controls.change({"guidance": None, "x0_strength": 0.5}, 2)
    assert loop.at(0.01).generations.update() is None
    assert loop.at(0.01).generations.due_s() == pytest.approx(0.03)
    later = loop.at(0.02).generations.update()
    assert later is not None
    assert later.patch == {"guidance": 3.0}
    loop.generations.step_applied(2, [job.id])
    assert loop.generations.running[0].basis.first_seq == 2
    assert loop.generations.running[0].basis.full_seq == 0


def test_a_glide_is_followed_every_20_ms_to_its_end() -> None:
    loop = Loop()
    loop.generate(0.0)
    assert loop.at(5.0).generations.due_s() is None
    loop.at(5.0).controls.change({"guidance": 5.0}, 1, ramp_s=1.0)
    assert loop.at(5.5).generations.due_s() == pytest.approx(5.52)
    assert loop.at(6.0).generations.due_s() is None


def test_a_generation_whose_step_controls_changed_is_followed_by_another() -> None:
    loop = Loop(slots=1)
    job = loop.at(0.0).generations.start("s")
    loop.at(0.0).controls.change({"guidance": 5.0}, 1)
    loop.at(0.0).generations.update()
    loop.at(0.1).generations.finish(job.id, np.zeros((16, CHANNELS), np.float32))
    assert loop.at(0.1).generations.wanted_s() is not None


def test_changes_of_nothing_raise_the_seq_of_what_is_there() -> None:
    loop = Loop()
    loop.generate(0.0)
    loop.at(0.1).controls.change({"guidance": 3.0}, 4)
    loop.at(0.1).generations.settle()
    assert loop.timeline.canvas.parts[0].full_seq == 4
    loop.at(0.1).controls.change({"guidance": 4.0}, 5)
    loop.at(0.1).generations.settle()
    assert loop.timeline.canvas.parts[0].full_seq == 4


def test_a_change_of_nothing_counts_for_generations_in_flight_that_no_update_has_reached() -> None:
    loop = Loop()
    first = loop.at(0.0).generations.start("s")
    loop.at(0.0).controls.change({"guidance": 5.0}, 1)
    loop.at(0.0).generations.update()
    loop.at(0.1).generations.start("s")
    loop.at(0.1).controls.change({"guidance": 5.0}, 2)
    loop.at(0.1).generations.settle()
    mixed, other = (running.basis for running in loop.generations.running)
    assert loop.generations.running[0].job is first
    assert (mixed.full_seq, other.full_seq, other.first_seq) == (0, 2, 2)


def test_a_source_is_part_of_what_a_generation_is_made_with() -> None:
    loop = Loop()
    loop.generate(0.0)
    loop.generations.references.put(
        "source", PlacedSource("x", None, Piece("source", np.ones((5, CHANNELS), np.float32)))
    )
    assert loop.at(0.1).generations.wanted_s() == 0.1
    source = loop.at(0.1).generations.start("s").source
    assert source is not None
    assert source.shape == (16, CHANNELS)


def test_a_write_stops_generations_that_do_not_know_of_it() -> None:
    loop = Loop()
    loop.generate(0.0)
    loop.at(0.1).controls.change({"shift": 2.0}, 1)
    job = loop.at(0.1).generations.start("s")
    loop.controls.accept(2)
    assert loop.at(0.1).generations.write(3, Piece("w", np.ones((2, CHANNELS), np.float32)), 2) == [job.id]
    assert not loop.at(0.2).generations.finish(job.id, np.zeros((16, CHANNELS), np.float32))
    assert loop.at(0.2).generations.wanted_s() is not None
