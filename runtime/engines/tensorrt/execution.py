"""An Execution on TensorRT: launched on a shared context, warmed up and captured on its own."""

from __future__ import annotations

from runtime.devices.device import Stream
from runtime.engines.tensorrt.context_pool import ContextPool
from runtime.engines.tensorrt.library import Context, ContextSettings


class TensorRtExecution:
    """One set of shapes and addresses. Launches use the shape range's shared context, warm-ups and captures another."""

    def __init__(self, pool: ContextPool, settings: ContextSettings) -> None:
        self._pool, self._settings = pool, settings
        self._own: Context | None = None

    def prepare(self, stream: Stream) -> bool:
        """True: a plan has all its kernels."""
        return True

    def launch(self, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        self._pool.shared(self._settings.range_index).launch(self._settings, stream)

    def make(self) -> None:
        """Make a context of this execution alone, in any thread. Raises EngineError."""
        self._own = self._own or self._pool.take(self._settings.range_index)

    def warm_up(self, stream: Stream) -> None:
        """Put one execute on the stream, on a context of this execution alone. Raises EngineError."""
        self._own = self._own or self._pool.take(self._settings.range_index)
        self._own.launch(self._settings, stream)

    def release(self) -> None:
        """Return the context of this execution alone; graphs that captured it must be closed."""
        if self._own is not None:
            self._pool.give_back(self._own)
            self._own = None
