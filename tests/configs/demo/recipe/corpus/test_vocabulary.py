"""What a prompt says about a song is true of it."""

from dataclasses import replace

import numpy as np
import pytest

from configs.demo.recipe.corpus.songs import BPM_RANGE, Song, draw_song
from configs.demo.recipe.corpus.vocabulary import (
    ALWAYS_ID,
    BPM_CONCEPTS,
    FIRST_TEMPO_ID,
    MAX_CONDITION_TOKENS,
    METER_CONCEPTS,
    MOODS,
    NUM_TOKENS,
    SCALES,
    TOKEN_IDS,
    TOKENS,
    draw_concepts,
    fixed_columns,
    moods_of,
    tempo_interpolation,
    token_ids,
)
from configs.demo.recipe.instruments import LAYERS


def drawn(count: int) -> list[tuple[Song, tuple[str, ...]]]:
    rngs = [np.random.default_rng([4, index]) for index in range(count)]
    songs = [draw_song(rng) for rng in rngs]
    return [(song, draw_concepts(song, rng)) for song, rng in zip(songs, rngs, strict=True)]


def test_every_token_occurs_in_training_prompts() -> None:
    found = {number for _, names in drawn(2500) for number in token_ids(names)}
    missing = {TOKENS[number] for number in set(range(NUM_TOKENS)) - found - {ALWAYS_ID}}
    assert not missing - set(SCALES)
    assert len(missing) < 20, "120 scales, some of them rare"


def test_named_layers_are_all_layers_and_true() -> None:
    for song, names in drawn(400):
        sounding = {name.removeprefix("layer:") for name in names if name.startswith("layer:")}
        silent = {name.removeprefix("no:") for name in names if name.startswith("no:")}
        assert sounding in (set(), set(song.layers))
        assert not silent & song.layers
        players = [name.split(":") for name in names if name.split(":")[0] in LAYERS]
        assert all(layer in sounding and song.instruments[layer] == player for layer, player in players)
        if sounding:
            assert sounding | silent == set(LAYERS)
        else:
            assert not players
            assert not any(name.startswith("genre:") for name in names)


def test_what_a_genre_does_not_suggest_is_said() -> None:
    for song, names in drawn(600):
        if f"genre:{song.genre}" not in names:
            continue
        assert song.mode in song.rule.modes or f"mode:{song.mode}" in names
        for layer in song.layers:
            is_usual = song.instruments[layer] in song.rule.instruments[layer]
            assert is_usual or f"{layer}:{song.instruments[layer]}" in names


def test_other_layers_can_be_named_than_those_of_the_song() -> None:
    song, rng = draw_song(np.random.default_rng(1)), np.random.default_rng(2)
    found = [set(draw_concepts(song, rng, frozenset({"arp"}), names_instruments=False)) for _ in range(50)]
    assert sum("layer:arp" in names for names in found) > 35
    assert not any("layer:pad" in names or f"arp:{song.instruments['arp']}" in names for names in found)


def test_prompts_fit_the_condition() -> None:
    assert max(len(token_ids(names)) for _, names in drawn(600)) < MAX_CONDITION_TOKENS


def test_training_prompts_name_one_tempo_and_one_meter() -> None:
    for song, names in drawn(100):
        assert [name for name in names if name in BPM_CONCEPTS] == [f"bpm:{song.bpm}"]
        assert [name for name in names if name in METER_CONCEPTS] == [f"meter:{song.meter}"]


def test_a_key_and_a_mode_give_a_scale() -> None:
    assert token_ids(["key:d", "mode:dorian", "layer:pad"]) == sorted(
        TOKEN_IDS[name] for name in ("layer:pad", "key:d/mode:dorian", "key:d", "mode:dorian")
    )
    assert token_ids(["key:d", "layer:pad"]) == sorted((TOKEN_IDS["key:d"], TOKEN_IDS["layer:pad"]))


def test_fixed_columns_write_tempo_meter_and_scale() -> None:
    columns = fixed_columns()
    assert columns.shape == (NUM_TOKENS, 15)
    assert columns[TOKEN_IDS["bpm:90"], 0] == pytest.approx(90 / 60 / 25)
    assert columns[TOKEN_IDS["meter:3/4"], 1:3].tolist() == [np.float32(1 / 3), 0.0]
    assert columns[TOKEN_IDS["meter:6/8"], 1:3].tolist() == [0.5, 1.0]
    white_keys = [1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1]
    assert columns[TOKEN_IDS["key:d/mode:dorian"], 3:].tolist() == white_keys
    assert np.count_nonzero(columns) == 121 + 3 + 1 + 12 * 120
    assert not columns[ALWAYS_ID].any()


def test_tempos_lie_between_anchors() -> None:
    weights = tempo_interpolation()
    bpms = np.arange(BPM_RANGE[0], BPM_RANGE[1] + 1)
    assert weights.shape == (121, 9)
    assert np.allclose(weights @ np.arange(60, 181, 15), bpms)
    assert np.all((weights > 0).sum(axis=1) <= 2)
    assert TOKENS[FIRST_TEMPO_ID : FIRST_TEMPO_ID + 121] == BPM_CONCEPTS


def test_moods_follow_from_the_song() -> None:
    song = draw_song(np.random.default_rng(1))
    song = replace(song, mode="minor", density=0, loudness=0, articulation=1, bpm=80, genre="pop", meter="4/4")
    assert set(moods_of(song)) == {"mood:dark", "mood:sparse", "mood:soft", "mood:calm", "mood:sad"}
    loud = replace(song, mode="major", density=2, loudness=2, bpm=130, articulation=0, genre="funk")
    assert {"mood:bright", "mood:happy", "mood:energetic", "mood:playful", "mood:groovy"} <= set(moods_of(loud))


def test_every_mood_is_true_of_some_songs_and_false_of_others() -> None:
    songs = [draw_song(np.random.default_rng([5, index])) for index in range(300)]
    for mood, is_true in MOODS.items():
        assert 0.0 < np.mean([is_true(song) for song in songs]) < 0.6, mood
