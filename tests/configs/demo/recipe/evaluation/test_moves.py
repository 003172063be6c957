"""What is said of how songs move."""

import numpy as np
import pytest

from configs.demo.recipe.evaluation.moves import Section, heard, moves_figures, song_rows


def test_a_section_that_gets_louder_rises() -> None:
    noise = np.random.default_rng(0).standard_normal((48_000, 2)).astype(np.float32)
    found = heard("build", 4, 0.1 * noise * np.linspace(0.25, 1.0, 48_000, dtype=np.float32)[:, None])
    assert found.rise_db == pytest.approx(8.4, abs=0.3)
    assert heard("verse", 4, 0.1 * noise).level_db == pytest.approx(-20.0, abs=0.1)


def test_shares_are_of_builds_and_of_songs_with_a_chorus() -> None:
    songs = [
        [Section("build", 4, -20.0, 3.5), Section("chorus", 8, -15.0, 0.0), Section("outro", 5, -20.0, 0.0)],
        [Section("build", 3, -14.0, 1.0), Section("chorus", 8, -15.0, 0.0), Section("outro", 7, -20.0, 0.0)],
        [Section("verse", 8, -15.0, 0.0)],
    ]
    assert moves_figures(songs) == {
        "moves_songs": 3,
        "moves_builds": 2,
        "moves_odd_sections": 2,
        "moves_builds_rise": 0.5,
        "moves_builds_rise_db": 2.25,
        "moves_chorus_loudest": 0.5,
    }
    (row,) = song_rows({("house", 3): songs[0]})
    assert row["sections"] == "build 4: -20.0 (+3.5), chorus 8: -15.0, outro 5: -20.0"
