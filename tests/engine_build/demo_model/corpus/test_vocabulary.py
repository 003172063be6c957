"""What a prompt says about a song is true of it."""

from dataclasses import replace

import numpy as np

from engine_build.demo_model.corpus.prompts import draw_request
from engine_build.demo_model.corpus.songs import LAYERS, TEMPOS_BPM, draw_song
from engine_build.demo_model.corpus.vocabulary import (
    ALWAYS_ID,
    CONCEPT_IDS,
    CONCEPTS,
    FIRST_SCALE_ID,
    NUM_TOKENS,
    TEMPO_WORDS_BPM,
    WORD_CONCEPTS,
    draw_concepts,
    fixed_columns,
    moods_of,
    token_ids,
)
from engine_build.demo_model.tokenizer import WORDS, build_tokenizer, word_concepts


def drawn(count: int) -> list[tuple[str, ...]]:
    rngs = [np.random.default_rng([4, index]) for index in range(count)]
    return [draw_concepts(draw_song(rng), rng) for rng in rngs]


def test_every_concept_occurs_in_training_prompts() -> None:
    assert {concept for concepts in drawn(1500) for concept in concepts} == set(CONCEPTS)


def test_named_layers_are_exactly_the_songs_layers() -> None:
    for index in range(200):
        rng = np.random.default_rng([4, index])
        song = draw_song(rng)
        concepts = draw_concepts(song, rng)
        named = {concept.removeprefix("layer:") for concept in concepts if concept.startswith("layer:")}
        excluded = {concept.removeprefix("no:") for concept in concepts if concept.startswith("no:")}
        assert named in (set(), set(song.layers))
        assert not excluded & song.layers


def test_moods_follow_from_the_song() -> None:
    song = replace(draw_song(np.random.default_rng(1)), mode="minor", density=0, loudness=0)
    assert moods_of(song) == ("mood:dark", "mood:sparse", "mood:soft", "mood:calm")


def test_training_prompts_name_one_tempo() -> None:
    assert all(sum(concept.startswith("bpm:") for concept in concepts) == 1 for concepts in drawn(100))


def test_a_key_and_a_mode_give_a_scale() -> None:
    tokens = token_ids(["key:d", "mode:dorian", "layer:pad"])
    assert tokens[:-1] == sorted(CONCEPT_IDS[concept] for concept in ("key:d", "mode:dorian", "layer:pad"))
    assert FIRST_SCALE_ID <= tokens[-1] < ALWAYS_ID
    white_keys = [1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1]
    assert fixed_columns()[tokens[-1], len(TEMPOS_BPM) :].tolist() == white_keys
    assert token_ids(["key:d", "layer:pad"]) == [CONCEPT_IDS["key:d"], CONCEPT_IDS["layer:pad"]]


def test_fixed_columns_name_the_tempo() -> None:
    columns = fixed_columns()
    assert columns.shape[0] == NUM_TOKENS
    assert columns[:, : len(TEMPOS_BPM)].sum() == len(TEMPOS_BPM)
    assert columns[CONCEPT_IDS["bpm:90"], TEMPOS_BPM.index(90)] == 1.0
    assert not columns[ALWAYS_ID].any()


def test_tempo_words_mean_trained_tempos() -> None:
    assert set(TEMPO_WORDS_BPM.values()) <= set(TEMPOS_BPM)


def test_every_concept_has_a_word_and_every_word_one_concept() -> None:
    assert set(word_concepts().values()) == set(WORD_CONCEPTS)
    words = [word for listed in WORDS.values() for word in listed.split()]
    assert len(words) == len(set(words))


def test_a_drawn_prompt_has_the_concepts_of_its_song() -> None:
    tokenizer, concepts_of = build_tokenizer(), word_concepts()
    for index in range(100):
        rng = np.random.default_rng([6, index])
        request = draw_request(draw_song(rng), rng)
        concepts = {concepts_of[word] for word in tokenizer.encode(request.prompt).tokens[1:]}
        assert {f"layer:{layer}" for layer in request.layers_asked} == {c for c in concepts if c.startswith("layer:")}
        assert any(c.startswith("key:") for c in concepts) == request.names_key
        assert any(c.startswith(("bpm:", "tempo:")) for c in concepts) == request.names_tempo
        assert set(request.layers_asked) | set(request.layers_excluded) in (set(), set(LAYERS))
