"""What prompts mean, and what a seed draws for those that name nothing of a kind."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from helpers.factories import MEANING, TinySpec, tiny_bundle
from helpers.graph_engine import GraphEngine

from runtime.base.errors import RequestError
from runtime.config.bundle import load_bundle
from runtime.pipeline.meanings import prompt_meaning, prompt_meanings, with_drawn
from runtime.pipeline.text_encoder import TextEncoder
from runtime.requests.options import parse_options
from runtime.requests.prompt_words import PromptMeaning, PromptWords

SPEC = TinySpec(meaning=True, words=("calm", "chant"))
GENRES = tuple(MEANING["genre"])


def encoder(folder: Path, spec: TinySpec = SPEC, drawn: bool = True) -> TextEncoder:
    path = tiny_bundle(folder, spec) / "bundle.toml"
    if not drawn:
        path.write_text(path.read_text().replace(', drawn = "genre"', ""))
    return TextEncoder(load_bundle(folder), GraphEngine(onnx.load(folder / "text_encoder.onnx")))


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
    assert with_drawn(text_encoder, options, 1).prompt == "jazz with drums"
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
    assert with_drawn(text_encoder, options, 7) == options


def test_every_prompt_of_several_gets_what_it_lacks(text_encoder: TextEncoder) -> None:
    options = parse_options({"prompt": [{"text": "chant", "weight": 0.5}, {"text": "rock"}, {"text": ""}], "seed": 3})
    made = with_drawn(text_encoder, options, 7)
    assert [item.text.split(", ")[0] for item in made.prompt] == ["chant", "rock", ""]  # type: ignore[union-attr]
    assert [len(item.text.split(", ")) for item in made.prompt] == [2, 1, 1]  # type: ignore[union-attr]
    assert made.prompt[0].weight == 0.5  # type: ignore[union-attr]
    assert [meaning.text for meaning in prompt_meanings(text_encoder, options, 7)] == ["chant", "rock", ""]
    assert options.prompt[0].text == "chant"  # type: ignore[union-attr]


def test_options_fill_the_template_that_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    text_encoder = encoder(folder, replace(SPEC, conditions=True))
    options = parse_options({"prompt": "rock", "instruction": "fast"})
    assert str(prompt_meaning(text_encoder, "rock", options, 1)) == "rock; 150 bpm"


def test_nothing_is_drawn_where_the_bundle_does_not_say_so(tmp_path: Path) -> None:
    text_encoder, options = encoder(tmp_path / "a", drawn=False), parse_options({"prompt": "chant"})
    assert prompt_meanings(text_encoder, options, 7) == (PromptMeaning("chant", {}),)
    assert with_drawn(text_encoder, options, 7) == options
    silent = encoder(tmp_path / "b", TinySpec(words=("chant",)))
    assert (prompt_meanings(silent, options, 7), with_drawn(silent, options, 7)) == ((), options)


def test_a_prompt_that_is_too_long_is_refused_by_its_field(text_encoder: TextEncoder) -> None:
    options = parse_options({"prompt": [{"text": "rock"}, {"text": "chant " * 40}]})
    with pytest.raises(RequestError, match="41 tokens") as caught:
        prompt_meanings(text_encoder, options, 7)
    assert caught.value.field == "prompt.1.text"
