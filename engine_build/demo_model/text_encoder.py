"""The text_encoder as an ONNX graph: word ids -> a set of tokens in which word order cannot matter."""

from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from engine_build.demo_model.corpus.songs import TEMPOS_BPM
from engine_build.demo_model.corpus.vocabulary import (
    BPM_CONCEPTS,
    CONCEPT_IDS,
    CONCEPTS,
    KEY_CONCEPTS,
    MODE_CONCEPTS,
    NUM_TOKENS,
    TEMPO_WORDS_BPM,
    WORD_CONCEPTS,
)
from engine_build.demo_model.graphs import GraphWriter
from engine_build.demo_model.latents import FloatArray
from engine_build.demo_model.tokenizer import vocabulary, word_to_concept_ids

_NOTHING: Final = len(WORD_CONCEPTS)


def build_text_encoder(token_table: FloatArray) -> onnx.ModelProto:
    """Graph `input_ids [B, L], attention_mask [B, L]` int64 -> `condition [B, N, D], condition_mask [B, N]` f32.

    The condition is the whole table for every row; the mask says which of its N tokens the words name. So every order
    of the words gives the same bits, and words that mean nothing or are there twice change none. The last token is
    always kept: alone it is the empty prompt.

    Args:
        token_table: f32 `[N, D]`, see `vocabulary.NUM_TOKENS`.
    """
    writer = GraphWriter("text_encoder")
    input_ids = writer.input("input_ids", TensorProto.INT64, ("batch", "tokens"))
    attention_mask = writer.input("attention_mask", TensorProto.INT64, ("batch", "tokens"))
    named = _named(writer, _concept_ids(writer, input_ids, attention_mask))
    mask = _token_mask(writer, named)
    table = writer.constant(token_table[None], np.float32)
    shape = writer.node("Concat", writer.node("Shape", mask), writer.constant(token_table.shape[1:], np.int64), axis=0)
    writer.output("condition", writer.node("Expand", table, shape), TensorProto.FLOAT, ("batch", *token_table.shape))
    writer.output("condition_mask", mask, TensorProto.FLOAT, ("batch", NUM_TOKENS))
    return writer.model()


def _concept_ids(writer: GraphWriter, input_ids: str, attention_mask: str) -> str:
    """Concept per word, int64 `[B, L]`; `_NOTHING` for padding, special words and ids outside the vocabulary."""
    concepts = [index if index >= 0 else _NOTHING for index in word_to_concept_ids()]
    zero, num_words = writer.constant(0, np.int64), writer.constant(len(vocabulary()), np.int64)
    in_vocabulary = writer.node(
        "And", writer.node("GreaterOrEqual", input_ids, zero), writer.node("Less", input_ids, num_words)
    )
    is_word = writer.node("And", in_vocabulary, writer.node("Greater", attention_mask, zero))
    safe_ids = writer.node("Where", is_word, input_ids, zero)  # word 0 is padding and means nothing
    return writer.node("Gather", writer.constant(concepts, np.int64), safe_ids, axis=0)


def _named(writer: GraphWriter, concept_ids: str) -> str:
    """f32 `[B, number of word concepts]`, 1 for each that is named at least once."""
    hits = writer.node("OneHot", concept_ids, writer.constant(_NOTHING + 1, np.int64), _off_and_on(writer), axis=-1)
    counts = writer.node("ReduceSum", hits, writer.constant([1], np.int64), keepdims=0)
    return _columns(writer, writer.node("Min", counts, writer.constant(1.0, np.float32)), range(_NOTHING))


def _token_mask(writer: GraphWriter, named: str) -> str:
    """f32 `[B, N]`: the named concepts with one tempo, then the scales, then the token that is always there."""
    first, last = CONCEPT_IDS[BPM_CONCEPTS[0]], CONCEPT_IDS[BPM_CONCEPTS[-1]]
    before = _columns(writer, named, range(first))
    behind = _columns(writer, named, range(last + 1, len(CONCEPTS)))
    always = writer.node("Sub", _any(writer, named), _any(writer, named))
    always = writer.node("Add", always, writer.constant(1.0, np.float32))
    return writer.node("Concat", before, _tempo(writer, named), behind, _scales(writer, named), always, axis=1)


def _scales(writer: GraphWriter, named: str) -> str:
    """f32 `[B, 12 * 6]`, 1 where both the key and the mode of a scale are named."""
    keys = _columns(writer, named, [CONCEPT_IDS[concept] for concept in KEY_CONCEPTS])
    modes = _columns(writer, named, [CONCEPT_IDS[concept] for concept in MODE_CONCEPTS])
    keys = writer.node("Unsqueeze", keys, writer.constant([2], np.int64))
    modes = writer.node("Unsqueeze", modes, writer.constant([1], np.int64))
    num_scales = len(KEY_CONCEPTS) * len(MODE_CONCEPTS)
    return writer.node("Reshape", writer.node("Mul", keys, modes), writer.constant([-1, num_scales], np.int64))


def _tempo(writer: GraphWriter, named: str) -> str:
    """f32 `[B, 7]`, exactly one tempo in every prompt that says anything: a number, else a word, else by chance.

    Chance is a sum over the concepts, so it is the same for the same words.
    """
    numbers = _columns(writer, named, [CONCEPT_IDS[concept] for concept in BPM_CONCEPTS])
    words = _columns(writer, named, [CONCEPT_IDS[word] for word in TEMPO_WORDS_BPM])
    meant = np.array([[bpm == other for other in TEMPOS_BPM] for bpm in TEMPO_WORDS_BPM.values()], np.float32)
    words = writer.node("MatMul", words, writer.constant(meant))
    score = writer.node("Add", writer.node("Mul", numbers, writer.constant(4.0, np.float32)), _chance(writer, named))
    score = writer.node("Add", score, writer.node("Mul", words, writer.constant(2.0, np.float32)))
    tempo = _one_hot_tempo(writer, writer.node("ArgMax", score, axis=1, keepdims=0))
    return writer.node("Mul", tempo, _any(writer, named))


def _chance(writer: GraphWriter, named: str) -> str:
    numbers = writer.constant(np.arange(len(WORD_CONCEPTS), dtype=np.float32)[:, None])
    total = writer.node("Cast", writer.node("MatMul", named, numbers), to=TensorProto.INT64)
    remainder = writer.node("Mod", total, writer.constant(len(TEMPOS_BPM), np.int64))
    return _one_hot_tempo(writer, writer.node("Squeeze", remainder, writer.constant([1], np.int64)))


def _one_hot_tempo(writer: GraphWriter, index: str) -> str:
    return writer.node("OneHot", index, writer.constant(len(TEMPOS_BPM), np.int64), _off_and_on(writer), axis=-1)


def _any(writer: GraphWriter, named: str) -> str:
    """f32 `[B, 1]`, 1 where any concept is named."""
    return writer.node("ReduceMax", named, writer.constant([1], np.int64), keepdims=1)


def _columns(writer: GraphWriter, values: str, columns: range | list[int]) -> str:
    return writer.node("Gather", values, writer.constant(list(columns), np.int64), axis=1)


def _off_and_on(writer: GraphWriter) -> str:
    return writer.constant([0.0, 1.0], np.float32)
