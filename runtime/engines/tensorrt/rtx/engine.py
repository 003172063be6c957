"""The Engine on TensorRT-RTX: with fallback kernels until those of a shape were compiled, in the background.

A thread executes each new shape on a context that no tick uses, and hands the context over: no tick is the first that
executes a shape on a context that compiles.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from runtime.base.errors import CaptureError, EngineDeadError, EngineError
from runtime.devices.device import Device, Stream, Tensor
from runtime.engines.manifest import Manifest
from runtime.engines.tensorrt.engine import ContextPool, TensorRtEngine, TensorRtExecution
from runtime.engines.tensorrt.library import ContextSettings, Shape
from runtime.engines.tensorrt.rtx.loaded_engine import FALLBACK, SPECIALIZED, RtxContext, RtxLoadedEngine
from runtime.engines.tensorrt.rtx.specializer import Job, Specializer, close_specializer, open_specializer

# Shapes per engine that have a context for launches without a graph.
MOST_SHAPES = 128

log = logging.getLogger(__name__)


class RtxContextPool(ContextPool):
    """The contexts of one plan: with fallback kernels per shape range, with kernels of their own per shape."""

    def __init__(self, plan: RtxLoadedEngine, device: Device, stream: Stream, specializer: Specializer) -> None:
        super().__init__(plan, device, stream)
        self._rtx_plan, self._specializer = plan, specializer
        self._of_shapes: dict[tuple[Shape, ...], Job] = {}
        self._abandoned: list[Job] = []
        self._has_failed = False

    def plain(self, settings: ContextSettings, *, begins: bool) -> RtxContext | None:
        """The context for launches of these shapes without a graph, once its kernels are there. Raises EngineDeadError.

        begins: begin to compile them where nothing has.
        """
        key = tuple(settings.shapes.values())
        if key not in self._of_shapes:
            if not begins or len(self._of_shapes) >= MOST_SHAPES:
                return None
            self._of_shapes[key] = self.specialize(settings)
        return self.result(self._of_shapes[key])

    def specialize(self, settings: ContextSettings) -> Job:
        """Begin to compile the kernels of these shapes; `result` gives the context that has executed them."""
        index, plan = settings.range_index, self._rtx_plan
        tensors = dict(zip(settings.addresses, settings.tensors, strict=True))
        shapes = {name: tensors[name].shape for name in plan.inputs}
        idle = self._take_idle(index)
        pending = None if idle is None else self._stream.record()

        def work() -> RtxContext:
            if pending is not None:
                # On the specializer's thread: until ticks that still use the idle context have run.
                pending.wait()
            return self._specializer.execute(plan, index, shapes, idle, SPECIALIZED, self.activation)

        return self._specializer.submit(work)

    def result(self, job: Job) -> RtxContext | None:
        """A job's context; None as long as it is not done, and where it failed. Raises EngineDeadError."""
        if not job.done() or job.cancelled():
            return None
        error = job.exception()
        if error is None:
            return job.result()
        if isinstance(error, EngineDeadError) or not isinstance(error, EngineError):
            raise error
        if not self._has_failed:
            self._has_failed = True
            log.warning("%s: a shape goes on with slower kernels: %s", self._plan.name, error)
        return None

    def abandon(self, job: Job) -> None:
        """Take back a job whose result is not waited for."""
        # It had not begun.
        if job.cancel():
            return
        if self._is_closed:
            job.add_done_callback(_close_context)
        else:
            self._abandoned.append(job)

    def close(self) -> None:
        """As ContextPool.close; the context of a job that runs now is closed by its thread: this does not wait."""
        super().close()
        for job in (*self._of_shapes.values(), *self._abandoned):
            self.abandon(job)
        self._of_shapes, self._abandoned = {}, []

    def _take_idle(self, index: int) -> RtxContext | None:
        for job in [job for job in self._abandoned if job.done()]:
            self._abandoned.remove(job)
            if (context := self.result(job)) is not None:
                self.give_back(context)
        idle = self._idle.get(index)
        found = idle.pop() if idle else None
        assert found is None or isinstance(found, RtxContext)
        return found

    def _new_context(self, index: int) -> RtxContext:
        """A context with fallback kernels, which has executed. Waits for the thread."""
        plan, least = self._rtx_plan, self._rtx_plan.ranges[index].least
        execute = self._specializer.execute
        return self._specializer.submit(lambda: execute(plan, index, least, None, FALLBACK, self.activation)).result()


class RtxExecution(TensorRtExecution):
    """One set of shapes and addresses. Only an execution that is to be captured takes a context of its own.

    Others share the context of their shapes; what is launched once compiles nothing.
    """

    def __init__(self, pool: RtxContextPool, settings: ContextSettings) -> None:
        super().__init__(pool, settings)
        self._rtx_pool = pool
        self._job: Job | None = None
        self._has_launched = self._is_warm = False

    def prepare(self, stream: Stream) -> bool:
        """Whether it can be warmed up and captured now; begins to compile what it lacks. Raises EngineDeadError."""
        own = self._take_own()
        return own is not None and own.is_capturable(stream)

    def launch(self, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""
        context = self._rtx_pool.plain(self._settings, begins=self._has_launched and self._job is None)
        self._has_launched = True
        (context or self._pool.shared(self._settings.range_index)).launch(self._settings, stream)

    def make(self) -> None:
        """Does nothing: `prepare` begins in a thread of its own what warm_up waits for."""

    def warm_up(self, stream: Stream) -> None:
        """Put one execute on the stream, on a context of this execution alone; waits for its kernels.

        The first time in no capture: TensorRT-RTX is asked behind it. Raises EngineError, CaptureError where it cannot
        be captured.
        """
        own = self._take_own()
        if self._job is not None:
            wait([self._job])
            own = self._take_own()
        if own is None:
            raise EngineError("the kernels of a shape are not compiled")
        own.launch(self._settings, stream)
        if not self._is_warm and not own.is_capturable(stream):
            raise CaptureError("TensorRT-RTX says that this execute is not stream capturable")
        self._is_warm = True

    def release(self) -> None:
        """Return the context that prepare took; graphs that captured it must be closed."""
        super().release()
        self._is_warm = False
        if self._job is not None:
            self._rtx_pool.abandon(self._job)
            self._job = None

    def _take_own(self) -> RtxContext | None:
        if self._own is None:
            if self._job is None:
                self._job = self._rtx_pool.specialize(self._settings)
            self._own = self._rtx_pool.result(self._job)
            if self._own is not None:
                self._job = None
        assert self._own is None or isinstance(self._own, RtxContext)
        return self._own


class RtxEngine(TensorRtEngine):
    """One plan of TensorRT-RTX. See TensorRtEngine."""

    def __init__(self, manifest: Manifest, folder: Path, *, device: Device, **options: Any) -> None:
        self._specializer = open_specializer(folder, device)
        try:
            super().__init__(manifest, folder, device=device, **options)
        except BaseException:
            close_specializer(self._specializer)
            raise

    def bind(self, tensors: Mapping[str, Tensor]) -> RtxExecution:
        """Bind every input and output by address. Raises ShapeError, EngineError."""
        assert isinstance(self._pool, RtxContextPool)
        return RtxExecution(self._pool, self._plan.settings(tensors))

    def close(self) -> None:
        """As TensorRtEngine.close; with the last engine of a folder its kernels are saved."""
        self._pool.close()
        close_specializer(self._specializer)
        super().close()

    def _load(self, folder: Path, fix: str) -> RtxLoadedEngine:
        return RtxLoadedEngine(self.manifest, folder, fix, self._specializer.cache)

    def _new_pool(self) -> RtxContextPool:
        assert isinstance(self._plan, RtxLoadedEngine)
        return RtxContextPool(self._plan, self._device, self._stream, self._specializer)


def _close_context(job: Job) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().close()
