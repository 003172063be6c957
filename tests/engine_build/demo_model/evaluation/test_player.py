"""The shipped bundle through the tick loop: adherence to prompts, continuation of known frames."""

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.generations import generate
from helpers.paths import ROOT

from engine_build.demo_model.bundle_text import OVERLAP_FRAMES
from engine_build.demo_model.corpus.songs import Song, render
from engine_build.demo_model.evaluation.evaluate import held_out_requests, score
from engine_build.demo_model.evaluation.measure import difference, in_key_energy, layers_present
from engine_build.demo_model.evaluation.player import Player, open_player
from engine_build.demo_model.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    HOP_SAMPLES,
    latents_from_levels,
    levels_from_latents,
)

FOLDER = ROOT / "configs" / "demo"
SONG = Song(root=9, mode="minor", bpm=100, layers=frozenset({"pad", "bass", "drums"}), density=1, loudness=2, seed=5)
PROMPT = "pads, bass and drums in A minor at 100 bpm"


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with open_player(FOLDER) as opened:
        yield opened


def test_it_plays_what_it_is_asked_for(player: Player) -> None:
    requests = held_out_requests(8)
    rolls = levels_from_latents(player.play([request.prompt for request in requests], seed=50))
    scores = score(requests, rolls)
    assert scores.in_key > 0.9
    assert scores.layers_present > 0.9
    assert scores.layers_absent > 0.9


def test_a_seed_gives_one_piece_and_another_seed_another(player: Player) -> None:
    first, again = (levels_from_latents(player.play([PROMPT], seed=3))[0] for _ in range(2))
    other = levels_from_latents(player.play([PROMPT], seed=4))[0]
    live = levels_from_latents(player.play([PROMPT], seed=3, live=True))[0]
    assert difference(first, again) < 1e-3
    assert difference(first, other) > 0.1
    assert 0.0 < difference(first, live) < difference(first, other)


def test_dcw_keeps_the_key_at_small_strengths_only(player: Player) -> None:
    def in_key(low: float) -> float:
        request = player.pipeline.request("pads and bass in A minor", seed=1, dcw={"low": low}, steps=16)
        return in_key_energy(levels_from_latents(generate(player.pipeline.loop, request)), 9, "minor")

    assert in_key(0.02) > 0.9
    assert in_key(0.2) < 0.75


def test_it_continues_known_frames(player: Player) -> None:
    tail = latents_from_levels(render(SONG, CANVAS_FRAMES)[-OVERLAP_FRAMES:])
    latents = player.continue_from([PROMPT], tail[None], seed=1)[0]
    assert latents.shape == (CANVAS_FRAMES, CHANNELS)
    assert np.abs(latents[:OVERLAP_FRAMES] - tail).max() < 1e-3
    new = levels_from_latents(latents)[OVERLAP_FRAMES:]
    assert in_key_energy(new, SONG.root, SONG.mode) > 0.9
    assert layers_present(new) == SONG.layers


def test_a_decoded_song_is_not_silent(player: Player) -> None:
    audio = player.decode(player.play([PROMPT], seed=3)[0])
    assert audio.shape == (CANVAS_FRAMES * HOP_SAMPLES, 2)
    assert 0.1 < np.abs(audio).max() <= 1.0
