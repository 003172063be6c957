"""Parts of the canvas, placements and the timeline."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, PlacedSource, Placement, PlayedPart, Timeline


def piece(name: str, frames: int, value: float) -> Piece:
    """Frames value, value + 1, ..."""
    return Piece(name, np.arange(value, value + frames, dtype=np.float32)[:, None])


def canvas(frames: int = 8, name: str = "a", value: float = 0.0, seq: int = 0) -> Canvas:
    """A canvas of one part."""
    return Canvas((CanvasPart(piece(name, frames, value), 0, 0, frames, seq, seq),))


def rows(of: Canvas) -> list[float]:
    return of.rows(range(of.start, of.end))[:, 0].tolist()


def test_a_part_replaces_what_was_there() -> None:
    changed = canvas().with_part(CanvasPart(piece("b", 4, 100), 1, 2, 5, 3, 3))
    assert rows(changed) == [0, 1, 101, 102, 103, 5, 6, 7]
    assert [(part.start, part.end, part.full_seq) for part in changed.parts] == [(0, 2, 0), (2, 5, 3), (5, 8, 0)]
    assert set(changed.pieces) == {"a", "b"}
    assert rows(changed.cut(4, 7)) == [103, 5, 6]
    assert changed.part_at(8) is None


def test_only_what_was_complete_gets_the_new_seq() -> None:
    changed = canvas(seq=2).with_part(CanvasPart(piece("b", 2, 100), 0, 0, 2, 1, 1)).with_seq(2, 5)
    assert [(part.first_seq, part.full_seq) for part in changed.parts] == [(1, 1), (5, 5)]


def test_a_placement_repeats_its_band() -> None:
    placement = Placement(0, canvas(), play_frame=10, canvas_frame=4, band=(3, 6))
    assert [placement.canvas_frame_at(frame) for frame in range(8, 15)] == [5, 3, 4, 5, 3, 4, 5]
    endless = Placement(0, canvas(), play_frame=10, canvas_frame=4, band=None)
    assert [endless.canvas_frame_at(frame) for frame in (9, 10, 11)] == [3, 4, 5]


def test_placements_are_equal_where_their_latents_are() -> None:
    first = canvas()
    old = Placement(0, first, 0, 0, None)
    new = Placement(0, first.with_part(CanvasPart(piece("b", 4, 0), 0, 4, 8, 1, 1)), 0, 0, None)
    assert [new.is_same_at(old, frame) for frame in (3, 4, 9)] == [True, False, True]
    moved = Placement(0, first, 0, 1, None)
    assert [moved.is_same_at(old, frame) for frame in (3, 7, 8)] == [False, False, True]  # known nowhere at 8
    assert Placement(0, first, 1, 1, None).is_same_at(old, 3)
    short = Placement(0, first.cut(0, 4), 0, 0, None)
    assert [[old.is_same_at(short, frame), short.is_same_at(old, frame)] for frame in (3, 4)] == [
        [True] * 2,
        [False] * 2,
    ]


def test_a_later_canvas_keeps_its_sample_when_the_position_moves() -> None:
    timeline = Timeline()
    assert timeline.at(0) is None
    timeline.place(Placement(0, canvas(), 0, 0, (0, 8)))
    timeline.place_canvas(1000, canvas(name="later", value=50))
    timeline.move(500, 50, 2, (0, 8))
    assert [item.from_sample for item in timeline.placements] == [0, 500, 1000]
    here, later = timeline.at(500), timeline.at(1000)
    assert (here.canvas_frame_at(50), later.canvas_frame_at(50)) == (2, 2)
    assert set(later.canvas.pieces) == {"later"}
    assert (timeline.next_start(0), timeline.next_start(999), timeline.next_start(1000)) == (500, 1000, None)
    timeline.place_canvas(600, canvas(name="newest"))
    assert [item.from_sample for item in timeline.placements] == [0, 500, 600]


def test_a_move_that_is_to_come_stays_when_canvas_or_position_change_before() -> None:
    timeline = Timeline([Placement(0, canvas(), 0, 0, (0, 8))])
    timeline.move(1000, 100, 5, (4, 6), is_chosen=True)
    timeline.place_canvas(500, canvas(name="new"))
    timeline.move(600, 60, 2, (0, 8))
    assert [item.from_sample for item in timeline.placements] == [0, 500, 600, 1000]
    later = timeline.at(1000)
    assert (later.canvas_frame_at(100), later.band, later.is_chosen) == (5, (4, 6), True)
    assert set(later.canvas.pieces) == {"new"}


def test_what_was_played_is_forgotten() -> None:
    timeline = Timeline([Placement(0, canvas(), 0, 0, None), Placement(100, canvas(), 0, 0, None)])
    timeline.forget(99)
    assert len(timeline.placements) == 2
    timeline.forget(100, first_frame=3)
    assert [item.from_sample for item in timeline.placements] == [100]
    assert timeline.canvas.start == 3


def test_a_source_repeats_from_its_frame() -> None:
    source = PlacedSource("x", None, piece("s", 3, 0), start=2)
    assert source.frames(1, 5)[:, 0].tolist() == [2, 0, 1, 2, 0]


@pytest.mark.parametrize(("source_id", "repeats"), [("x", 200), (None, 201)])
def test_a_source_of_nearly_a_loops_length_fits_it_but_not_what_was_written_into_it(
    source_id: str | None, repeats: int
) -> None:
    latents = np.random.default_rng(0).standard_normal((201, 2)).astype(np.float32)
    found = PlacedSource(source_id, None, Piece("s", latents)).frames(0, 256, loop=200)
    assert found.shape == (256, 2)
    np.testing.assert_array_equal(found[repeats:], found[: 256 - repeats])


def test_what_is_silent_is_so_from_a_sample_on_whatever_is_placed() -> None:
    timeline = Timeline(muted=["b", "a"])
    timeline.place(Placement(0, canvas(), 0, 0, (0, 8)))
    timeline.mute(40, ["c"])
    timeline.mute(80, [])

    def muted() -> list[tuple[int, tuple[str, ...]]]:
        return [(item.from_sample, item.muted) for item in timeline.placements]

    planned = [(0, ("a", "b")), (40, ("c",)), (80, ())]
    assert muted() == planned
    timeline.place_canvas(20, canvas(name="b"))
    timeline.move(30, 3, 1, (0, 4))
    assert {item.canvas.parts[0].piece.name for item in timeline.placements[1:]} == {"b"}
    assert {item.band for item in timeline.placements[2:]} == {(0, 4)}
    timeline.place(Placement(60, canvas(name="c"), 6, 0, (0, 8)))
    assert muted() == [(0, ("a", "b")), (20, ("a", "b")), (30, ("a", "b")), (40, ("c",)), (60, ("c",)), (80, ())]
    assert timeline.placements[-1].canvas.parts[0].piece.name == "c"
    assert timeline.muted == ()
    timeline.mute(40, ["a"])
    assert {item.muted for item in timeline.placements[3:]} == {("a",)}


def test_what_is_silent_makes_a_difference() -> None:
    old = Placement(0, canvas(), 0, 0, None)
    new = Placement(0, old.canvas, 0, 0, None, muted=("a",))
    assert not new.is_same_at(old, 3)


def test_what_was_played_has_margins_in_the_groups_of_its_canvas() -> None:
    before, values, _ = PlayedPart(canvas(20), 7, 12, False).with_margins(4, 4)
    assert (before, values[:, 0].tolist()) == (7, list(range(16)))
    before, values, first = PlayedPart(canvas(20).cut(5, 18), 9, 16, False).with_margins(4, 4)
    assert (before, values[:, 0].tolist(), first) == (1, list(range(8, 18)), 8)  # what is known begins in a group
    before, values, first = PlayedPart(canvas(20), 5, 12, True).with_margins(4, 4)
    assert (before, len(values)) == (5, 16)
    assert values[before : before + 7, 0].tolist() == list(range(5, 12))
    assert values[:, 0].tolist() == [5 + (frame - 5) % 7 for frame in range(16)]
    assert first >= 0


def test_without_groups_margins_are_as_long_as_is_known() -> None:
    before, values, first = PlayedPart(canvas(20), 7, 12, False).with_margins(2)
    assert (before, values[:, 0].tolist(), first) == (2, list(range(5, 14)), 5)
    before, values, _ = PlayedPart(canvas(20), 7, 12, True).with_margins(2)
    assert (before, values[:, 0].tolist()) == (2, [10, 11, 7, 8, 9, 10, 11, 7, 8])
