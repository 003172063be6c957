"""The conditioner as an ONNX graph: word ids -> a set of concept tokens in which word order cannot matter."""

import numpy as np
import onnx
from onnx import TensorProto

from engine_build.demo_model.graphs import GraphWriter
from engine_build.demo_model.latents import FloatArray
from engine_build.demo_model.tokenizer import UNKNOWN, vocabulary, word_to_concept_ids
from engine_build.demo_model.vocabulary import CONCEPTS


def build_conditioner(concept_table: FloatArray) -> onnx.ModelProto:
    """Graph `input_ids [B, L], attention_mask [B, L]` int64 -> `condition [B, L+1, D], condition_mask [B, L+1]` f32.

    Words become concept ids, sorted, so that every order of the words gives the same bits. Words that mean nothing and
    words of a concept that is there already are masked. Token 0 is always kept: alone it is the empty prompt.

    Args:
        concept_table: f32 `[number of concepts + 1, D]`, the last row is the token that is always there.
    """
    width = concept_table.shape[1]
    writer = GraphWriter("conditioner")
    input_ids = writer.input("input_ids", TensorProto.INT64, ("batch", "tokens"))
    attention_mask = writer.input("attention_mask", TensorProto.INT64, ("batch", "tokens"))
    concepts = _sorted_concepts(writer, _concept_ids(writer, input_ids, attention_mask))
    keep = _first_of_its_kind(writer, concepts)

    always = _column(writer, concepts, len(CONCEPTS))
    ids = writer.node("Concat", always, concepts, axis=1)
    condition = writer.node("Gather", writer.constant(_table_with_sentinel(concept_table)), ids, axis=0)
    mask = writer.node("Concat", _ones_like(writer, always), keep, axis=1)
    writer.output("condition", condition, TensorProto.FLOAT, ("batch", "condition_tokens", width))
    writer.output("condition_mask", mask, TensorProto.FLOAT, ("batch", "condition_tokens"))
    return writer.model()


_SENTINEL = len(CONCEPTS) + 1


def _table_with_sentinel(concept_table: FloatArray) -> FloatArray:
    """The table with one more row of zeros, for words that mean nothing; it sorts last."""
    return np.concatenate([concept_table, np.zeros((1, concept_table.shape[1]), np.float32)]).astype(np.float32)


def _concept_ids(writer: GraphWriter, input_ids: str, attention_mask: str) -> str:
    """Concept id per word, the sentinel for padding, special words and ids outside the vocabulary."""
    words = vocabulary()
    concepts = [index if index >= 0 else _SENTINEL for index in word_to_concept_ids()]
    unknown = writer.constant(words[UNKNOWN], np.int64)
    zero = writer.constant(0, np.int64)
    is_word = writer.node(
        "And",
        writer.node("GreaterOrEqual", input_ids, zero),
        writer.node("Less", input_ids, writer.constant(len(words), np.int64)),
    )
    is_word = writer.node("And", is_word, writer.node("Greater", attention_mask, zero))
    known_ids = writer.node("Where", is_word, input_ids, unknown)
    return writer.node("Gather", writer.constant(concepts, np.int64), known_ids, axis=0)


def _sorted_concepts(writer: GraphWriter, concepts: str) -> str:
    num_tokens = writer.node("Shape", concepts, start=1, end=2)
    return writer.nodes("TopK", concepts, num_tokens, num_outputs=2, axis=1, largest=0, sorted=1)[0]


def _first_of_its_kind(writer: GraphWriter, concepts: str) -> str:
    """f32 `[B, L]`: 1 where a sorted concept is known and not equal to the one before it."""
    before_all = _column(writer, concepts, -1)
    last = writer.constant([-1], np.int64)
    all_but_last = writer.node("Slice", concepts, writer.constant([0], np.int64), last, writer.constant([1], np.int64))
    previous = writer.node("Concat", before_all, all_but_last, axis=1)
    is_new = writer.node("Not", writer.node("Equal", concepts, previous))
    is_known = writer.node("Less", concepts, writer.constant(_SENTINEL, np.int64))
    return writer.node("Cast", writer.node("And", is_new, is_known), to=TensorProto.FLOAT)


def _column(writer: GraphWriter, concepts: str, value: int) -> str:
    """int64 `[B, 1]` full of `value`."""
    batch = writer.node("Shape", concepts, start=0, end=1)
    shape = writer.node("Concat", batch, writer.constant([1], np.int64), axis=0)
    return writer.node("Expand", writer.constant([[value]], np.int64), shape)


def _ones_like(writer: GraphWriter, column: str) -> str:
    ones = writer.node("Equal", column, column)
    return writer.node("Cast", ones, to=TensorProto.FLOAT)
