"""Prompts name only properties that their song has, and the tokenizer understands them whole."""

import numpy as np

from configs.demo.recipe.corpus.prompts import Request, draw_request
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.tokenizer import UNKNOWN, build_tokenizer


def requests(count: int = 100) -> list[Request]:
    rngs = [np.random.default_rng(seed) for seed in range(count)]
    return [draw_request(draw_song(rng), rng) for rng in rngs]


def test_named_layers_and_instruments_are_the_song_s() -> None:
    for request in requests():
        assert set(request.layers_asked) <= request.song.layers
        assert not set(request.layers_excluded) & request.song.layers
        if request.layers_asked:
            assert {*request.layers_asked, *request.layers_excluded} == set(LAYERS)
        for layer, name in request.instruments_asked.items():
            assert layer in request.layers_asked
            assert request.song.instruments[layer] == name
            assert name in request.prompt


def test_named_tempos_and_keys_are_the_song_s() -> None:
    found = requests()
    for request in found:
        assert (f"at {request.song.bpm} bpm" in request.prompt) == request.names_tempo
        assert (f" {request.song.mode}" in request.prompt.partition(" in ")[2]) >= request.names_key
    assert 0.5 < np.mean([request.names_key for request in found]) < 1.0
    assert 0.5 < np.mean([request.names_tempo for request in found]) < 1.0
    assert 0.2 < np.mean([bool(request.instruments_asked) for request in found]) < 1.0


def test_every_word_is_understood() -> None:
    tokenizer = build_tokenizer()
    for request in requests():
        assert UNKNOWN not in tokenizer.encode(request.prompt).tokens, request.prompt


def test_a_seed_gives_one_prompt() -> None:
    first, second = (draw_request(draw_song(np.random.default_rng(1)), np.random.default_rng(2)) for _ in range(2))
    assert first == second
    assert len({request.prompt for request in requests(50)}) > 40
