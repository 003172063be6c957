"""Generations of a loop: noise of each pass, spacing, order, writes over the end."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS

from runtime.errors import RequestError
from runtime.requests.timesteps import noise
from runtime.sessions.generations.loop import PassNoise
from runtime.sessions.playback.canvas import Piece

from .test_base import Loop


def test_an_older_generation_that_finishes_later_is_dropped() -> None:
    loop = Loop()
    older = loop.generations.start("s", 0.0)
    newer = loop.generations.start("s", 0.1)
    assert loop.generations.finish(newer.id, np.ones((16, CHANNELS), np.float32), 0.2)
    assert not loop.generations.finish(older.id, np.zeros((16, CHANNELS), np.float32), 0.3)
    assert loop.timeline.canvas.rows([0])[0, 0] == 1.0


def test_generations_in_flight_are_spread_over_the_time_of_one() -> None:
    loop = Loop(slots=2, variation=0.2)
    loop.generations.times.newest_s.append(1.0)
    loop.generations.start("s", 0.0)
    assert loop.generations.wanted_s(0.5) is None
    assert loop.generations.due_s(0.5) == pytest.approx(0.55)
    assert loop.generations.wanted_s(0.55) == 0.55
    loop.generations.start("s", 0.55)
    assert loop.generations.wanted_s(3.0) is None


def test_the_noise_of_each_pass_follows_from_the_seed_and_the_passes_before() -> None:
    first, second = Loop(variation=0.5), Loop(variation=0.5)
    for loop in (first, second):
        for index in range(3):
            loop.generate(float(index))
    left, right = first.generations.placed_noise, second.generations.placed_noise
    assert left is not None
    assert right is not None
    assert left.index == right.index == 2
    assert left.piece is not None
    assert right.piece is not None
    assert np.array_equal(left.piece.latents, right.piece.latents)


def test_the_first_pass_has_the_seeds_noise() -> None:
    loop = Loop(variation=1.0)
    assert loop.generations.start("s", 0.0).noise is None


def test_noise_goes_on_after_a_restore_and_begins_again_with_another_seed() -> None:
    loop = Loop(variation=0.5)
    loop.generate(0.0)
    loop.generations.restore_noise(PassNoise(1, 7, Piece("n", noise(16, CHANNELS, 99))))
    loop.generate(0.1)
    assert loop.generations.placed_noise is not None
    assert loop.generations.placed_noise.index == 8
    loop.controls.change({"seed": 5, "variation": 0.0}, 1, 0.2)
    assert loop.generations.start("s", 0.2).noise is None


def test_a_write_wraps_and_must_fit() -> None:
    loop = Loop()
    with pytest.raises(RequestError, match="no canvas yet"):
        loop.generations.region(0, 1)
    loop.generate(0.0)
    with pytest.raises(RequestError, match="the canvas has 16"):
        loop.generations.region(0, 17)
    start = loop.generations.region(15 + 16, 3)
    loop.generations.write(start, Piece("w", np.array([[1.0], [2.0], [3.0]]) + np.zeros((3, CHANNELS))), 1, 0.1)
    assert loop.timeline.canvas.rows([15, 0, 1, 2])[:, 0].tolist() == [1.0, 2.0, 3.0, 0.0]
    assert loop.generations.source is not None
