"""Tempo of options and prompts, loops of whole bars, and bars on the grid of codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.tempos import NO_TEMPOS, TEMPO_FORMS

from runtime.config.option_ranges import NumberRange
from runtime.music.rhythm import Rhythm
from runtime.music.tempo import Tempo, best_bars, loop_frames, most_bars, prompt_tempo, sixteenths_of_bar, tempo_of
from runtime.requests.option_types import WeightedPrompt
from runtime.requests.options import GenerationOptions

TAKEN = NumberRange(min=60, max=180)


@pytest.mark.parametrize(
    ("options", "tempo"),
    [
        ({"prompt": "techno"}, None),
        ({"prompt": "techno, 124.3 bpm"}, Tempo(124.3, 4)),
        ({"prompt": "waltz, 3/4, 90 BPM"}, Tempo(90.0, 3)),
        ({"prompt": "at 20 bpm"}, None),
        ({"prompt": "at 200 bpm"}, Tempo(180.0, 4)),
        ({"prompt": "techno, 124 bpm", "bpm": 100.5, "time_signature": 6}, Tempo(100.5, 2)),
        ({"prompt": [WeightedPrompt(text="calm"), WeightedPrompt(text="90 bpm")]}, Tempo(90.0, 4)),
    ],
)
def test_options_come_before_prompts(options: dict[str, object], tempo: Tempo | None) -> None:
    assert tempo_of(GenerationOptions.model_validate(options), TAKEN) == tempo


@pytest.mark.parametrize(("prompt", "bpm"), TEMPO_FORMS.items())
def test_tempos_are_read_as_people_write_them(prompt: str, bpm: float) -> None:
    assert prompt_tempo(prompt, TAKEN) == min(max(bpm, 60), 180)


@pytest.mark.parametrize("prompt", NO_TEMPOS)
def test_other_numbers_are_no_tempos(prompt: str) -> None:
    assert prompt_tempo(prompt, TAKEN) is None


def test_the_seam_is_half_a_frame_at_most_at_any_tempo() -> None:
    for bpm in range(300, 3001, 7):
        tempo = Tempo(bpm / 10, 4)
        bars = best_bars(tempo, 256, 25.0)
        assert most_bars(tempo, 256, 25.0) / 2 < bars <= most_bars(tempo, 256, 25.0)
        assert abs(loop_frames(tempo, bars, 25.0) - bars * tempo.bar_frames(25.0)) <= 0.5
        assert loop_frames(tempo, bars, 25.0) <= 256


@pytest.mark.parametrize(("bpm", "bars", "frames"), [(120, 5, 250), (124, 5, 242), (140, 5, 214), (90, 3, 200)])
def test_the_number_of_bars_that_fits_best(bpm: float, bars: int, frames: int) -> None:
    tempo = Tempo(bpm, 4)
    assert (best_bars(tempo, 256, 25.0), loop_frames(tempo, bars, 25.0)) == (bars, frames)


def test_a_canvas_that_holds_no_bar() -> None:
    assert best_bars(Tempo(60.0, 4), 64, 25.0) == most_bars(Tempo(60.0, 4), 64, 25.0) == 0


@pytest.mark.parametrize(
    ("options", "sixteenths"),
    [
        ({}, 16),
        ({"time_signature": 3}, 12),
        ({"time_signature": 6}, 12),
        ({"time_signature": 2}, 8),
        ({"prompt": "jig, 6/8"}, 12),
    ],
)
def test_a_bar_has_sixteenths_by_its_meter(options: dict[str, Any], sixteenths: int) -> None:
    assert sixteenths_of_bar(GenerationOptions(**{"prompt": "a", **options})) == sixteenths


RHYTHMS = [Rhythm(bpm, beats, 25.0, 5, 24, 100, 200) for bpm in (60, 97, 120, 131.5, 180) for beats in (4, 3, 2)]


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_bars_share_the_codes_of_a_piece_and_each_begins_in_its_first(rhythm: Rhythm) -> None:
    spans = [rhythm.code_range(bar, 1) for bar in range(40)]
    assert [code for span in spans for code in span] == list(range(spans[-1].stop))
    assert rhythm.code_range(8, 16) == range(spans[8].start, spans[23].stop)
    for bar, span in enumerate(spans):
        assert rhythm.frame(bar) in range(5 * span.start, 5 * (span.start + 1))


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_markers_are_the_bar_that_begins_and_the_place_in_it(rhythm: Rhythm) -> None:
    for bar in range(8, 24):
        span = rhythm.code_range(bar, 1)
        assert [rhythm.bar_marker(code, 8) for code in span] == [(100 + bar - 8,)] + [()] * (len(span) - 1)
        clocks = np.array([rhythm.clock_marker(code) - 200 for code in span])
        assert 0 <= clocks[0] < clocks[-1] < 24 * rhythm.beats
        last_s = (5 * np.array(span) + 4) / 25.0 - rhythm.frame(bar) / 25.0
        assert np.all(np.abs(clocks - last_s * rhythm.bpm / 60.0 * 24) <= 1)


def test_recalled_tokens_stand_between_both_markers() -> None:
    assert RHYTHMS[0].markers(0, 0, (7, 8)) == (100, 7, 8, RHYTHMS[0].clock_marker(0))
    assert RHYTHMS[0].markers(1, 0, (7, 8)) == (7, 8, RHYTHMS[0].clock_marker(1))


@pytest.mark.parametrize(
    "rhythm", [*RHYTHMS, RHYTHMS[4].at(97.3, 4), Rhythm(140, 4, 25.0, 5, 24, 100, 200, 37.4)], ids=str
)
@pytest.mark.parametrize("steps", [(0.0, 0.25, 0.5, 0.75), (0.0, 0.667), tuple(k / 6 for k in range(6))], ids=str)
def test_each_step_is_the_frame_nearest_to_it_and_no_other_is_one(rhythm: Rhythm, steps: tuple[float, ...]) -> None:
    """Over 200 codes; halves go down."""
    codes = range(10, 210)
    found = [5 * code + place for code in codes for place in range(5) if rhythm.step_frames(code, steps) >> place & 1]
    beats = np.arange(400)[:, None] + np.array(steps)  # [beats, steps]
    positions = rhythm.first_frame + beats * 60.0 / rhythm.bpm * 25.0
    nearest = np.ceil(positions - 0.5 - 1e-3).astype(int)
    assert found == sorted(set(nearest[(nearest >= 50) & (nearest < 1050)].tolist()))


def test_without_steps_no_frame_is_one() -> None:
    assert RHYTHMS[0].step_frames(3, ()) == 0
