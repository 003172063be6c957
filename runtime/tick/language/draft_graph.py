"""The smaller graph of a bundle: it drafts the tokens that the next tick verifies."""

from __future__ import annotations

from runtime.config.planner import PlannerGraphSpec, PlannerSpec
from runtime.devices.device import Stream
from runtime.devices.packed_vectors import PackedVectors
from runtime.engines.context import TickContext
from runtime.engines.engine import Execution, PlannerEngines
from runtime.tick.language.kv_cache import KvCache
from runtime.tick.language.live_sequence import LiveSequence
from runtime.tick.language.step_buffers import SequenceVectors, StepBuffers


class DraftGraph:
    """Drafts as many tokens as a verify takes, with the random numbers of the tokens themselves.

    It has rows of its own cache, the same as the planner's. Drafts that were wrong lie in them, so the last tokens are
    fed again first: as many as a verify can have brought.
    """

    def __init__(
        self,
        context: TickContext,
        engines: PlannerEngines,
        spec: PlannerSpec,
        graph: PlannerGraphSpec,
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

    def bind(self, engines: PlannerEngines, rows: int, sequences: int, span: int) -> list[Execution]:
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
