"""The text encoder's graph: what a prompt means, as a set of tokens, independent of word order."""

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest

from configs.demo.recipe.corpus.genres import GENRES
from configs.demo.recipe.corpus.prompts import draw_request
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.corpus.vocabulary import (
    ALWAYS,
    ALWAYS_ID,
    BPM_CONCEPTS,
    MAX_CONDITION_TOKENS,
    NUM_TOKENS,
    PLAYERS,
    TOKENS,
    token_ids,
)
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.text_encoder import build_text_encoder, meaning_names
from configs.demo.recipe.tokenizer import build_tokenizer

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
TABLE = np.random.default_rng(0).standard_normal((NUM_TOKENS, 8)).astype(np.float32)
ROWS = {TABLE[index].tobytes(): name for index, name in enumerate(TOKENS)}
TOKENIZER = build_tokenizer()


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(build_text_encoder(TABLE).SerializeToString(), providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, ids: list[int], mask: list[int] | None = None) -> Arrays:
    mask = [1] * len(ids) if mask is None else mask
    shape = (1, len(ids))
    feed = {
        "input_ids": np.array(ids, np.int64).reshape(shape),
        "attention_mask": np.array(mask, np.int64).reshape(shape),
    }
    condition, keep, _ = session.run(None, feed)
    assert condition.shape == (1, MAX_CONDITION_TOKENS, TABLE.shape[1])
    return condition[0], keep[0]


def names(arrays: Arrays) -> set[str]:
    condition, keep = arrays
    return {ROWS[row.tobytes()] for row in condition[keep > 0]}


def meaning(session: ort.InferenceSession, text: str) -> set[str]:
    """The token names of a text but for its tempo and "always"."""
    found = names(run(session, TOKENIZER.encode(text).ids))
    assert ALWAYS in found
    return {name for name in found if name != ALWAYS and name not in BPM_CONCEPTS}


def sounding(session: ort.InferenceSession, text: str) -> set[str]:
    """The layers of a text with their instruments."""
    found = meaning(session, text)
    layers = {name.removeprefix("layer:") for name in found if name.startswith("layer:")}
    assert layers in (set(), set(LAYERS) - {name.removeprefix("no:") for name in found if name.startswith("no:")})
    players = {name for name in found if name in PLAYERS}
    assert {player.split(":")[0] for player in players} <= layers
    return players | (layers - {player.split(":")[0] for player in players})


def tempo(session: ort.InferenceSession, text: str) -> int:
    found = [name for name in names(run(session, TOKENIZER.encode(text).ids)) if name in BPM_CONCEPTS]
    assert len(found) == 1
    return int(found[0].removeprefix("bpm:"))


def test_word_order_does_not_change_a_bit(session: ort.InferenceSession) -> None:
    first = run(session, TOKENIZER.encode("pads strings slow minor drums bass in A").ids)
    second = run(session, TOKENIZER.encode("in A bass slow strings drums minor pads").ids)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_prompt_is_the_tokens_of_its_concepts(session: ort.InferenceSession) -> None:
    found = names(run(session, TOKENIZER.encode("dark minor pads and bass in A at 120 bpm, a verse").ids))
    expected = {"bpm:120", "meter:4/4", "mode:minor", "key:a", "key:a/mode:minor", "layer:pad", "layer:bass"}
    assert found == expected | {ALWAYS, "genre:pop", "no:arp", "no:melody", "no:drums", "mood:dark", "section:verse"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pads", "pad"),
        ("drums and bass", "drums bass"),
        ("calm piano", "pad:piano melody:piano"),
        ("violin", "melody:violin"),
        ("piano and bass", "pad:piano melody:piano bass"),
        ("piano and strings", "pad:strings melody:piano"),
        ("piano, strings and flute", "pad:strings arp:piano melody:flute"),
        ("piano chords, guitar arps, flute melody", "pad:piano arp:guitar melody:flute"),
        ("piano lead, chords and bass", "melody:piano pad bass"),
        ("bright synth arpeggio", "arp:synth"),
        ("double bass and brushes", "bass:upright_bass drums:brushes"),
        ("jazz", "pad bass melody drums"),
        ("jazz with trumpet", "pad bass melody:trumpet drums"),
        ("jazz piano", "pad:piano bass melody:piano drums"),
        ("jazz, bass and drums", "pad bass melody drums"),
        ("lofi hip hop beats to study", "pad bass melody drums"),
        ("techno with a big kick and a melody", "pad bass arp drums melody"),
        ("jazz, only bass and drums", "bass drums"),
        ("jazz, nur Klavier", "pad:piano melody:piano"),
        ("smooth jazz saxophone solo", "melody:saxophone"),
        ("only jazz", "pad bass melody drums"),
        ("drums only", "drums"),
        ("house with drums, no bass", "pad arp drums"),
        ("jazz without drums", "pad bass melody"),
        ("ambient flute", "pad arp melody:flute"),
        ("techno with 808", "pad bass arp drums:electronic_kit"),
        ("piano without melody", "pad:piano"),
        ("dark and slow", ""),
    ],
)
def test_layers_and_their_instruments(session: ort.InferenceSession, text: str, expected: str) -> None:
    assert sounding(session, text) == {name.replace("_", " ") for name in expected.split()}


def test_a_prompt_without_genre_layers_and_instruments_leaves_them_open(session: ort.InferenceSession) -> None:
    assert meaning(session, "no drums or bass") == {"no:drums", "no:bass", "meter:4/4"}
    assert meaning(session, "sad") == {"mood:sad", "meter:4/4"}


def said(session: ort.InferenceSession, text: str) -> dict[str, list[str]]:
    """What the graph says that a text means, by kind."""
    ids = np.array([TOKENIZER.encode(text).ids])
    (found,) = session.run(["meaning"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    columns = iter(found[0])
    kinds = {kind: [name for name in listed if next(columns)] for kind, listed in meaning_names().items()}
    assert next(columns, None) is None, "every column has a name"
    return {kind: listed for kind, listed in kinds.items() if listed}


def test_the_meaning_says_players_for_their_layers_and_scales_for_their_keys(session: ort.InferenceSession) -> None:
    assert said(session, "rock guitar at 104 bpm in E minor, no drums") == {
        "layers": ["bass", "guitar pads", "guitar melody"],
        "genre": ["rock"],
        "tempo": ["104 bpm"],
        "key": ["E minor"],
    }
    assert said(session, "a dark waltz in A at 90 bpm, chorus")["key"] == ["A"]
    assert said(session, "a dark waltz in A at 90 bpm, chorus")["meter"] == ["3/4"]
    assert said(session, "808 and brushes, Dorian")["layers"] == ["electronic kit"], "one kit plays"
    assert said(session, "") == said(session, "zxcv") == {}


def test_the_meaning_has_no_name_twice() -> None:
    for names_of_kind in meaning_names().values():
        assert len(set(names_of_kind)) == len(names_of_kind)
        assert all(names_of_kind)


@pytest.mark.parametrize(
    ("text", "meter"),
    [
        ("pads", "4/4"),
        ("waltz", "3/4"),
        ("a jazz waltz", "3/4"),
        ("lullaby", "6/8"),
        ("lullaby in 4/4", "4/4"),
        ("6/8", "6/8"),
    ],
)
def test_every_prompt_has_one_meter(session: ort.InferenceSession, text: str, meter: str) -> None:
    assert {name for name in meaning(session, text) if name.startswith("meter:")} == {f"meter:{meter}"}


def test_one_genre_counts(session: ort.InferenceSession) -> None:
    assert {name for name in meaning(session, "jazz waltz") if name.startswith("genre:")} == {"genre:jazz"}


def test_synonyms_and_repetitions_are_one_token(session: ort.InferenceSession) -> None:
    assert meaning(session, "piano") == meaning(session, "Klavier") == meaning(session, "grand piano piano pianos")


def test_a_tempo_between_two_numbers_is_between_their_tokens(session: ort.InferenceSession) -> None:
    arrays = [run(session, TOKENIZER.encode(f"pads {bpm} bpm").ids) for bpm in ("93.57", "93", "94")]
    found, low, high = (condition[keep > 0] for condition, keep in arrays)
    np.testing.assert_allclose(found, low + 0.57 * (high - low), rtol=1e-4, atol=1e-6)
    assert np.count_nonzero((found != low).any(axis=1)) == 1, "of all tokens, only that of the tempo differs"


def test_unknown_words_are_ignored(session: ort.InferenceSession) -> None:
    assert meaning(session, "pads") == meaning(session, "some wonderful pads please")
    assert names(run(session, [1, 10**6, -5, 0, 2])) == {ALWAYS}


def test_the_empty_prompt_is_the_null_condition(session: ort.InferenceSession) -> None:
    for ids in ([], TOKENIZER.encode("").ids):
        condition, keep = run(session, ids)
        assert keep.sum() == 1
        assert np.array_equal(condition[keep > 0], TABLE[[ALWAYS_ID]])


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("slow pads", 66, 80),
        ("very slow pads", 60, 66),
        ("fast pads", 128, 148),
        ("very fast pads", 156, 176),
        ("moderate bass", 92, 112),
        ("slow pads at 137 bpm", 137, 137),
        ("techno", *GENRES["techno"].bpm),
        ("slow techno", 112, 126),
        ("fast techno", 142, 156),
        ("a sad piano", 66, 80),
        ("fast and sad", 128, 148),
        ("pads", 84, 124),
    ],
)
def test_a_number_counts_more_than_a_word_and_a_word_more_than_a_mood(
    session: ort.InferenceSession, text: str, low: int, high: int
) -> None:
    assert low <= tempo(session, text) <= high


def test_every_genre_has_a_tempo_in_its_range_with_every_tempo_word(session: ort.InferenceSession) -> None:
    for genre in GENRES:
        name = genre.replace(" ", "-")
        low, high = GENRES[genre].bpm
        assert low <= tempo(session, name) <= high
        tempos = [tempo(session, f"{word} {name}") for word in ("very slow", "slow", "medium", "fast", "very fast")]
        assert tempos[0] <= tempos[2]
        assert tempos[1:] == sorted(tempos[1:])
        assert 60 <= min(tempos) < max(tempos) <= 180


def test_equal_words_have_equal_tempos_and_others_other_ones(session: ort.InferenceSession) -> None:
    tempos = [tempo(session, text) for text in ("pads", "bass", "in D", "dark", "pads", "flute")]
    assert tempos[0] == tempos[4]
    assert len(set(tempos)) > 3


def test_a_drawn_prompt_means_what_its_song_is(session: ort.InferenceSession) -> None:
    for index in range(60):
        rng = np.random.default_rng([6, index])
        request = draw_request(draw_song(rng), rng)
        found = meaning(session, request.prompt) if request.prompt != "music" else set()
        if request.layers_asked:
            assert {name for name in found if name.startswith("layer:")} == {f"layer:{n}" for n in request.layers_asked}
        assert {name for name in found if name in PLAYERS} == {f"{k}:{v}" for k, v in request.instruments_asked.items()}
        assert any(name.startswith("key:") for name in found) == request.names_key
        if request.names_tempo:
            assert tempo(session, request.prompt) == request.song.bpm


def test_too_many_tokens_keep_the_first(session: ort.InferenceSession) -> None:
    keys = " ".join(f"{letter} {mode}" for letter in "CDEFGB" for mode in ("major", "minor", "dorian", "lydian"))
    condition, keep = run(session, TOKENIZER.encode(f"piano chords and bass, techno, {keys} at 99 bpm").ids)
    assert keep.sum() == MAX_CONDITION_TOKENS
    kept = names((condition, keep))
    assert {ALWAYS, "bpm:99", "meter:4/4", "layer:pad", "pad:piano", "genre:techno"} <= kept
    assert [TOKENS.index(ROWS[row.tobytes()]) for row in condition] == sorted(TOKENS.index(name) for name in kept)


def test_token_ids_are_the_rows_of_the_graph(session: ort.InferenceSession) -> None:
    found = names(run(session, TOKENIZER.encode("piano chords in D dorian at 100 bpm").ids)) - {ALWAYS}
    expected = ["genre:pop", "bpm:100", "meter:4/4", "key:d", "mode:dorian", "layer:pad", "pad:piano"]
    absent = [f"no:{layer}" for layer in LAYERS if layer != "pad"]
    assert sorted(TOKENS.index(name) for name in found) == token_ids([*expected, *absent])


def test_padding_is_masked(session: ort.InferenceSession) -> None:
    ids = TOKENIZER.encode("pads and bass").ids
    assert names(run(session, [*ids, 5, 0, 7], [1] * len(ids) + [0, 0, 0])) == names(run(session, ids))


def test_rows_of_a_batch_do_not_mix(session: ort.InferenceSession) -> None:
    ids = np.array([TOKENIZER.encode("pads bass").ids, TOKENIZER.encode("drums fast").ids], np.int64)
    _, together, _ = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert all(np.array_equal(together[row], run(session, ids[row].tolist())[1]) for row in range(2))


@pytest.mark.parametrize("genre", GENRES)
def test_an_instrument_that_is_ruled_out_does_not_play_and_its_layer_sounds(
    session: ort.InferenceSession, genre: str
) -> None:
    rule, band = GENRES[genre], {name for name in meaning(session, genre) if name.startswith("layer:")}
    for name in ("guitar", "piano", "strings", "flute"):
        found = meaning(session, f"{genre}, no {name}")
        assert {each for each in found if each.startswith("layer:")} == band
        for layer in (each.removeprefix("layer:") for each in band):
            players = {player for player in PLAYERS if player.startswith(f"{layer}:")} & found
            assert f"{layer}:{name}" not in players
            assert bool(players) == (name in rule.instruments[layer])
