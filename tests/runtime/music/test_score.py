"""Notes on the beat of a plan."""

import pytest

from runtime.base.errors import RequestError
from runtime.music.score import Marker, Note, Part, Score


def score(*starts: float, bpm: float | None = 120.0, is_planned: bool = True) -> Score:
    notes = tuple(Note("bass", 40, 100, start, 0.1) for start in starts)
    return Score((Part("bass", notes),), 10.0, 0.04, bpm, sections=(Marker(0.0, "verse"),) if is_planned else ())


@pytest.mark.parametrize(
    ("start_s", "expected_s"),
    [
        (0.12, 0.125),  # a sixteenth at 120 bpm
        (0.16, 1 / 6),  # a triplet
        (0.52, 0.5),
        (0.5, 0.5),
        (3.24, 3.25),
    ],
)
def test_starts_move_to_the_nearest_part_of_a_beat(start_s: float, expected_s: float) -> None:
    assert [note.start_s for note in score(start_s).quantized().notes] == [pytest.approx(expected_s)]


def test_what_lies_off_the_grid_stays() -> None:
    played = score(0.1, bpm=60.0)  # a tenth of a beat: 67 ms from a sextuplet, 150 from a sixteenth
    assert played.quantized().notes == played.notes


def test_a_note_never_loses_its_length() -> None:
    short = Score((Part("drums", (Note("drums", 36, 100, 0.48, 0.04),)),), 1.0, 0.04, 120.0, sections=(Marker(0, "a"),))
    (note,) = short.quantized().notes
    assert note.seconds > 0


@pytest.mark.parametrize(("bpm", "is_planned"), [(None, True), (120.0, False)])
def test_without_a_plan_or_a_tempo_there_is_no_beat(bpm: float | None, is_planned: bool) -> None:
    with pytest.raises(RequestError, match="no beat") as caught:
        score(0.1, bpm=bpm, is_planned=is_planned).quantized()
    assert caught.value.field == "quantize"


def test_a_score_can_end_earlier() -> None:
    cut = score(0.5, 1.0, 1.2).until(1.05)
    assert [(note.start_s, note.seconds) for note in cut.notes] == [(0.5, 0.1), (1.0, pytest.approx(0.05))]
    assert cut.seconds == 1.05
    assert score(0.5).until(20.0) == score(0.5)


def test_notes_of_all_parts_are_sorted_by_start() -> None:
    parts = (Part("a", (Note("a", 1, 1, 0.5, 1), Note("a", 1, 1, 2.0, 1))), Part("b", (Note("b", 1, 1, 1.0, 1),)))
    assert [note.start_s for note in Score(parts, 3.0, 0.04).notes] == [0.5, 1.0, 2.0]
