"""Generations of a loop: noise of each pass, spacing, order, writes over the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS
from helpers.note_simulation import PLUCKED, SHAPED, SILENCE

from runtime.base.errors import RequestError
from runtime.live.parts.loop import PassNoise
from runtime.live.playback.canvas import Piece, PlacedSource
from runtime.music.envelopes import level_curve
from runtime.requests.timesteps import noise

from .test_base import Loop


def test_an_older_generation_that_finishes_later_is_dropped() -> None:
    loop = Loop()
    older = loop.at(0.0).generations.start("s")
    newer = loop.at(0.1).generations.start("s")
    assert loop.at(0.2).generations.finish(newer.id, np.ones((16, CHANNELS), np.float32))
    assert not loop.at(0.3).generations.finish(older.id, np.zeros((16, CHANNELS), np.float32))
    assert loop.timeline.canvas.rows([0])[0, 0] == 1.0


def test_generations_in_flight_are_spread_over_the_time_of_one() -> None:
    loop = Loop(slots=2, variation=0.2)
    loop.generations.times.newest_s.append(1.0)
    loop.at(0.0).generations.start("s")
    assert loop.at(0.5).generations.wanted_s() is None
    assert loop.at(0.5).generations.due_s() == pytest.approx(0.55)
    assert loop.at(0.55).generations.wanted_s() == 0.55
    loop.at(0.55).generations.start("s")
    assert loop.at(3.0).generations.wanted_s() is None


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
    assert loop.at(0.0).generations.start("s").noise is None


def test_noise_goes_on_after_a_restore_and_begins_again_with_another_seed() -> None:
    loop = Loop(variation=0.5)
    loop.generate(0.0)
    loop.generations.restore_noise(PassNoise(1, 7, Piece("n", noise(16, CHANNELS, 99))))
    loop.generate(0.1)
    assert loop.generations.placed_noise is not None
    assert loop.generations.placed_noise.index == 8
    loop.at(0.2).controls.change({"seed": 5, "variation": 0.0}, 1)
    assert loop.at(0.2).generations.start("s").noise is None


def test_a_write_wraps_and_must_fit() -> None:
    loop = Loop()
    with pytest.raises(RequestError, match="no canvas yet"):
        loop.generations.region(0, 1)
    loop.generate(0.0)
    with pytest.raises(RequestError, match="the canvas has 16"):
        loop.generations.region(0, 17)
    start = loop.generations.region(15 + 16, 3)
    loop.at(0.1).generations.write(start, Piece("w", np.array([[1.0], [2.0], [3.0]]) + np.zeros((3, CHANNELS))), 1)
    assert loop.timeline.canvas.rows([15, 0, 1, 2])[:, 0].tolist() == [1.0, 2.0, 3.0, 0.0]
    assert loop.generations.references.source is not None


def drafted(loop: Loop, now_s: float = 1.0, *, may_draft: bool = True) -> bool:
    """Whether the next generation has only the last steps."""
    assert loop.at(now_s).generations.wanted_s() == now_s
    return loop.at(now_s).generations.start("s", may_draft=may_draft).options.denoise == 0.5


def test_a_step_control_is_heard_in_a_draft_first_and_complete_after_it() -> None:
    loop = Loop(steps=7)
    loop.generate(0.0, value=2.0)
    loop.at(1.0).controls.change({"guidance": 5.0}, 1)
    assert loop.at(1.0).generations.wanted_s() == 1.0
    draft = loop.at(1.0).generations.start("s")
    assert (draft.options.denoise, draft.options.steps, draft.options.guidance) == (0.5, 3, 5.0)
    assert draft.source is not None
    assert np.array_equal(draft.source, np.full((16, CHANNELS), 2.0, np.float32))
    assert loop.at(1.1).generations.finish(draft.id, np.ones((16, CHANNELS), np.float32))
    (part,) = loop.timeline.canvas.parts
    assert (part.first_seq, part.full_seq) == (1, 0)
    assert loop.at(1.1).generations.wanted_s() == 1.1
    complete = loop.at(1.1).generations.start("s")
    assert (complete.options.denoise, complete.options.steps, complete.source) == (None, 7, None)
    assert loop.at(1.3).generations.finish(complete.id, np.zeros((16, CHANNELS), np.float32))
    (part,) = loop.timeline.canvas.parts
    assert (part.first_seq, part.full_seq) == (1, 1)
    assert loop.at(1.4).generations.wanted_s() is None
    assert list(loop.generations.times.newest_s) == pytest.approx([0.0, 0.2])


def test_a_draft_of_what_follows_a_structure_is_a_cover_as_the_complete_one() -> None:
    loop = Loop(structure_strength=0.5)
    piece = Piece("structure", np.arange(6.0)[:, None] + np.zeros((6, CHANNELS), np.float32))
    loop.generations.references.put("structure", PlacedSource("a", None, piece))
    loop.generate(0.0)
    loop.at(1.0).controls.change({"guidance": 5.0}, 1)
    assert loop.at(1.0).generations.wanted_s() == 1.0
    draft = loop.at(1.0).generations.start("s")
    assert (draft.options.task, draft.options.denoise, draft.options.structure_strength) == ("cover", 0.5, 0.5)
    assert draft.hints is not None
    assert draft.hints[:, 0].tolist() == [*range(6), *range(6), *range(4)]


def test_there_is_no_draft_where_more_has_changed_or_ticks_are_busy() -> None:
    for name, value in (("guidance", 5.0), ("shift", 2.0), ("steps", 1), ("seed", 5), ("variation", 0.5)):
        loop = Loop()
        loop.generate(0.0)
        loop.at(1.0).controls.change({"guidance": 4.0, name: value}, 1)
        assert drafted(loop) == (name == "guidance")
    loop = Loop()
    loop.generate(0.0)
    loop.at(1.0).controls.change({"guidance": 5.0}, 1)
    assert not drafted(loop, may_draft=False)
    loop.at(2.0).controls.change({"guidance": 6.0}, 2)
    assert not drafted(loop, 2.0)
    written = Loop()
    written.generate(0.0)
    written.at(0.5).generations.write(0, Piece("w", np.zeros((3, CHANNELS), np.float32)), 1)
    written.at(1.0).controls.change({"guidance": 5.0}, 2)
    assert not drafted(written)


@pytest.mark.parametrize(
    ("frames", "expected"), [((13, 14, 15, 0, 1, 2), (13, 14, 15, 0, 1, 2)), (range(16), range(16))]
)
def test_notes_have_their_envelopes_over_the_seam(frames: Sequence[int], expected: Sequence[int]) -> None:
    """A note over the seam falls on; one that is held all the time is struck with the first bar."""
    loop, levels = Loop(model=SHAPED), np.zeros((16, CHANNELS), np.float32)
    loop.controls.change({"bpm": 93.75}, 1)  # a beat of 16 frames
    levels[list(frames), 1] = 0.8
    job = loop.at(0.0).generations.start("s")
    assert loop.generations.finish(job.id, SILENCE + 2 * levels)
    made = (loop.timeline.canvas.rows(expected) - SILENCE)[:, 1] / 2
    np.testing.assert_allclose(made, 0.8 * level_curve(PLUCKED, len(expected) + 1)[:-1], atol=1e-5)
