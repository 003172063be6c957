"""An execute of many rows as several of fewer rows, each on a thread of its own.

A session over all cores meets after every operator: where a codec or a server uses a core too, every operator waits for
it. Parts meet once, at the end, and each keeps its rows in its core's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from math import prod

from runtime.devices.device import Stream, Tensor
from runtime.engines.engine import Execution
from runtime.engines.manifest import TensorInfo

MIN_ROWS = 2

Infos = Mapping[str, TensorInfo]


def row_parts(inputs: Infos, outputs: Infos, tensors: Mapping[str, Tensor], number: int) -> list[Mapping[str, Tensor]]:
    """`number` parts of an execute's rows, over the same memory; one where a part would have less than MIN_ROWS.

    Rows are the outputs' first dimension; an input without it belongs to every part. A graph with first dimensions that
    have no name has one part.
    """
    infos = {**inputs, **outputs}
    axes = {name: info.shape[0] for name, info in infos.items() if info.shape}
    (axis,) = found if len(found := {axes.get(name) for name in outputs}) == 1 else (None,)
    named = isinstance(axis, str) and not any(axes[name] == f"{name}.0" for name in axes)
    rows = tensors[next(iter(outputs))].shape[0] if named else 0
    if number == 1 or rows < MIN_ROWS * number:
        return [tensors]
    # Parts differ by one row at most.
    ends = [rows * index // number for index in range(number + 1)]
    return [
        {name: _rows(tensor, *part) if axes.get(name) == axis else tensor for name, tensor in tensors.items()}
        for part in pairwise(ends)
    ]


def _rows(tensor: Tensor, first: int, end: int) -> Tensor:
    return tensor.view(end - first, *tensor.shape[1:], start=first * prod(tensor.shape[1:]))


class PartsExecution:
    """Executions that run at once: the first on the caller's thread, the others on the pool's."""

    def __init__(self, parts: Sequence[Execution], pool: ThreadPoolExecutor) -> None:
        self._parts, self._pool = parts, pool

    def prepare(self, stream: Stream) -> bool:
        """Whether all parts are ready."""
        are_ready = [part.prepare(stream) for part in self._parts]
        return all(are_ready)

    def launch(self, stream: Stream) -> None:
        """Execute; blocks until all parts are done, also where one fails. Raises EngineError."""
        others = [self._pool.submit(part.launch, stream) for part in self._parts[1:]]
        try:
            self._parts[0].launch(stream)
        finally:
            # Until no thread uses the tensors, also where this part has failed: their owner may write to them next.
            wait(others)
        for other in others:
            other.result()

    def warm_up(self, stream: Stream) -> None:
        """Execute; nothing else needs to be prepared. Raises EngineError."""
        self.launch(stream)

    def release(self) -> None:
        """Does nothing."""
