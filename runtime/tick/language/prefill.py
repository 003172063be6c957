"""Prompts go into a graph's caches in chunks, one row at a time."""

from __future__ import annotations

import numpy as np

from runtime.config.planner import PlannerGraphSpec
from runtime.devices.device import Device, Stream
from runtime.devices.packed_vectors import PackedVectors
from runtime.engines.engine import Engine, Execution
from runtime.engines.launch_cache import Launch, LaunchCache
from runtime.tick.language.kv_cache import KvCache
from runtime.tick.language.live_sequence import PromptChunk
from runtime.tick.language.step_buffers import Vector

# Bound launches that are kept: a prefill's addresses are those of its row.
LAUNCHES = 256


class Prefill:
    """Chunks of `size` tokens for one graph. Their logits are not used. Never captured: there were too many graphs."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        vectors: PackedVectors,
        graph: PlannerGraphSpec,
        cache: KvCache,
        *,
        size: int,
        vocabulary: int,
    ) -> None:
        self._graph, self._cache, self._size = graph, cache, size
        self._launches = LaunchCache(device, stream, LAUNCHES, captures=False)
        self._tokens = Vector(vectors, size, np.int64)  # [L]
        self._position, self._write, self._window, self._pick = (
            Vector(vectors, 1, np.int64, value)
            for value in (0, 0, graph.window_input, 0)  # [1] each
        )
        self._logits = device.zeros((1, 1, vocabulary), np.float32)  # [1, 1, V]

    def prepare(self, engine: Engine, chunk: PromptChunk, generation: int) -> Launch:
        """Set the next chunk; what pads it is overwritten in the cache before anything reads it.

        Raises ShapeError, EngineError.
        """
        self._position.items[0], self._write.items[0] = chunk.start, chunk.start % self._cache.capacity
        for place in range(self._size):
            self._tokens.items[place] = chunk.tokens[place] if place < len(chunk.tokens) else 0
        span = self._cache.span(chunk.start + self._size)
        key = (chunk.row, span, generation)
        launch = self._launches.get(key, lambda: Launch(key, None, (), self.bind(engine, chunk.row, span)))
        self._launches.before_run(launch)
        return launch

    def bind(self, engine: Engine, row: int, span: int) -> Execution:
        """An execute of a chunk of a row whose attention reads `span` slots. Raises ShapeError, EngineError."""
        names = self._graph.inputs
        tensors = {
            names.tokens: self._tokens.tensor.view(1, self._size),  # [1, L]
            names.position: self._position.tensor,
            names.write: self._write.tensor,
            names.window: self._window.tensor,
            names.pick: self._pick.tensor.view(1, 1, 1),  # [1, 1, 1]
            self._graph.outputs.logits: self._logits,
        }
        return engine.bind(tensors | self._cache.tensors(row, row + 1, span))

    def forget_launches(self) -> None:
        """Close everything that is bound."""
        self._launches.drop(lambda key: True)

    def close(self) -> None:
        """Close everything that is bound; nothing may be pending."""
        self._launches.close()
