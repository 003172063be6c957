"""What is said of how pieces end."""

import numpy as np
import pytest

from configs.demo.recipe.evaluation.ends import SECONDS, chord_share, ends_figures, off_line
from configs.demo.recipe.latents import SAMPLE_RATE_HZ
from runtime.music.sections import SongSection


def test_the_share_of_a_chord_is_that_of_its_pitch_classes() -> None:
    time = np.arange(2 * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    tones = [np.sin(2 * np.pi * 440.0 * 2 ** ((pitch - 69) / 12) * time) for pitch in (60, 64, 67)]
    audio = np.repeat(np.sum(tones, axis=0)[:, None] / 4, 2, axis=1).astype(np.float32)
    assert chord_share(audio, 0.5, (0, 4, 7)) > 0.95
    assert chord_share(audio, 0.5, (2, 5, 9)) < 0.05


def test_bar_lines_are_counted_from_the_first_section() -> None:
    section = SongSection(0, "verse", ("bass",), 8, 10, 410, None, bpm=120.0, beats=4, offset=0.25)
    assert off_line([section], 60) == pytest.approx(0.25)
    assert off_line([section], 85) == pytest.approx(24.75)


def test_shares_are_of_all_pieces_and_of_those_with_last_notes() -> None:
    rows = [
        {"seconds": SECONDS[0], "last 100 ms dB": -120.0, "clicks": 0, "sections": 2, "chord": 0.9, "frames off": 0.4},
        {"seconds": SECONDS[0], "last 100 ms dB": -49.0, "clicks": 1, "sections": 1, "chord": 0.7, "frames off": 3.0},
        {"seconds": 4.0, "last 100 ms dB": -80.0, "clicks": 0},
    ]
    figures = ends_figures(rows)
    assert figures["ends_silent"] == pytest.approx(2 / 3, abs=1e-4)
    assert (figures["ends_clicks"], figures["ends_on_line"], figures["ends_two_sections"]) == (1, 0.5, 0.5)
    assert figures["ends_chord"] == pytest.approx(0.8)
