"""Tempo of options and prompts, and loops of whole bars."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.tempos import NO_TEMPOS, TEMPO_FORMS

from runtime.config.option_ranges import NumberRange
from runtime.music.tempo import (
    Tempo,
    best_bars,
    loop_frames,
    most_bars,
    prompt_tempo,
    sixteenths_of_bar,
    tempo_of,
)
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
