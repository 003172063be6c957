"""Evaluation, by players whose figures are known."""

from collections.abc import Sequence

import numpy as np
import pytest

from engine_build.demo_model.corpus.songs import draw_song, render
from engine_build.demo_model.evaluation.evaluate import evaluate, held_out_requests
from engine_build.demo_model.latents import CANVAS_FRAMES, CHANNELS, FloatArray, latents_from_levels


class CorpusPlayer:
    """Answers every held-out prompt with the song that it was drawn from, so all figures are the ceiling's."""

    def __init__(self) -> None:
        self.songs = {request.prompt: request.song for request in held_out_requests()}

    def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
        rolls = [np.roll(render(self.songs[prompt], CANVAS_FRAMES), seed, axis=0) for prompt in prompts]
        return latents_from_levels(np.stack(rolls))

    def continue_from(self, prompts: Sequence[str], tails: FloatArray, seed: int) -> FloatArray:
        return self.play(prompts, seed=0)


class DeafPlayer:
    """Answers every prompt with one and the same song."""

    def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
        roll = render(draw_song(np.random.default_rng(1)), CANVAS_FRAMES)
        return latents_from_levels(np.stack([roll for _ in prompts]))

    def continue_from(self, prompts: Sequence[str], tails: FloatArray, seed: int) -> FloatArray:
        return self.play(prompts, seed)


@pytest.fixture(scope="module")
def perfect() -> dict[str, float]:
    return evaluate(CorpusPlayer())


@pytest.fixture(scope="module")
def deaf() -> dict[str, float]:
    return evaluate(DeafPlayer())


def test_the_corpus_itself_scores_one(perfect: dict[str, float]) -> None:
    for name in ("in_key", "layers_present", "layers_absent", "tempo"):
        assert perfect[name] > 0.98
        assert perfect[f"live_{name}"] == perfect[name]
        assert perfect[f"ceiling_{name}"] > 0.98
        assert perfect[f"continued_{name}"] > 0.9
    assert perfect["seeds_differ"] == 1.0


def test_a_player_that_ignores_prompts_scores_low(deaf: dict[str, float]) -> None:
    assert deaf["in_key"] < 0.8
    assert deaf["layers_present"] < 0.8 or deaf["layers_absent"] < 0.8
    assert deaf["tempo"] < 0.5
    assert deaf["seeds_differ"] == 0.0


def test_held_out_prompts_are_always_the_same() -> None:
    assert held_out_requests(5) == held_out_requests(5)
    assert len({request.prompt for request in held_out_requests()}) > 60


def test_silence_has_no_layer() -> None:
    class SilentPlayer(DeafPlayer):
        def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
            return latents_from_levels(np.zeros((len(prompts), CANVAS_FRAMES, CHANNELS)))

    figures = evaluate(SilentPlayer())
    assert figures["layers_present"] == 0.0
    assert figures["layers_absent"] == 1.0
