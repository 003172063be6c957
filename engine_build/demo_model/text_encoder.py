"""The text encoder as an ONNX graph: word ids -> a set of tokens, independent of word order."""

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
from engine_build.demo_model.latents import FloatArray
from engine_build.demo_model.tokenizer import vocabulary, word_to_concept_ids
from engine_build.graphs.graph_writer import GraphWriter

_NOTHING: Final = len(WORD_CONCEPTS)


def build_text_encoder(token_table: FloatArray) -> onnx.ModelProto:
    """Graph `input_ids [B, L], attention_mask [B, L]` int64 -> `condition [B, N, D], condition_mask [B, N]` f32.

    The condition is the whole table for every row; the mask selects the tokens that the words name. So the result does
    not depend on word order, on repeated words or on unknown ones. The last token is always kept: alone it is the empty
    prompt.

    Args:
        token_table: f32 `[N, D]`, see `vocabulary.NUM_TOKENS`.
    """
    graph = GraphWriter("text_encoder")
    input_ids = graph.input("input_ids", ("batch", "tokens"), np.int64)
    attention_mask = graph.input("attention_mask", ("batch", "tokens"), np.int64)
    named = _named(graph, _concept_ids(graph, input_ids, attention_mask))
    mask = _token_mask(graph, named)
    table = graph.constant(token_table[None])
    shape = graph.op("Concat", graph.op("Shape", mask), graph.constant(token_table.shape[1:], np.int64), axis=0)
    graph.output("condition", graph.op("Expand", table, shape), ("batch", *token_table.shape))
    graph.output("condition_mask", mask, ("batch", NUM_TOKENS))
    return graph.model()


def _concept_ids(graph: GraphWriter, input_ids: str, attention_mask: str) -> str:
    """Concept per word, int64 `[B, L]`; `_NOTHING` for padding, special words and ids outside the vocabulary."""
    concepts = [index if index >= 0 else _NOTHING for index in word_to_concept_ids()]
    zero, num_words = graph.constant(0, np.int64), graph.constant(len(vocabulary()), np.int64)
    in_vocabulary = graph.op("And", graph.op("GreaterOrEqual", input_ids, zero), graph.op("Less", input_ids, num_words))
    is_word = graph.op("And", in_vocabulary, graph.op("Greater", attention_mask, zero))
    safe_ids = graph.op("Where", is_word, input_ids, zero)  # word 0 is padding and means nothing
    return graph.op("Gather", graph.constant(concepts, np.int64), safe_ids, axis=0)


def _named(graph: GraphWriter, concept_ids: str) -> str:
    """f32 `[B, number of word concepts]`, 1 for each that is named at least once."""
    hits = graph.op("OneHot", concept_ids, graph.constant(_NOTHING + 1, np.int64), _off_and_on(graph), axis=-1)
    counts = graph.op("ReduceSum", hits, graph.constant([1], np.int64), keepdims=0)
    return _columns(graph, graph.op("Min", counts, graph.constant(1.0)), range(_NOTHING))


def _token_mask(graph: GraphWriter, named: str) -> str:
    """f32 `[B, N]`: the named concepts with one tempo, then the scales, then ALWAYS_ID."""
    first, last = CONCEPT_IDS[BPM_CONCEPTS[0]], CONCEPT_IDS[BPM_CONCEPTS[-1]]
    before = _columns(graph, named, range(first))
    after = _columns(graph, named, range(last + 1, len(CONCEPTS)))
    always = graph.op("Sub", _any(graph, named), _any(graph, named))
    always = graph.op("Add", always, graph.constant(1.0))
    return graph.op("Concat", before, _tempo(graph, named), after, _scales(graph, named), always, axis=1)


def _scales(graph: GraphWriter, named: str) -> str:
    """f32 `[B, 12 * 6]`, 1 where both the key and the mode of a scale are named."""
    keys = _columns(graph, named, [CONCEPT_IDS[concept] for concept in KEY_CONCEPTS])
    modes = _columns(graph, named, [CONCEPT_IDS[concept] for concept in MODE_CONCEPTS])
    keys = graph.op("Unsqueeze", keys, graph.constant([2], np.int64))
    modes = graph.op("Unsqueeze", modes, graph.constant([1], np.int64))
    num_scales = len(KEY_CONCEPTS) * len(MODE_CONCEPTS)
    return graph.op("Reshape", graph.op("Mul", keys, modes), graph.constant([-1, num_scales], np.int64))


def _tempo(graph: GraphWriter, named: str) -> str:
    """f32 `[B, 7]`, one tempo in every prompt that is not empty: a number, else a word, else pseudorandom.

    The pseudorandom choice is a function of the concepts, so equal words give equal tempos.
    """
    numbers = _columns(graph, named, [CONCEPT_IDS[concept] for concept in BPM_CONCEPTS])
    words = _columns(graph, named, [CONCEPT_IDS[word] for word in TEMPO_WORDS_BPM])
    meant = np.array([[bpm == other for other in TEMPOS_BPM] for bpm in TEMPO_WORDS_BPM.values()], np.float32)
    words = graph.op("MatMul", words, graph.constant(meant))
    score = graph.op("Add", graph.op("Mul", numbers, graph.constant(4.0)), _pseudorandom_tempo(graph, named))
    score = graph.op("Add", score, graph.op("Mul", words, graph.constant(2.0)))
    tempo = _one_hot_tempo(graph, graph.op("ArgMax", score, axis=1, keepdims=0))
    return graph.op("Mul", tempo, _any(graph, named))


def _pseudorandom_tempo(graph: GraphWriter, named: str) -> str:
    numbers = graph.constant(np.arange(len(WORD_CONCEPTS), dtype=np.float32)[:, None])
    total = graph.op("Cast", graph.op("MatMul", named, numbers), to=TensorProto.INT64)
    remainder = graph.op("Mod", total, graph.constant(len(TEMPOS_BPM), np.int64))
    return _one_hot_tempo(graph, graph.op("Squeeze", remainder, graph.constant([1], np.int64)))


def _one_hot_tempo(graph: GraphWriter, index: str) -> str:
    return graph.op("OneHot", index, graph.constant(len(TEMPOS_BPM), np.int64), _off_and_on(graph), axis=-1)


def _any(graph: GraphWriter, named: str) -> str:
    """f32 `[B, 1]`, 1 where any concept is named."""
    return graph.op("ReduceMax", named, graph.constant([1], np.int64), keepdims=1)


def _columns(graph: GraphWriter, values: str, columns: range | list[int]) -> str:
    return graph.op("Gather", values, graph.constant(list(columns), np.int64), axis=1)


def _off_and_on(graph: GraphWriter) -> str:
    return graph.constant([0.0, 1.0])
