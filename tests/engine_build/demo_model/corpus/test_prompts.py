"""Prompts name only properties that their song has."""

from __future__ import annotations

import numpy as np

from engine_build.demo_model.corpus.prompts import Request, draw_request
from engine_build.demo_model.corpus.songs import LAYERS, draw_song


def requests(count: int = 200) -> list[Request]:
    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        found.append(draw_request(draw_song(rng), rng))
    return found


def test_named_layers_are_the_song_s() -> None:
    for request in requests():
        assert set(request.layers_asked) <= request.song.layers
        assert not set(request.layers_excluded) & request.song.layers
        if request.layers_asked:
            assert {*request.layers_asked, *request.layers_excluded} == set(LAYERS)


def test_named_tempos_and_keys_are_the_song_s() -> None:
    found = requests()
    for request in found:
        if "bpm" in request.prompt:
            assert f"at {request.song.bpm} bpm" in request.prompt
            assert request.names_tempo
        if request.names_key:
            assert request.prompt.split(" at ")[0].endswith(request.song.mode)
    assert 0.5 < np.mean([request.names_key for request in found]) < 1.0
    assert 0.5 < np.mean([request.names_tempo for request in found]) < 1.0


def test_a_seed_gives_one_prompt() -> None:
    first, second = (draw_request(draw_song(np.random.default_rng(1)), np.random.default_rng(2)) for _ in range(2))
    assert first == second
    assert len({request.prompt for request in requests(50)}) > 40
