"""Text to condition tokens: masked tokens are dropped, too long texts refused, results cached, words understood."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_bundle, tiny_text_encoder
from helpers.graph_engine import GraphEngine
from helpers.lock_check import lock_checked
from helpers.paths import DEMO_BUNDLE
from numpy.typing import NDArray
from safetensors.numpy import save
from tokenizers import Tokenizer, models, pre_tokenizers

from engine_build.graphs.graph_writer import GraphWriter
from runtime.base.errors import ConfigError, EngineError, RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.devices.device import Level
from runtime.pipeline.structure import ContentCache
from runtime.pipeline.text_encoder import (
    MAX_NEAR_WORDS,
    MAX_VOCABULARY,
    TextEncoder,
    parse_condition,
    read_tokenizer,
)
from runtime.requests.prompt_words import PromptWords

SPEC = TinySpec(prefix="y_")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("bundle"), SPEC))


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(tiny_text_encoder(SPEC))


def padding_text_encoder() -> onnx.ModelProto:
    """A text_encoder that adds a masked-out token in front, as one with a prefix would."""
    graph = GraphWriter("text_encoder")
    tokens = graph.input("y_input_ids", ("batch", "tokens"), np.int64)
    graph.input("y_attention_mask", ("batch", "tokens"), np.int64)
    values = graph.op("Unsqueeze", graph.op("Cast", tokens, to=onnx.TensorProto.FLOAT), graph.constant([2], np.int64))
    values = graph.op("Pad", values, graph.constant([0, 1, 0, 0, 0, 0], np.int64))
    kept = graph.op("Cast", graph.op("Greater", values, graph.constant(-1.0)), to=onnx.TensorProto.FLOAT)
    mask = graph.op("Squeeze", kept, graph.constant([2], np.int64))
    mask = graph.op("Slice", mask, *(graph.constant([value], np.int64) for value in (1, 1_000, 1)))
    mask = graph.op("Pad", mask, graph.constant([0, 1, 0, 0], np.int64))
    graph.output("y_condition", values, ("batch", "kept", 1))
    graph.output("y_condition_mask", mask, ("batch", "kept"))
    return graph.model()


def test_a_text_becomes_condition_tokens(bundle: Bundle, engine: GraphEngine) -> None:
    text_encoder = TextEncoder(bundle, engine)
    tokens = text_encoder.encode("warm piano")
    assert tokens.shape == (text_encoder.num_tokens("warm piano"), SPEC.condition_width) == (11, 12)
    assert tokens.dtype == np.float32
    assert not np.array_equal(tokens, text_encoder.encode("cold drums"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda condition, mask: (condition[..., 0], mask), r"expected \[1, L, D\]"),
        (lambda condition, mask: (condition, mask[:, 1:]), r"expected \[1, L, D\]"),
        (lambda condition, mask: (condition, 0 * mask), "a mask without any token"),
    ],
)
def test_a_graph_that_returns_something_else_is_refused(changed: Any, says: str, bundle: Bundle) -> None:
    class Other(GraphEngine):
        def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
            names = ("y_condition", "y_condition_mask")
            found = super().run(feeds, level)
            return found | dict(zip(names, changed(*(found[name] for name in names)), strict=True))

    with pytest.raises(EngineError, match=says):
        TextEncoder(bundle, Other(tiny_text_encoder(SPEC))).encode("warm piano")


def test_the_empty_text_is_the_null_condition(bundle: Bundle, engine: GraphEngine) -> None:
    assert TextEncoder(bundle, engine).encode("").shape == (1, SPEC.condition_width)


def test_the_empty_text_is_the_bundle_null_condition(tmp_path: Path, engine: GraphEngine) -> None:
    folder = tiny_bundle(tmp_path, SPEC)
    path = folder / "bundle.toml"
    path.write_text(path.read_text().replace("[decoder]\n", '[decoder]\nnull_condition = "null.npy"\n'))
    null = np.full((1, SPEC.condition_width), 3.0, np.float32)
    np.save(folder / "null.npy", null)
    text_encoder = TextEncoder(load_bundle(folder), engine)
    assert np.array_equal(text_encoder.encode(""), null)
    assert engine.feeds == []
    assert not np.array_equal(text_encoder.encode(" "), null)


def test_texts_are_put_into_the_template(bundle: Bundle, engine: GraphEngine) -> None:
    assert bundle.text_encoder is not None
    spec = bundle.text_encoder.model_copy(update={"template": "<{prompt}> {seconds}s"})
    templated = TextEncoder(bundle.model_copy(update={"text_encoder": spec}), engine)
    plain = TextEncoder(bundle, engine)
    assert np.array_equal(templated.encode("a", seconds=20), plain.encode("<a> 20s"))
    assert np.array_equal(templated.encode("a"), plain.encode(f"<a> {int(bundle.canvas_s)}s"))
    assert not np.array_equal(templated.encode("a", seconds=20), templated.encode("a", seconds=30))
    assert templated.num_tokens("a", seconds=20) == plain.num_tokens("<a> 20s")


def test_masked_tokens_are_dropped(bundle: Bundle) -> None:
    tokens = TextEncoder(bundle, GraphEngine(padding_text_encoder())).encode("a")
    assert tokens.shape == (2, 1)
    assert tokens[0, 0] == 0 < tokens[1, 0]  # the start token and the letter; the one in front is gone


def test_a_too_long_text_is_refused(bundle: Bundle, engine: GraphEngine) -> None:
    with pytest.raises(RequestError) as caught:
        TextEncoder(bundle, engine).encode("x" * 40, field="negative_prompt")
    assert "41 tokens" in caught.value.what
    assert str(SPEC.max_tokens) in caught.value.what
    assert (caught.value.field, caught.value.fix) == ("negative_prompt", "shorten it by 9 tokens")
    assert engine.feeds == []


def test_cached_tokens_are_read_only(bundle: Bundle, engine: GraphEngine) -> None:
    with pytest.raises(ValueError, match="read-only"):
        TextEncoder(bundle, engine).encode("a")[0, 0] = 1.0


def test_threads_share_one_text_encoder(bundle: Bundle, engine: GraphEngine) -> None:
    text_encoder = TextEncoder(bundle, engine)
    texts = [f"text {index % 5}" for index in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(text_encoder.encode, texts))
    assert len(engine.feeds) == 5
    assert all(np.array_equal(tokens, text_encoder.encode(text)) for tokens, text in zip(found, texts, strict=True))


@pytest.mark.parametrize("content", [None, "{", "{}", "[]", "3", "[" * 100_000, '{"model": {}}'])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, engine: GraphEngine, content: str | None) -> None:
    folder = tiny_bundle(tmp_path, SPEC)
    if content is None:
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        TextEncoder(load_bundle(folder), engine)


def test_a_bundle_without_a_text_encoder_is_refused(tmp_path: Path, engine: GraphEngine) -> None:
    with pytest.raises(ConfigError, match="takes no text"):
        TextEncoder(load_bundle(tiny_bundle(tmp_path, text_encoder=False)), engine)


MEANS = TinySpec(meaning=True, words=("calm",))


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("meaning"), MEANS))


def test_a_text_means_names_by_kind(telling: Bundle) -> None:
    text_encoder = TextEncoder(telling, GraphEngine(tiny_text_encoder(MEANS)))
    found = text_encoder.meaning("fast jazz drums rock bass")
    assert list(found.items()) == [
        ("layers", ("drums", "electric bass")),
        ("genre", ("rock", "jazz")),
        ("tempo", ("150 bpm",)),
    ]
    assert text_encoder.meaning("calm") == text_encoder.meaning("") == {}
    assert text_encoder.drawn_kind == "genre"


def test_a_meaning_costs_no_execute_of_its_own(telling: Bundle) -> None:
    engine = GraphEngine(tiny_text_encoder(MEANS))
    text_encoder = TextEncoder(telling, engine)
    text_encoder.encode("fast drums")
    assert text_encoder.meaning("fast drums") == {"layers": ("drums",), "tempo": ("150 bpm",)}
    assert len(engine.feeds) == 1


def test_a_bundle_that_does_not_tell_runs_nothing_for_a_meaning(bundle: Bundle, engine: GraphEngine) -> None:
    text_encoder = TextEncoder(bundle, engine)
    assert (text_encoder.meaning("drums"), text_encoder.names, text_encoder.drawn_kind) == ({}, {}, "")
    assert engine.feeds == []


def test_a_too_long_text_has_no_meaning(telling: Bundle) -> None:
    with pytest.raises(RequestError, match="41 tokens") as caught:
        TextEncoder(telling, GraphEngine(tiny_text_encoder(MEANS))).meaning("drums " * 40, field="prompt.1.text")
    assert caught.value.field == "prompt.1.text"


@pytest.mark.parametrize(
    ("spec", "found"),
    [(TinySpec(words=MEANS.known_words), "no such output"), (MEANS, r"one of shape \['batch', 6\]")],
)
def test_an_engine_without_the_meanings_of_the_bundle_is_refused(tmp_path: Path, spec: TinySpec, found: str) -> None:
    folder = tiny_bundle(tmp_path, MEANS)
    (folder / "meaning.json").write_text('{"genre": ["rock"]}')
    with pytest.raises(ConfigError, match=rf"has 1 names, expected an output 'meaning' .* it has {found}"):
        TextEncoder(load_bundle(folder), GraphEngine(tiny_text_encoder(spec)))


@pytest.fixture(scope="module")
def demo() -> TextEncoder:
    return TextEncoder(load_bundle(DEMO_BUNDLE), GraphEngine(onnx.load(DEMO_BUNDLE / "text_encoder.onnx")))


@pytest.mark.parametrize(
    ("text", "understood", "unknown"),
    [
        ("fast drums, lo-fi, kazoo trio", ["fast drums", "lo-fi"], ["kazoo trio"]),
        ("calm kazoo in D minor", ["calm", "D minor"], ["kazoo"]),
        ("rock with kazoo and drums for you", ["rock", "drums"], ["kazoo", "you"]),
        ("yodel trio", [], ["yodel trio"]),
        ("Schnelles Schlagzeug in h-Moll", ["Schnelles Schlagzeug in h-Moll"], []),
        ("no kazoo please", [], ["no kazoo please"]),
        ("no drums or bass; C sharp at 97bpm", ["no drums or bass", "C sharp at 97bpm"], []),
        ("drums::x", ["drums"], ["x"]),
        ("“pads”!", ["pads"], []),
        ("707 pads 707", ["pads"], ["707"]),
        ("the and of", [], []),
        ("", [], []),
    ],
)
def test_the_words_that_are_understood(demo: TextEncoder, text: str, understood: list[str], unknown: list[str]) -> None:
    assert demo.words([text]) == PromptWords(tuple(understood), tuple(unknown))


def test_texts_with_equal_known_words_have_equal_tokens(demo: TextEncoder) -> None:
    assert np.array_equal(demo.encode("yodel trio"), demo.encode(""))
    assert np.array_equal(demo.encode("kazoo drums, und pads"), demo.encode("drums pads"))


def test_the_words_of_several_texts_are_those_of_each(demo: TextEncoder) -> None:
    assert demo.words(["kazoo pads", "bass", "pads"]) == PromptWords(("pads", "bass"), ("kazoo",))


@pytest.mark.parametrize(
    ("words", "text", "is_complete"),
    [
        (PromptWords(("drums", "fast"), ("lo-fi",)), "understood: drums, fast · not understood: lo-fi", False),
        (PromptWords(("drums",)), "understood: drums", True),
        (PromptWords(), "understood: nothing", False),
        (
            PromptWords(("drums",), ("violinn trio",), {"violinn": ("violin", "violins")}),
            "understood: drums · not understood: violinn trio · violinn: violin or violins?",
            False,
        ),
    ],
)
def test_words_as_text(words: PromptWords, text: str, is_complete: bool) -> None:
    assert (str(words), words.is_complete) == (text, is_complete)


def test_a_tokenizer_neither_cuts_nor_pads(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=2, pad_id=1)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found, _ = read_tokenizer(tmp_path / "tokenizer.json")
    assert [found.encode(text).ids for text in ("a", "b a b")] == [[0], [1, 0, 1]]


def test_a_tokenizer_without_an_unknown_token_understands_everything(bundle: Bundle, engine: GraphEngine) -> None:
    text_encoder = TextEncoder(bundle, engine)
    assert text_encoder.words(["jazz trio, schön 🎸"]) == PromptWords(("jazz trio", "schön 🎸"))
    assert text_encoder.vocabulary is None


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"[UNK]": 0, "pads": 1, "##s": 2}, unk_token="[UNK]"),
        models.Unigram([("<unk>", 0.0), ("pads", -1.0), ("s", -2.0)], unk_id=0),
    ],
)
def test_the_unknown_token_of_other_tokenizers_is_found(
    tmp_path: Path, engine: GraphEngine, model: models.Model
) -> None:
    folder = tiny_bundle(tmp_path, SPEC)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    text_encoder = TextEncoder(load_bundle(folder), engine)
    assert text_encoder.words(["日本 pads"]) == PromptWords(("pads",), ("日本",))
    assert text_encoder.vocabulary is None


def test_every_word_of_the_vocabulary_is_understood(demo: TextEncoder) -> None:
    assert demo.vocabulary is not None
    assert {"pads", "C#", "120 bpm", "no drums", "hip hop", "klavier"} <= set(demo.vocabulary)
    assert not any("[" in word for word in demo.vocabulary)
    assert all(demo.words([word]).is_complete for word in demo.vocabulary)


def test_a_condition_is_the_only_tensor_of_a_safetensors_file() -> None:
    tokens = np.ones((3, 4), np.float32)
    assert np.array_equal(parse_condition(save({"condition": tokens})), tokens)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a file",
        save({"condition": np.ones(3, np.float32)}),
        save({"condition": np.ones((3, 4), np.float64)}),
        save({"tokens": np.ones((3, 4), np.float32)}),
        save({f"t{index}": np.ones((1, 1), np.float32) for index in range(1000)}),
        save({"condition": np.ones((3, 4), np.float32)})[:-1],
    ],
)
def test_other_bytes_are_no_condition(data: bytes) -> None:
    with pytest.raises(RequestError, match=r"^condition: .*\n  fix: safetensors.numpy.save"):
        parse_condition(data)


def test_what_was_used_longest_ago_is_made_again() -> None:
    made: list[str] = []
    cache: ContentCache[str] = lock_checked(ContentCache, "_found")(2)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert cache.get(key, lambda key=key: made.append(key) or key.upper()) == key.upper()  # type: ignore[misc]
    assert made == ["a", "b", "c", "b"]


def test_an_error_is_not_kept() -> None:
    cache: ContentCache[int] = ContentCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 1) == 1


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("reggaeton", "reggae"),
        ("Violinn", "violin"),
        ("syntwave", "synthwave"),
        ("hiphopp", "hip hop"),
        ("kazoo", None),
        ("xyzzy", None),
        ("chant", None),
        ("dubstep", None),
        ("zz", None),
    ],
)
def test_near_words_are_offered_for_unknown_ones(demo: TextEncoder, word: str, near: str | None) -> None:
    found = demo.words([], f"calm {word} yodel, pads").near
    assert [*found] == ([word] if near else [])
    assert found.get(word, (None,))[0] == near
    assert demo.vocabulary is not None
    assert set(found.get(word, ())) <= set(demo.vocabulary)


def test_few_words_get_near_ones(demo: TextEncoder) -> None:
    assert len(demo.words([" ".join(f"violinn{index}" for index in range(40))]).near) == MAX_NEAR_WORDS


def test_a_tokenizer_without_a_closed_list_of_words_has_no_near_ones(tmp_path: Path, engine: GraphEngine) -> None:
    vocabulary = {"<unk>": 0, **{f"word{index}": index + 1 for index in range(MAX_VOCABULARY)}}
    folder = tiny_bundle(tmp_path, SPEC)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    assert TextEncoder(load_bundle(folder), engine).words(["wordd5"]) == PromptWords((), ("wordd5",))
