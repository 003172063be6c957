"""Writes the planner's graphs: at opset 24 a decoder in Qwen3's layout whose caches grow in place, and its sampler.

Letters: R rows, U new tokens per row, G logits per row, E cache slots that attention reads, H key and value heads,
M capacity of a cache, J width of a head, V vocabulary, N sequences.

The only new operators are TensorScatter, RotaryEmbedding, RMSNormalization and Attention: ONNX Runtime has them from
1.25 on, TensorRT from 10.15 on. How many slots attention reads is a dimension, so that a short sequence in a large
cache costs what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from engine_build.graphs.graph_writer import GraphWriter
from runtime.tick.language.step_buffers import SAMPLER_INPUTS, SAMPLER_OUTPUTS, SamplerTensor

OPSET = 24
INPUTS = ("tokens", "position", "write", "window", "slots", "pick")
# The rotary angle of a position is the sum of those of its digits: positions below BASE ** DIGITS have one.
BASE, DIGITS = 256, 3

Read = Callable[[str], NDArray[np.float32]]
Store = Callable[[str, NDArray[Any]], onnx.TensorProto]


@dataclass(frozen=True)
class Qwen3Sizes:
    """The sizes of a Qwen3 checkpoint. is_tied: the output matrix is the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    rope_theta: float
    epsilon: float
    is_tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From the content of a checkpoint's config.json. Raises KeyError."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_width=config.get("head_dim") or hidden // heads,
            vocabulary=config["vocab_size"],
            rope_theta=float((config.get("rope_parameters") or config)["rope_theta"]),
            epsilon=config["rms_norm_eps"],
            is_tied=bool(config.get("tie_word_embeddings")),
        )


class CacheNames(NamedTuple):
    """The names of a graph's caches, as inputs and as outputs, in the order of bundle.toml."""

    past: tuple[str, ...]
    present: tuple[str, ...]


def cache_names(layers: int) -> CacheNames:
    """Keys and values of the first layer, of the second, and so on."""
    kinds = [f"{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]
    return CacheNames(tuple(f"past_{kind}" for kind in kinds), tuple(f"present_{kind}" for kind in kinds))


def planner_graph(sizes: Qwen3Sizes, capacity: int, read: Read, store: Store | None = None) -> onnx.ModelProto:
    """The cached decoder. `read`: a tensor of the checkpoint by its name in it, float32; each is read once, in order.

    `store` keeps a weight in a file beside the graph; default: in the graph.
    """
    return _Decoder(sizes, capacity, read, store or (lambda name, array: numpy_helper.from_array(array, name))).write()


class _Decoder:
    """One decoder being written."""

    def __init__(self, sizes: Qwen3Sizes, capacity: int, read: Read, store: Store) -> None:
        self._sizes, self._capacity, self._read, self._store = sizes, capacity, read, store
        self._graph = GraphWriter("planner", OPSET)

    def write(self) -> onnx.ModelProto:
        graph, sizes = self._graph, self._sizes
        self._inputs()
        positions = self._positions()
        mask, rotary = self._mask(positions), self._rotary(positions)
        embedding = self._weight("model.embed_tokens")
        hidden = graph.op("Gather", embedding, "tokens")
        for layer in range(sizes.layers):
            with graph.scope(f"layers.{layer}"):
                hidden = self._attention(layer, hidden, mask, rotary)
                hidden = self._mlp(f"model.layers.{layer}.", hidden)
        picked = graph.op("GatherND", hidden, "pick", batch_dims=1)
        head = embedding if sizes.is_tied else self._weight("lm_head")
        self._logits(self._norm("model.norm", picked), head)
        return graph.model()

    def _inputs(self) -> None:
        for name, shape in zip(INPUTS, (("R", "U"), "R", "R", "R", "E", ("R", "G", 1)), strict=True):
            self._graph.input(name, tuple(shape), np.int64)

    def _positions(self) -> str:
        """Of every new token, `[R,U]`."""
        graph = self._graph
        count = graph.op("Squeeze", graph.op("Shape", "tokens", start=1, end=2))
        ramp = graph.op("Range", self._integer(0), count, self._integer(1))
        return graph.op("Add", self._column("position"), ramp)

    def _mask(self, positions: str) -> str:
        """Which slots each token sees, bool `[R,1,U,E]`.

        A slot holds the largest position, up to the last new one, that is the slot's number modulo the capacity; so
        the formula is the same for a cache that is long enough and for a ring.
        """
        graph, capacity = self._graph, self._integer(self._capacity)
        count = graph.op("Shape", "tokens", start=1, end=2)
        last = self._column(graph.op("Sub", graph.op("Add", "position", count), self._integer(1)))
        ahead = graph.op("Add", graph.op("Sub", last, "slots"), capacity)
        held = self._unsqueeze(graph.op("Sub", last, graph.op("Mod", ahead, capacity)), 1, 2)
        query = self._unsqueeze(positions, 1, 3)
        oldest = graph.op("Sub", query, self._unsqueeze("window", 1, 2, 3))
        inside = graph.op("And", graph.op("LessOrEqual", held, query), graph.op("Greater", held, oldest))
        return graph.op("And", inside, graph.op("GreaterOrEqual", held, self._integer(0)))

    def _rotary(self, positions: str) -> tuple[str, str]:
        """Cosine and sine of every new token, `[R,U,J/2]`, from tables of a position's digits by the sum formula."""
        graph, base = self._graph, self._integer(BASE)
        cosine, sine, rest = "", "", positions
        for digit in range(DIGITS):
            tables = [graph.op("Gather", table, graph.op("Mod", rest, base)) for table in self._tables(BASE**digit)]
            rest = graph.op("Div", rest, base)
            if digit == 0:
                cosine, sine = tables
                continue
            products = [graph.op("Mul", one, other) for one in (cosine, sine) for other in tables]
            cosine = graph.op("Sub", products[0], products[3])
            sine = graph.op("Add", products[1], products[2])
        return cosine, sine

    def _tables(self, step: int) -> tuple[str, str]:
        """Cosine and sine of 0, step, 2 step, ..., each `[BASE, J/2]`."""
        width = self._sizes.head_width
        frequencies = self._sizes.rope_theta ** -(np.arange(0, width, 2) / width)
        angles = step * np.arange(BASE)[:, None] * frequencies
        return self._graph.constant(np.cos(angles)), self._graph.constant(np.sin(angles))

    def _attention(self, layer: int, hidden: str, mask: str, rotary: tuple[str, str]) -> str:
        graph, sizes, path = self._graph, self._sizes, f"model.layers.{layer}."
        heads = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
        matrix = self._matrix(f"{path}self_attn.qkv", *(f"{path}self_attn.{kind}_proj" for kind in "qkv"))
        product = graph.op("MatMul", self._norm(f"{path}input_layernorm", hidden), matrix)
        widths = graph.constant([count * sizes.head_width for count in heads], np.int64)
        query, key, value = (
            graph.op("Reshape", part, graph.constant([0, 0, count, sizes.head_width], np.int64))
            for part, count in zip(graph.ops("Split", 3, product, widths, axis=-1), heads, strict=True)
        )
        query = self._turned(self._norm(f"{path}self_attn.q_norm", query), rotary)
        key = self._turned(self._norm(f"{path}self_attn.k_norm", key), rotary)
        past, present = cache_names(sizes.layers)
        caches = [
            self._cached(past[2 * layer + place], present[2 * layer + place], new)
            for place, new in enumerate((key, graph.op("Transpose", value, perm=[0, 2, 1, 3])))
        ]
        mixed = graph.op("Transpose", graph.op("Attention", query, *caches, mask), perm=[0, 2, 1, 3])
        flat = graph.op("Reshape", mixed, graph.constant([0, 0, sizes.heads * sizes.head_width], np.int64))
        return graph.op("Add", hidden, graph.op("MatMul", flat, self._matrix(f"{path}self_attn.o_proj")))

    def _turned(self, heads: str, rotary: tuple[str, str]) -> str:
        """Heads first, and turned by their positions."""
        return self._graph.op("RotaryEmbedding", self._graph.op("Transpose", heads, perm=[0, 2, 1, 3]), *rotary)

    def _cached(self, past: str, present: str, new: str) -> str:
        """Write new keys or values into their cache; the part of it that attention reads."""
        graph, sizes = self._graph, self._sizes
        shape = ("R", sizes.kv_heads, self._capacity, sizes.head_width)
        cache = graph.op("TensorScatter", graph.input(past, shape), new, "write", axis=-2, mode="linear")
        axis, start = graph.constant([2], np.int64), graph.constant([0], np.int64)
        read = graph.op("Slice", cache, start, graph.op("Shape", "slots"), axis)
        graph.output(present, cache, shape)
        return read

    def _mlp(self, path: str, hidden: str) -> str:
        graph = self._graph
        normed = self._norm(f"{path}post_attention_layernorm", hidden)
        gate, up = (graph.op("MatMul", normed, self._matrix(f"{path}mlp.{kind}_proj")) for kind in ("gate", "up"))
        gated = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up)
        return graph.op("Add", hidden, graph.op("MatMul", gated, self._matrix(f"{path}mlp.down_proj")))

    def _logits(self, hidden: str, head: str) -> None:
        """The head is read as the checkpoint has it, `[V, hidden]`: a tied one is stored once."""
        graph, vocabulary = self._graph, self._sizes.vocabulary
        flat = graph.op("Reshape", hidden, graph.constant([-1, self._sizes.hidden], np.int64))
        places = graph.op("Shape", "pick", start=0, end=2)
        shape = graph.op("Concat", places, graph.constant([vocabulary], np.int64), axis=0)
        logits = graph.op("Reshape", graph.op("Gemm", flat, head, transB=1), shape)
        graph.output("logits", logits, ("R", "G", vocabulary))

    def _norm(self, name: str, value: str) -> str:
        weight = self._weight(name)
        return self._graph.op("RMSNormalization", value, weight, axis=-1, epsilon=self._sizes.epsilon)

    def _weight(self, name: str) -> str:
        return self._graph.tensor(self._store(name, self._read(f"{name}.weight")))

    def _matrix(self, name: str, *parts: str) -> str:
        """A matrix as MatMul reads it; of several parts, beside each other."""
        matrices = [self._read(f"{part}.weight").T for part in parts or (name,)]
        return self._graph.tensor(self._store(name, np.ascontiguousarray(np.concatenate(matrices, axis=1))))

    def _integer(self, value: int) -> str:
        return self._graph.constant(value, np.int64)

    def _column(self, value: str) -> str:
        return self._unsqueeze(value, 1)

    def _unsqueeze(self, value: str, *axes: int) -> str:
        return self._graph.op("Unsqueeze", value, self._graph.constant(axes, np.int64))


def sampler_graph(vocabulary: int, candidates: int) -> onnx.ModelProto:
    """Logits -> one token per sequence and logit: guidance, allowed tokens, top-k, top-p, temperature, inverse CDF.

    The order is ACE-Step's: top-k and top-p choose before the temperature changes the distribution, top-p among what
    top-k leaves. At most `candidates` tokens are chosen from. A sequence's tokens depend on its own rows alone.
    """
    graph, count = GraphWriter("sampler"), min(candidates, vocabulary)
    for name, tensor in SAMPLER_INPUTS.items():
        graph.input(name, _shape(tensor, vocabulary), tensor.dtype)

    def wide(name: str) -> str:
        """`[N]` as `[N,1,1]`."""
        return graph.op("Unsqueeze", name, graph.constant([1, 2], np.int64))

    axis = graph.constant([2], np.int64)
    # Each sequence's rows of the logits: [R,G,V] -> [N,G,V].
    positive, negative = (graph.op("Gather", "logits", f"{sign}_row") for sign in ("positive", "negative"))
    guided = graph.op("Add", negative, graph.op("Mul", wide("guidance"), graph.op("Sub", positive, negative)))
    scores = graph.op("Where", "allowed", guided, graph.constant(np.finfo(np.float32).min))
    # [N,G,K], from the largest down: of scores, and of their places in the vocabulary.
    top, places = graph.ops("TopK", 2, scores, graph.constant([count], np.int64), axis=-1)
    peak = graph.op("Slice", top, graph.constant([0], np.int64), graph.constant([1], np.int64), axis)
    # Less the largest, so that no exponential overflows.
    top = graph.op("Sub", top, peak)
    kept = _kept(graph, graph.op("Sub", scores, peak), top, count, wide("top_k"), wide("top_p"))
    weights = graph.op("Exp", graph.op("Div", top, wide("temperature")))
    weights = graph.op("Where", kept, weights, graph.constant(0.0))
    summed = graph.op("CumSum", weights, graph.constant(2, np.int64))  # [N,G,K]
    total = graph.op("Slice", summed, graph.constant([-1], np.int64), graph.constant([2**31 - 1], np.int64), axis)
    # The inverse CDF: as many candidates as end at or below `uniform` of the whole weight come before the drawn one.
    limit = graph.op("Mul", graph.op("Unsqueeze", "uniform", axis), total)
    below = graph.op("Cast", graph.op("LessOrEqual", summed, limit), to=onnx.TensorProto.INT64)
    # Rounding may leave the sum at or below the limit: then the last candidate that is left is drawn.
    rank = graph.op("Min", graph.op("ReduceSum", below, axis), _last(graph, kept, axis))
    tokens = graph.op("Squeeze", graph.op("GatherElements", places, rank, axis=2), axis)  # [N,G]
    # Infinite, or no number, where any logit is: one comparison finds both.
    size = graph.op("ReduceSum", graph.op("Abs", guided), graph.constant([1, 2], np.int64), keepdims=0)
    outputs = {
        "tokens": tokens,
        "row_tokens": graph.op("Gather", tokens, "row_sequence"),
        "finite": graph.op("LessOrEqual", size, graph.constant(np.finfo(np.float32).max)),
    }
    for name, tensor in SAMPLER_OUTPUTS.items():
        graph.output(name, outputs[name], _shape(tensor, vocabulary), tensor.dtype)
    return graph.model()


def _kept(graph: GraphWriter, scores: str, top: str, count: int, top_k: str, top_p: str) -> str:
    """Which candidates top-k and top-p leave: those before which less than top_p of the probability lies.

    `scores`, `top`: of the vocabulary and of the `count` candidates, less the largest.
    """
    axis = graph.constant([2], np.int64)
    ranks = graph.constant(np.arange(count) + 1, np.int64)
    is_limited = graph.op("Greater", top_k, graph.constant(0, np.int64))
    within = graph.op("Or", graph.op("Not", is_limited), graph.op("LessOrEqual", ranks, top_k))
    chances = graph.op("Where", within, graph.op("Exp", top), graph.constant(0.0))
    everything = graph.op("ReduceSum", graph.op("Exp", scores), axis)
    total = graph.op("Where", is_limited, graph.op("ReduceSum", chances, axis), everything)
    before = graph.op("Sub", graph.op("CumSum", chances, graph.constant(2, np.int64)), chances)
    nucleus = graph.op("LessOrEqual", before, graph.op("Mul", top_p, total))
    return graph.op("And", within, nucleus)


def _last(graph: GraphWriter, kept: str, axis: str) -> str:
    """The rank of the last candidate that is left."""
    count = graph.op("ReduceSum", graph.op("Cast", kept, to=onnx.TensorProto.INT64), axis)
    return graph.op("Sub", count, graph.constant(1, np.int64))


def _shape(tensor: SamplerTensor, vocabulary: int) -> tuple[int | str, ...]:
    return tuple(vocabulary if letter == "V" else letter for letter in tensor.letters)
