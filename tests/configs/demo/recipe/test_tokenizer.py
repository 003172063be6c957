"""Free text: keys, tempos, phrases, negations, the article, unknown words, four languages, options, long lists."""

import json

import pytest
from helpers.paths import ROOT, TESTS
from helpers.tempos import NO_TEMPOS, TEMPO_FORMS
from helpers.word_lists import OPTIONS, PUMPED, is_linear, word_list
from tokenizers import Tokenizer

from configs.demo.recipe.planner.prompt import build_prompt_tokenizer
from configs.demo.recipe.tokenizer import MAX_TOKENS, TEMPLATE, UNKNOWN, build_tokenizer, vocabulary
from runtime.config.conditions import filled
from runtime.config.words import written_tempo
from runtime.pipeline.text_encoder import MAX_VOCABULARY


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer().to_str())


@pytest.fixture(scope="module")
def both(tokenizer: Tokenizer) -> tuple[Tokenizer, Tokenizer]:
    """The text encoder's and the planner's, whose rules begin with the same ones."""
    return tokenizer, Tokenizer.from_str(build_prompt_tokenizer().to_str())


def test_the_bundles_file_is_written_again_byte_for_byte() -> None:
    assert build_tokenizer().to_str() == (ROOT / "configs/demo/tokenizer.json").read_text(encoding="utf-8")


def words(tokenizer: Tokenizer, text: str) -> str:
    tokens = tokenizer.encode(text).tokens
    assert tokens[0] == "[START]"
    return " ".join(tokens[1:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slow minor pads with bass and drums in A", "slow minor pads bass drums keya"),
        ("A slow song in a minor key", "slow minor"),
        ("a beat", "beat"),
        ("in a minor", "keya minor"),
        ("in A", "keya"),
        ("A", "keya"),
        ("bass in a with drums", "bass keya drums"),
        ("A melody in d", "melody keyd"),
        ("F#m at 120 bpm", "keyfs minor 120"),
        ("Cm7", "keyc minor [UNK]"),
        ("Cmaj7", "keyc major [UNK]"),
        ("Abm", "keygs minor"),
        ("C sharp major", "keycs major"),
        ("c# Minor", "keycs minor"),
        ("Db", "keycs"),
        ("B♭ dorian", "keyas dorian"),
        ("E-flat", "keyds"),
        ("A harmonic minor", "keya harmonicminor"),
        ("D blues", "keyd bluesscale"),
        ("a slow blues in E", "slow blues keye"),
        ("97bpm arps", "97 arps"),
        ("64 beats per minute", "64"),
        ("at 92, tempo 104", "92 [UNK]"),
        ("120.5 bpm", "120 point5"),
        ("93.57-bpm", "93 point5 point07"),
        ("93.07 beats per minute", "93 point07"),
        ("93.50bpm", "93 point5"),
        ("93.999 bpm", "93 point9 point09"),
        ("59.5 bpm", "60"),
        ("180.5 bpm", "180"),
        ("179.9 bpm", "179 point9"),
        ("at 93.5", "93 point5"),
        ("top 40, opus 111, 88-key piano", "[UNK] piano"),
        ("240 BPM", "180"),
        ("45 bpm", "60"),
        ("pads from the 90s", "pads [UNK]"),
        ("a waltz in 3/4", "waltz waltztime"),
        ("12 / 8 shuffle", "sixeight shuffle"),
        ("7/8", "[UNK]"),
        ("no drums or bass", "nodrums nobass"),
        ("without any pads", "nopad"),
        ("no double bass, without 808", "nobass nodrums"),
        ("up-tempo hi-hats", "uptempo hihats"),
        ("hip-hop, lo fi drums, drum & bass, R&B", "hiphop lofidrums drumandbass randb"),
        ("very slow electric piano", "veryslow electricpiano"),
        ("piano chords and guitar", "pianopad guitar"),
        ("", ""),
        ("   ?!", ""),
    ],
)
def test_text_becomes_words(tokenizer: Tokenizer, text: str, expected: str) -> None:
    assert words(tokenizer, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("langsamer Walzer in h-Moll mit Klavier, ohne Schlagzeug", "langsamer walzer keyb moll klavier nodrums"),
        ("Gitarre in B-Dur", "gitarre keyas dur"),
        ("b-Moll", "keyas moll"),
        ("Es-Dur, As-Dur, fis-Moll", "keyds dur keygs dur keyfs moll"),
        ("B minor", "keyb minor"),
        ("as quiet as it is", "quiet"),
        ("des cordes et une flûte", "cordes flute"),
        ("schnell, traurig und fröhlich", "schnell traurig frohlich"),
        ("piano triste en la mineur sans batterie", "piano triste keya mineur nodrums"),
        ("si bémol majeur", "keyas majeur"),
        ("la guitare", "guitare"),
        ("fa sostenido menor, guitarra rápida, sin batería", "keyfs menor guitarra rapida nodrums"),
        ("E-Piano und Kontrabass", "epiano kontrabass"),
        ("d'accordéon", "accordeon"),
    ],
)
def test_german_french_and_spanish(tokenizer: Tokenizer, text: str, expected: str) -> None:
    assert words(tokenizer, text) == expected


@pytest.mark.parametrize(
    ("prompt", "options", "expected"),
    [
        ("pads", {}, "pads"),
        ("", {}, ""),
        ("pads", {"bpm": 130}, "pads 130"),
        ("pads at 90 bpm", {"bpm": 130}, "pads 130"),
        ("808 and 909 at 90", {"bpm": 300}, "808 909 180"),
        ("pads", {"bpm": 30}, "pads 60"),
        ("pads at 140.5 bpm", {"bpm": 93.57, "key": "D major"}, "pads 93 point5 point07 keyd major"),
        ("pads", {"bpm": 120.0}, "pads 120"),
        ("pads in A minor, bright", {"key": "F# major"}, "pads bright keyfs major"),
        ("pads", {"key": "A minor"}, "pads keya minor"),
        ("pads", {"key": "B minor"}, "pads keyb minor"),
        ("pads", {"key": "Bb major"}, "pads keyas major"),
        ("a waltz in 3/4", {"time_signature": 6}, "waltz sixeight"),
        ("pads in 3/4", {"bpm": 100}, "pads waltztime 100"),
        ("bass\nin C", {"bpm": 61, "key": "D major", "time_signature": 3}, "bass 61 keyd major threefour"),
    ],
)
def test_options_replace_what_the_prompt_says(
    tokenizer: Tokenizer, prompt: str, options: dict[str, object], expected: str
) -> None:
    assert words(tokenizer, filled(TEMPLATE, {"prompt": prompt, **options})) == expected


@pytest.mark.parametrize("text", [*TEMPO_FORMS, *NO_TEMPOS])
def test_the_tempo_that_the_runtime_reads_is_the_one_that_the_tokens_say(tokenizer: Tokenizer, text: str) -> None:
    numbers = [word.replace("point", ".") for word in words(tokenizer, text).split() if word not in ("808", "909")]
    said = sum(float(number) for number in numbers if number.lstrip(".").isdecimal())
    read = written_tempo(text)
    assert said == (0.0 if read is None else min(max(read, 60.0), 180.0))


def test_every_tempo_is_a_word(tokenizer: Tokenizer) -> None:
    for bpm in range(30, 301):
        assert words(tokenizer, f"{bpm} bpm") == str(min(max(bpm, 60), 180))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the song with a beat", "beat"),
        ("lorem, ipsum in the pads", "[UNK] pads"),
        ("yodel drums_and kazoo", "[UNK] drums [UNK]"),
        ("pads! 1999", "pads [UNK]"),
        ("日本語", "[UNK]"),
        ("no jazz", "[UNK]"),
        ("pads without piano", "pads nopiano"),
        ("but no guitar or drums", "noguitar nodrums"),
        ("sin piano ni batería", "nopiano nodrums"),
        ("keine Trompete, w/o strings", "notrumpet nostrings"),
        ("drumless", "nodrums"),
    ],
)
def test_a_run_of_unknown_words_is_one_unknown_token(tokenizer: Tokenizer, text: str, expected: str) -> None:
    assert words(tokenizer, text) == expected


def test_a_long_text_of_unknown_words_fits(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "lorem ipsum " * 50 + "pads") == f"{UNKNOWN} pads"
    assert len(tokenizer.encode("lorem pads " * 30).tokens) == 61 < MAX_TOKENS


def test_vocabulary_words_are_decoded_as_a_user_writes_them(tokenizer: Tokenizer) -> None:
    ids = tokenizer.get_vocab()
    internal = ("keyc", "keycs", "90", "120", "nodrums", "pads", "hiphop", "keyboard", "pianopad", "drumandbass")
    found = [tokenizer.decode([ids[word]]) for word in internal]
    assert found == [
        "C",
        "C#",
        "90 bpm",
        "120 bpm",
        "no drums",
        "pads",
        "hip hop",
        "keyboard",
        "piano pad",
        "drum & bass",
    ]


def test_every_word_is_understood_as_it_is_decoded(tokenizer: Tokenizer) -> None:
    assert len(vocabulary()) <= MAX_VOCABULARY
    for word, index in tokenizer.get_vocab().items():
        if not word.startswith(("[", "point")):  # a fraction is one of a number
            assert words(tokenizer, tokenizer.decode([index])) == word


def test_a_long_text_is_cut(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("pads bass " * 50).ids) == MAX_TOKENS


def test_prompts_as_people_type_them_have_the_tokens_that_the_models_were_trained_with(
    both: tuple[Tokenizer, Tokenizer],
) -> None:
    for prompt, expected in json.loads((TESTS / "data/prompt_tokens.json").read_text(encoding="utf-8")).items():
        assert [" ".join(each.encode(prompt).tokens) for each in both] == expected, prompt


@pytest.mark.parametrize("options", OPTIONS)
def test_lists_of_anything_are_read_in_linear_time(both: tuple[Tokenizer, Tokenizer], options: str) -> None:
    """A rule that backtracks takes four times as long for twice the text, then gives up in a panic."""
    for unit in PUMPED:
        texts = [(unit * size)[:size] + options for size in (1000, 2000)]
        for each in both:
            assert is_linear(each.encode, *texts), unit


@pytest.mark.slow
def test_hundreds_of_lists_are_read_in_linear_time(both: tuple[Tokenizer, Tokenizer]) -> None:
    for seed in range(600):
        text, options = word_list(seed, 4000), OPTIONS[seed % 2]
        for each in both:
            assert is_linear(each.encode, text[:2000] + options, text + options), text
