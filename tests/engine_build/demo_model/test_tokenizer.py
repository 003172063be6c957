"""Free text: keys, tempos, negations, the article, unknown words."""

import pytest
from tokenizers import Tokenizer

from engine_build.demo_model.tokenizer import MAX_TOKENS, UNKNOWN, build_tokenizer, word_concepts


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer().to_str())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slow minor pads with bass and drums in A", "slow minor pads bass drums keya"),
        ("A slow song in a minor key", "slow minor"),
        ("a beat", "beat"),
        ("in a minor", "keya minor"),
        ("in A", "keya"),
        ("A", "keya"),
        ("bass in a with drums", "bass keya drums"),
        ("pads in a big hall", "pads"),
        ("A melody in d", "melody keyd"),
        ("F#m at 120 bpm", "keyfs minor bpm120"),
        ("Cm7", "keyc minor"),
        ("Cmaj7", "keyc major"),
        ("Abm", "keygs minor"),
        ("C sharp major", "keycs major"),
        ("c# Minor", "keycs minor"),
        ("Db", "keycs"),
        ("B♭ dorian", "keyas dorian"),
        ("E-flat", "keyds"),
        ("97bpm arps", "bpm100 arps"),
        ("64 beats per minute", "bpm70"),
        ("180 BPM", "bpm132"),
        ("808 from the 90s", ""),
        ("no drums or bass", "nodrums nobass"),
        ("without any pads", "nopad"),
        ("up-tempo hi-hats", "uptempo hihats"),
        ("ünknown wörds and pads!", "pads"),
        ("", ""),
        ("   ?!", ""),
    ],
)
def test_text_becomes_words(tokenizer: Tokenizer, text: str, words: str) -> None:
    found = tokenizer.encode(text).tokens
    assert [token for token in found if token != UNKNOWN] == ["[START]", *words.split()]


def test_every_bpm_maps_to_the_nearest_tempo(tokenizer: Tokenizer) -> None:
    tempos = [int(word.removeprefix("bpm")) for word in word_concepts() if word.startswith("bpm")]
    for bpm in range(40, 221):
        found = int(tokenizer.encode(f"{bpm} bpm").tokens[1].removeprefix("bpm"))
        assert abs(found - bpm) == min(abs(tempo - bpm) for tempo in tempos)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the song with a beat", "beat"),
        ("lorem, ipsum in the pads", "[UNK] pads"),
        ("hip-hop drums_and jazz", "[UNK] drums [UNK]"),
        ("pads! 808", "pads [UNK]"),
        ("warme Flächen in Moll", "[UNK]"),
        ("日本語", "[UNK]"),
        ("no jazz", "[UNK]"),
    ],
)
def test_a_run_of_unknown_words_is_one_unknown_token(tokenizer: Tokenizer, text: str, words: str) -> None:
    assert tokenizer.encode(text).tokens == ["[START]", *words.split()]


def test_a_long_text_of_unknown_words_fits(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("lorem ipsum " * 50 + "pads").tokens == ["[START]", UNKNOWN, "pads"]
    assert len(tokenizer.encode("lorem pads " * 31).tokens) == 63 < MAX_TOKENS


def test_vocabulary_words_are_decoded_as_a_user_writes_them(tokenizer: Tokenizer) -> None:
    ids = tokenizer.get_vocab()
    found = [tokenizer.decode([ids[word]]) for word in ("keyc", "keycs", "bpm120", "nodrums", "pads")]
    assert found == ["C", "C#", "120 bpm", "no drums", "pads"]
    for text in found:
        assert UNKNOWN not in tokenizer.encode(text).tokens


def test_a_long_text_is_cut(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("pads bass " * 50).ids) == MAX_TOKENS
