"""What prompts mean, and what a seed draws for those that name nothing of a kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.factories import MEANING, TinySpec, tiny_bundle
from helpers.graph_engine import GraphEngine

from runtime.base.errors import RequestError
from runtime.config.bundle import load_bundle
from runtime.config.conditions import MeaningSpec, MoodSpec, PartSpec
from runtime.pipeline.meanings import PromptReader, Token, bound_moods, prompt_meaning
from runtime.pipeline.text_encoder import TextEncoder
from runtime.requests.options import parse_options
from runtime.requests.prompt_words import BoundMood, PromptMeaning, PromptWords

SPEC = TinySpec(meaning=True, words=("calm", "chant"))
GENRES = tuple(MEANING["genre"])


def encoder(folder: Path, spec: TinySpec = SPEC, drawn: bool = True) -> TextEncoder:
    path = tiny_bundle(folder, spec) / "bundle.toml"
    if not drawn:
        path.write_text(path.read_text().replace(', drawn = "genre"', ""))
    return TextEncoder(load_bundle(folder), GraphEngine(onnx.load(folder / "text_encoder.onnx")))


def reader(text_encoder: TextEncoder) -> PromptReader:
    bundle: Any = None  # read for the moods of a model with notes only
    return PromptReader(bundle, text_encoder)


@pytest.fixture(scope="module")
def text_encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return encoder(tmp_path_factory.mktemp("bundle"))


def test_what_a_prompt_names_is_played(text_encoder: TextEncoder) -> None:
    found = prompt_meaning(text_encoder, "calm jazz drums", parse_options({"prompt": ""}), 1)
    assert found == PromptMeaning("calm jazz drums", {"layers": ("drums",), "genre": ("jazz",)})
    assert (str(found), found.played_text) == ("drums; jazz", "calm jazz drums")


def test_a_prompt_that_names_no_genre_gets_one_of_the_seed(text_encoder: TextEncoder) -> None:
    options = parse_options({"prompt": "chant"})
    found = [prompt_meaning(text_encoder, text, options, 7) for text in ("chant", "kazoo", "fast drums")]
    (kind, genre) = found[0].drawn or ("", "")
    assert (kind, genre in GENRES) == ("genre", True)
    assert [each.drawn for each in found] == 3 * [(kind, genre)]
    assert [each.played_text for each in found] == [f"chant, {genre}", f"kazoo, {genre}", f"fast drums, {genre}"]
    assert found[2].names == {"layers": ("drums",), "genre": (genre,), "tempo": ("150 bpm",)}
    assert str(found[0]) == f"{genre} · genre drawn by the seed: {genre}"
    drawn = {prompt_meaning(text_encoder, "chant", options, seed).drawn for seed in range(40)}
    assert drawn == {("genre", name) for name in GENRES}


def test_a_typo_of_one_word_is_played_and_told(text_encoder: TextEncoder) -> None:
    options = parse_options({"prompt": "jazz with durms"})
    found = prompt_meaning(text_encoder, "jazz with durms", options, 1)
    assert found.names == {"layers": ("drums",), "genre": ("jazz",)}
    assert (found.played_text, str(found)) == ("jazz with drums", "drums; jazz · durms played as drums")
    assert reader(text_encoder).drawn(options, 1).prompt == "jazz with drums"
    assert text_encoder.words(["jazz with durms", "kazzoo"], "durms") == PromptWords(
        ("jazz", "drums"), ("with", "kazzoo", "durms"), {"durms": ("drums",)}
    )


def test_a_word_that_says_how_a_song_goes_is_no_typo(tmp_path: Path) -> None:
    found = encoder(tmp_path, replace(SPEC, words=("laute", "laterr")))
    assert found.corrections("immer lauter, drums later, lautee") == {"lautee": "laute"}


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_the_empty_prompt_gets_nothing(text_encoder: TextEncoder, text: str) -> None:
    options = parse_options({"prompt": text})
    assert prompt_meaning(text_encoder, text, options, 7).drawn is None
    assert reader(text_encoder).drawn(options, 7) == options


def test_every_prompt_of_several_gets_what_it_lacks(text_encoder: TextEncoder) -> None:
    options = parse_options({"prompt": [{"text": "chant", "weight": 0.5}, {"text": "rock"}, {"text": ""}], "seed": 3})
    made = reader(text_encoder).drawn(options, 7)
    assert [item.text.split(", ")[0] for item in made.prompt] == ["chant", "rock", ""]  # type: ignore[union-attr]
    assert [len(item.text.split(", ")) for item in made.prompt] == [2, 1, 1]  # type: ignore[union-attr]
    assert made.prompt[0].weight == 0.5  # type: ignore[union-attr]
    assert [meaning.text for meaning in reader(text_encoder).meanings(options, 7)] == ["chant", "rock", ""]
    assert options.prompt[0].text == "chant"  # type: ignore[union-attr]


def test_options_fill_the_template_that_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    text_encoder = encoder(folder, replace(SPEC, conditions=True))
    options = parse_options({"prompt": "rock", "instruction": "fast"})
    assert str(prompt_meaning(text_encoder, "rock", options, 1)) == "rock; 150 bpm"


def test_nothing_is_drawn_where_the_bundle_does_not_say_so(tmp_path: Path) -> None:
    text_encoder, options = encoder(tmp_path / "a", drawn=False), parse_options({"prompt": "chant"})
    assert reader(text_encoder).meanings(options, 7) == (PromptMeaning("chant", {}),)
    assert reader(text_encoder).drawn(options, 7) == options
    silent = encoder(tmp_path / "b", TinySpec(words=("chant",)))
    assert (reader(silent).meanings(options, 7), reader(silent).drawn(options, 7)) == ((), options)


def test_a_prompt_that_is_too_long_is_refused_by_its_field(text_encoder: TextEncoder) -> None:
    options = parse_options({"prompt": [{"text": "rock"}, {"text": "chant " * 40}]})
    with pytest.raises(RequestError, match="41 tokens") as caught:
        reader(text_encoder).meanings(options, 7)
    assert caught.value.field == "prompt.1.text"


PARTS = {"drums": "drums", "piano": "pad", "bass": "bass"}
MOODS = MeaningSpec(
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
    found, read = bound_moods(MOODS, text, tokens, played.split())
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
    found, _ = bound_moods(MOODS, "soft piano", [Token("soft", 0, 4), Token("piano", 5, 10)], ["piano", "bass"])
    assert found == (BoundMood("soft", "pad", "piano", -6.0),)
