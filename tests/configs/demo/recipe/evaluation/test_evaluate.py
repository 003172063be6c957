"""Evaluation, by players whose figures are known."""

from collections.abc import Sequence

import numpy as np
import pytest

from configs.demo.recipe.corpus.prompts import Request
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.evaluation.evaluate import (
    LAYER_PROMPTS,
    Scores,
    continuation_figures,
    cover_source,
    held_out_requests,
    layer_figures,
    score,
    seed_figures,
)
from configs.demo.recipe.evaluation.player import Piece
from configs.demo.recipe.instruments import LAYERS, channels_of
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    FRAME_RATE_HZ,
    HOP_SAMPLES,
    FloatArray,
    latents_from_levels,
)

REQUESTS = held_out_requests(24)


class CorpusPlayer:
    """Answers prompts with songs that fit them: all figures are the ceiling's. Its audio is the sum of the levels."""

    def __init__(self, requests: Sequence[Request] = ()) -> None:
        self.songs = {request.prompt: request.song for request in requests}

    def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
        return np.stack([self._latents(prompt, seed + i, CANVAS_FRAMES) for i, prompt in enumerate(prompts)])

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        return [self._latents(p.prompt, p.seed, round(p.options["seconds"] * FRAME_RATE_HZ)) for p in pieces]

    def decode(self, latents: FloatArray) -> FloatArray:
        mono = np.repeat(latents.sum(axis=1), HOP_SAMPLES)
        return np.repeat(mono[:, None], 2, axis=1)

    def _latents(self, prompt: str, seed: int, frames: int) -> FloatArray:
        song = self.songs.get(prompt, draw_song(np.random.default_rng(seed)))
        levels = render(song, frames, LAYER_PROMPTS.get(prompt, song.layers))
        return latents_from_levels(np.roll(levels, seed, axis=0))


class ClutteredPlayer(CorpusPlayer):
    """Adds drums to everything."""

    def _latents(self, prompt: str, seed: int, frames: int) -> FloatArray:
        latents = super()._latents(prompt, seed, frames)
        drums = latents_from_levels(render(draw_song(np.random.default_rng(0)), frames, ["drums"]))
        return np.maximum(latents, drums)


def test_the_corpus_itself_scores_one() -> None:
    rolls = [render(request.song, CANVAS_FRAMES, request.song.layers) for request in REQUESTS]
    scores = score(REQUESTS, rolls)
    assert min(vars(scores).values()) > 0.98
    assert scores.rounded("ceiling_")["ceiling_in_key"] > 0.98


def test_a_player_that_ignores_prompts_scores_low() -> None:
    roll = render(draw_song(np.random.default_rng(1)), CANVAS_FRAMES, ["pad"])
    scores = score(REQUESTS, [roll] * len(REQUESTS))
    assert scores.in_key < 0.8
    assert scores.layers_present < 0.8
    assert scores.tempo < 0.5


def test_silence_has_no_layer() -> None:
    scores = score(REQUESTS, [np.zeros((CANVAS_FRAMES, CHANNELS), np.float32)] * len(REQUESTS))
    assert scores == Scores(in_key=1.0, layers_present=0.0, layers_absent=1.0, tempo=scores.tempo)


def test_other_seeds_are_told_from_the_same_ones() -> None:
    player = CorpusPlayer(REQUESTS)
    prompts = [request.prompt for request in REQUESTS]
    again = np.maximum((player.play(prompts, 2000) + 0.25) / 6.0, 0.0)
    assert seed_figures(player, REQUESTS, again)["seeds_differ"] == 0.0  # type: ignore[arg-type]
    assert seed_figures(player, REQUESTS, np.roll(again, 9, axis=1))["seeds_differ"] > 0.9  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("player", "absent", "drums_db"), [(CorpusPlayer(), 1.0, -100.0), (ClutteredPlayer(), 0.0, 20.0)]
)
def test_layers_that_were_not_asked_for_are_counted_by_layer(
    player: CorpusPlayer, absent: float, drums_db: float
) -> None:
    figures = layer_figures(player, seeds=2)  # type: ignore[arg-type]
    assert figures["absent_worst_layer"] == absent
    assert figures["present_worst_layer"] == 1.0
    assert (figures["drums_in_pads_db"] < -50.0) == (drums_db < -50.0)


def test_long_pieces_that_keep_their_layers_score_one() -> None:
    figures = continuation_figures(CorpusPlayer(held_out_requests()), count=2)  # type: ignore[arg-type]
    assert figures["continued_layers_kept"] > 0.95
    assert figures["continued_layers_absent"] == 1.0
    assert figures["continued_in_key"] > 0.98


def test_held_out_prompts_are_always_the_same() -> None:
    assert held_out_requests(5) == held_out_requests(5)
    assert len({request.prompt for request in held_out_requests()}) > 60


def test_a_cover_has_the_notes_of_its_source_and_names_its_instruments() -> None:
    song, other, prompt = cover_source(3)
    assert song.seed == other.seed
    assert all(other.instruments[layer] in prompt for layer in song.layers)
    channels = sorted(
        set(range(CHANNELS)) - {c for layer in LAYERS if layer not in song.layers for c in channels_of(layer)}
    )
    assert not np.delete(render(song, 100, song.layers), channels, axis=1).any()
