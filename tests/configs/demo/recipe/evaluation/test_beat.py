"""The demo keeps the beat: in files and live after the first canvas, in loops; its clock, and one that it follows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from configs.demo.recipe.evaluation import beat
from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.latents import SILENCE
from runtime.config.deployment import Deployment
from runtime.live.protocol.server_messages import Beat
from runtime.pipeline.pipeline import open_pipeline

PROMPTS = beat.PROMPTS[:1]
# Of all genres, 60 s each, plans have 0.59 (140 bpm) to 0.75, pieces without one 0.04 to 0.4. Here are 100 onsets.
LEAST_COHERENCE = 0.4


@pytest.fixture(scope="module")
def player(built_demo: Deployment) -> Iterator[Player]:
    with open_pipeline(built_demo) as pipeline:
        yield Player(pipeline)


def test_onsets_on_a_grid_and_beside_it() -> None:
    assert beat.on_grid(np.arange(20.0)).coherence == pytest.approx(1.0)
    assert beat.on_grid(np.arange(20.0) + 0.25).offset == pytest.approx(0.25)
    assert beat.on_grid(np.arange(20.0) / 5).coherence == pytest.approx(0.0, abs=1e-9)
    assert beat.on_grid(np.zeros(0)).coherence == 0.0


def test_a_blow_is_where_a_drum_rises_most() -> None:
    latents = np.full((100, 64), SILENCE, np.float32)
    kick = beat.pitch_channels("drums")[0]
    for frame in (25, 50):
        latents[frame : frame + 3, kick] += np.array([6.0, 3.0, 1.0])
    latents[24, kick] += 1.0
    assert beat.drum_onsets_s(latents).tolist() == [1.0, 2.0]


def test_each_onset_has_the_grid_of_its_bar() -> None:
    beats = [Beat(bpm=bpm, beats=4, bar=0, phase=0.0, sample=sample) for bpm, sample in ((120, 48_000), (100, 144_000))]
    starts, steps = beat.grids(beats, np.array([0.5, 1.0, 2.9, 3.0, 9.0]))
    assert starts.tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert steps.tolist() == [0.125, 0.125, 0.125, 0.15, 0.15]


@pytest.mark.parametrize("bpm", [97, 140])
def test_files_and_sessions_keep_the_beat_after_their_first_canvas(player: Player, bpm: int) -> None:
    for row in (beat.file_row, beat.live_row):
        found = row(player, bpm, beat.PROMPTS[:4], 32.0)
        assert found["onsets"] > 40
        assert found["coherence"] >= LEAST_COHERENCE, found
        assert abs(found["offset ms"]) <= 25, found


def test_loops_keep_the_beat_and_their_seams_are_short(player: Player) -> None:
    found = beat.loop_row(player, 124, PROMPTS, 30.0)
    assert found["coherence"] >= 0.6
    assert max(beat.seam_ms(bpm) for bpm in beat.LOOP_TEMPOS) <= 20


def test_the_clock_is_exact_and_a_controllers_is_followed(player: Player) -> None:
    assert beat.clock_figures(player, 20.0)["beat_clock_drift_ms"] <= 1
    found = beat.followed_figures(player)
    assert found["beat_followed_bpm"] == beat.FOLLOWED_BPM
    assert found["beat_followed_after_bars"] <= 1.5
    assert found["beat_followed_error_ms"] <= 22
    assert found["beat_followed_coherence"] >= LEAST_COHERENCE
