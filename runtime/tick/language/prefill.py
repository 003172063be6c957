"""What runs beside a planner's steps: prompts go into a graph's cache in chunks, and a smaller graph drafts tokens."""

from __future__ import annotations

import numpy as np

from runtime.config.planner import LanguageGraphSpec, PlannerSpec
from runtime.devices.device import Device, Stream
from runtime.devices.memory import PackedVectors
from runtime.engines.engine import Engine, Execution, LanguageEngines
from runtime.engines.launch_cache import Launch, LaunchCache
from runtime.tick.language.kv_cache import KvCache
from runtime.tick.language.sequence import LiveSequence, PromptChunk
from runtime.tick.language.step_buffers import SequenceVectors, StepBuffers, Vector
from runtime.tick.runner import TickContext

# Bound launches that are kept: a prefill's addresses are those of its row.
LAUNCHES = 256


class Prefill:
    """Chunks of `size` tokens for one graph. Their logits are not used. Never captured: there were too many graphs."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        vectors: PackedVectors,
        graph: LanguageGraphSpec,
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


class DraftGraph:
    """Drafts as many tokens as a verify takes, with the random numbers of the tokens themselves.

    It has rows of its own cache, the same as the planner's. Drafts that were wrong lie in them, so the last tokens are
    fed again first: as many as a verify can have brought.
    """

    def __init__(
        self,
        context: TickContext,
        engines: LanguageEngines,
        spec: PlannerSpec,
        graph: LanguageGraphSpec,
        vectors: PackedVectors,
        shared: SequenceVectors,
    ) -> None:
        assert engines.draft is not None
        device, width, sequences = context.device, spec.verify_tokens, context.runtime.planner_sequences
        self.cache = KvCache(device, context.stream, engines.draft, graph, 2 * sequences)
        self._again = StepBuffers(
            device, vectors, shared, spec, sequences, width=width, steps=1, draws=width, draft=graph
        )
        self._chain = StepBuffers(device, vectors, shared, spec, sequences, width=1, steps=width - 1, draft=graph)
        self.num_executes = width

    @property
    def buffers(self) -> tuple[StepBuffers, StepBuffers]:
        """What is fed again, and the chain that drafts."""
        return self._again, self._chain

    def write(self, live: LiveSequence, stream: Stream) -> None:
        """Set what the next launch feeds for a sequence."""
        self._again.write_known(live)
        self._chain.write(live, stream)

    def bind(self, engines: LanguageEngines, rows: int, sequences: int, span: int) -> list[Execution]:
        """The executes of one launch, in order. Raises ShapeError, EngineError."""
        assert engines.draft is not None
        again = self._again.bind_graph(engines.draft, self.cache, rows, span)
        return [again, *self._chain.bind(engines.draft, engines.sampler, self.cache, rows, sequences, span)]

    def download(self, stream: Stream) -> None:
        """Begin to copy the drafts to the host."""
        self._chain.download(stream)

    def take(self, live: LiveSequence) -> None:
        """Note the drafts of a launch that is done."""
        index = live.slot.index
        live.take_drafts([int(self._chain.drawn[step, index]) for step in range(self._chain.steps)])
