"""An execute of many rows as several of fewer rows, each on a thread of its own.

A session over all cores meets after every operator: where a codec or a server uses a core too, every operator waits for
it. Parts meet once, at the end, and each keeps its rows in its core's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from math import prod

from runtime.base.errors import EngineDeadError, EngineError
from runtime.devices.device import Stream, Tensor
from runtime.engines.adapters import FACTORS_A, FACTORS_B
from runtime.engines.engine import Execution
from runtime.engines.manifest import TensorInfo

MIN_ROWS = 2


def row_parts(
    infos: Mapping[str, TensorInfo], tensors: Mapping[str, Tensor], number: int
) -> list[Mapping[str, Tensor]]:
    """`number` parts of a decoder's rows, over the same memory; one where a part would have less than MIN_ROWS.

    Rows are the first dimension of all its tensors, under any name, but for the factors of adapters, which
    belong to every part. A graph whose rows are fixed has one part.
    """
    names = infos.keys() - {FACTORS_A, FACTORS_B}
    rows = min(tensors[name].shape[0] for name in names)
    is_free = all(isinstance(infos[name].shape[0], str) and tensors[name].shape[0] == rows for name in names)
    if number == 1 or not is_free or rows < MIN_ROWS * number:
        return [tensors]
    # Parts differ by one row at most.
    ends = [rows * index // number for index in range(number + 1)]
    return [
        {name: _rows(tensor, *part) if name in names else tensor for name, tensor in tensors.items()}
        for part in pairwise(ends)
    ]


def _rows(tensor: Tensor, first: int, end: int) -> Tensor:
    return tensor.view(end - first, *tensor.shape[1:], start=first * prod(tensor.shape[1:]))


class PartsExecution:
    """Executions that run at once: the first on the caller's thread, the others on the pool's.

    whole: all rows in one execute. Where the parts fail and it does not, it runs from then on, and `refused` is told.
    """

    def __init__(
        self,
        parts: Sequence[Execution],
        pool: ThreadPoolExecutor,
        whole: Execution,
        refused: Callable[[EngineError], None],
    ) -> None:
        self._parts, self._pool, self._whole, self._refused = parts, pool, whole, refused

    def prepare(self, stream: Stream) -> bool:
        """Whether it is ready, as on the CPU always."""
        return self._whole.prepare(stream)

    def launch(self, stream: Stream) -> None:
        """Execute; blocks until all parts are done, also where one fails. Raises EngineError."""
        failed = self._launch_parts(stream)
        if failed is not None or not self._parts:
            self._whole.launch(stream)
        if failed is not None:
            self._parts = ()
            self._refused(failed)

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    def warm_up(self, stream: Stream) -> None:
        """Execute; nothing else needs to be prepared. Raises EngineError."""
        self.launch(stream)

    def release(self) -> None:
        """Does nothing."""

    def _launch_parts(self, stream: Stream) -> EngineError | None:
        """Execute the parts, if any is left; returns why they failed. Raises EngineDeadError."""
        others = [self._pool.submit(part.launch, stream) for part in self._parts[1:]]
        try:
            for part in self._parts[:1]:
                part.launch(stream)
            for other in others:
                other.result()
        except EngineDeadError:
            raise
        except EngineError as error:
            return error
        finally:
            # Until no thread uses the tensors, also where a part has failed: their owner may write to them next.
            wait(others)
        return None
