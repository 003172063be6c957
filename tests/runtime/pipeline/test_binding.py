"""Moods that are said of single parts, in the word order of several languages."""

import pytest

from runtime.config.conditions import MeaningSpec, MoodSpec, PartSpec
from runtime.pipeline.binding import Token, bound_moods
from runtime.requests.prompt_words import BoundMood

PARTS = {"drums": "drums", "piano": "pad", "bass": "bass"}
SPEC = MeaningSpec(
    output="meaning",
    names="meaning.json",
    moods={
        "soft": MoodSpec(words=("soft", "suave"), level_db=-6.0),
        "loud": MoodSpec(words=("loud", "fuerte"), level_db=5.0, is_read=True),
        "dark": MoodSpec(words=("dark",), level_db=-3.0, against=("bright",)),
        "bright": MoodSpec(words=("bright",), level_db=3.0, against=("dark",)),
    },
    parts=tuple(PartSpec(words=(word,), names={layer: (word,)}) for word, layer in PARTS.items()),
)
KNOWN = {*PARTS, "soft", "suave", "loud", "fuerte", "dark", "bright", "techno"}


def bound(text: str, played: str = "drums piano bass") -> tuple[list[str], str]:
    """Moods with their parts, and what the model reads. Other words than KNOWN are no tokens."""
    tokens, place = [], 0
    for word in text.replace(",", " ").split():
        place = text.index(word, place)
        if word.lower() in KNOWN:
            tokens.append(Token(word.lower(), place, place + len(word)))
        place += len(word)
    found, read = bound_moods(SPEC, text, tokens, played.split())
    return [f"{each.mood} {each.name}" for each in found], read


@pytest.mark.parametrize(
    ("text", "moods", "read"),
    [
        ("loud drums and soft piano", ["loud drums", "soft piano"], "loud drums and piano"),
        ("drums loud, piano soft", ["loud drums", "soft piano"], "drums loud, piano"),
        ("drums fuerte y piano suave", ["loud drums", "soft piano"], "drums fuerte y piano"),
        ("soft drums loud piano", ["soft drums", "loud piano"], "drums loud piano"),
        ("techno with a really soft old piano", ["soft piano"], "techno with a really old piano"),
        ("soft loud piano bass", ["soft piano", "soft bass", "loud piano", "loud bass"], "loud piano bass"),
        ("bright drums over a dark bass", ["bright drums", "dark bass"], "drums over a bass"),
        ("bright drums and bass", [], "bright drums and bass"),
        ("soft techno piano", [], "soft techno piano"),
        ("soft, piano", [], "soft, piano"),
        ("soft", [], "soft"),
        ("", [], ""),
    ],
)
def test_a_mood_binds_to_the_parts_beside_it(text: str, moods: list[str], read: str) -> None:
    assert bound(text) == (moods, read)


def test_only_parts_that_play_beside_others_have_moods_of_their_own() -> None:
    assert bound("soft piano and drums", "drums") == ([], "soft piano and drums")
    assert bound("soft piano", "piano") == ([], "soft piano")
    assert bound("soft piano", "piano drums") == (["soft piano"], "piano")


def test_a_mood_says_what_it_does() -> None:
    found, _ = bound_moods(SPEC, "soft piano", [Token("soft", 0, 4), Token("piano", 5, 10)], ["piano", "bass"])
    assert found == (BoundMood("soft", "pad", "piano", -6.0),)
