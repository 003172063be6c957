"""Chunks: padded, at their place in a ring, bound once for a row and a span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.tiny_planner import VOCABULARY

from runtime.config.planner import LanguageGraphSpec
from runtime.devices.device import HostDevice, Stream, Tensor
from runtime.devices.memory import PackedVectors
from runtime.engines.manifest import TensorInfo
from runtime.tick.language.kv_cache import KvCache
from runtime.tick.language.prefill import Prefill
from runtime.tick.language.sequence import PromptChunk

GRAPH = LanguageGraphSpec.model_validate(
    {
        "graph": "planner.onnx",
        "capacity": 96,
        "window": 64,
        "inputs": {"past": ("k", "v")},
        "outputs": {"present": ("k2", "v2")},
    }
)


@dataclass
class Binding:
    """An engine that keeps what is bound."""

    inputs: dict[str, TensorInfo]
    bound: list[Mapping[str, Tensor]] = field(default_factory=list)

    def bind(self, tensors: Mapping[str, Tensor]) -> Any:
        self.bound.append(tensors)
        return self

    def launch(self, stream: Stream) -> None:
        raise AssertionError("nothing runs here")

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    def warm_up(self, stream: Stream) -> None:
        raise AssertionError("nothing is captured here")

    def release(self) -> None:
        pass


def test_a_chunk_is_padded_and_lies_in_its_row_of_the_ring() -> None:
    device, info = HostDevice(), TensorInfo(name="k", dtype="float32", shape=("rows", 2, 96, 4))
    engine: Any = Binding({"k": info, "v": info})
    cache = KvCache(device, device.main, engine, GRAPH, 3)
    vectors = PackedVectors(device, 4096)
    prefill = Prefill(device, device.main, vectors, GRAPH, cache, size=16, vocabulary=VOCABULARY)
    chunks = [PromptChunk(2, 112, tuple(range(10))), PromptChunk(2, 128, (1,)), PromptChunk(1, 0, (2, 3))]
    launches = [prefill.prepare(engine, chunk, 0) for chunk in chunks[:2]]
    assert launches[0] is launches[1]
    (bound,) = engine.bound
    host = {name: None if tensor.host is None else tensor.host.tolist() for name, tensor in bound.items()}
    assert host["tokens"] == [[1, *[0] * 15]]
    assert (host["position"], host["write"], host["window"]) == ([128], [32], [64])
    assert bound["k"].address == bound["k2"].address == cache.tensors(2, 3, 96)["k"].address
    assert bound["slots"].shape == (96,)
    prefill.prepare(engine, chunks[2], 0)
    assert engine.bound[1]["slots"].shape == (64,)
    prefill.forget_launches()
    assert prefill.prepare(engine, chunks[1], 1) is not launches[1]
    prefill.close()
