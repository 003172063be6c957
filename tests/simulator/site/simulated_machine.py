"""The simulated device: streams, events, captures and graphs, and the rules of CUDA that it checks.

The packages `cuda` and `tensorrt` beside this module use it. A call that the real device refuses raises
`RefusedError`, which the packages turn into a status or False. A call that the real device takes, with undefined
results, raises `RuleBroken`; `finish()` raises it again, in case it was caught.

Options (keyword of `reset`, or environment for child processes):
    late           SIMULATED_LATE          work runs when it is waited for (default), else at once
    gpu_name       SIMULATED_GPU_NAME      "Simulated GPU"
    cc             SIMULATED_CC            "9.0"
    sm_count       SIMULATED_SM_COUNT      132
    memory_bytes   SIMULATED_MEMORY_BYTES  size of the device memory
    devices        SIMULATED_DEVICES       1
    greatest_priority  SIMULATED_GREATEST_PRIORITY  of streams: -5; the least is 0
    no_driver      SIMULATED_NO_DRIVER     there is no driver
    driver         SIMULATED_DRIVER        the newest CUDA version that the driver supports: 13000
    faults         SIMULATED_FAULTS        JSON: {"oom_at_allocation": [3], "async_error_at": [7], ...}: the calls that
                                           fail, counted from 1; "async_error": 700, the error code
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from simulated_memory import RuleBroken
from simulated_parts import (
    CAPTURE_INVALIDATED,
    CAPTURE_UNSUPPORTED,
    CAPTURE_WRONG_THREAD,
    GREATEST_PRIORITY,
    INVALID_VALUE,
    LEAST_PRIORITY,
    MEMORY_ALLOCATION,
    RELAXED,
    Capture,
    Graph,
    RefusedError,
    Stream,
)  # fmt: skip
from simulated_streams import Streams

# Exit status of a command that broke a rule.
BROKEN_STATUS = 70
# The environment variable with a folder in which a process that broke a rule tells the one that started it.
CHILDREN = "SIMULATED_CHILDREN"
__all__ = ["GREATEST_PRIORITY", "LEAST_PRIORITY", "Machine", "RefusedError", "RuleBroken", "machine", "reset"]


class Machine(Streams):
    """One simulated GPU and its driver. Every method may be called from any thread."""

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream captures its work."""
        return self.stream(stream).capture is not None

    def capture_broken(self, stream: int, reason: str) -> None:
        """Invalidate the stream's capture, if it has one."""
        capture = self.stream(stream).capture
        if capture is not None:
            capture.broken = capture.broken or reason

    def begin_capture(self, handle: int, mode: int) -> None:
        """Begin to capture the stream's work. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            stream = self.stream(handle)
            if stream.handle == 0:
                raise RefusedError(CAPTURE_UNSUPPORTED, "the legacy default stream cannot be captured")
            if stream.capture is not None:
                raise RefusedError(INVALID_VALUE, "the stream is capturing already")
            stream.capture = Capture(mode, threading.get_ident())
            self.spend("capture")

    def end_capture(self, handle: int) -> int:
        """The captured graph's handle. Raises RefusedError."""
        with self._lock:
            stream = self.stream(handle)
            capture = stream.capture
            if capture is None:
                raise RefusedError(INVALID_VALUE, "the stream is not capturing")
            if capture.mode != RELAXED and capture.thread != threading.get_ident():
                raise RefusedError(CAPTURE_WRONG_THREAD, "another thread began the capture")
            stream.capture = None
            if capture.broken:
                raise RefusedError(CAPTURE_INVALIDATED, capture.broken)
            return self._add_graph(Graph(tuple(capture.works)))

    def instantiate(self, handle: int) -> int:
        """An executable graph. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self.counters["instantiations"] += 1
            self.spend("graph")
            if self.strikes("oom_at_instantiation"):
                raise RefusedError(MEMORY_ALLOCATION, "instantiating a graph")
            return self._add_graph(Graph(self._graph(handle, executable=False).works, executable=True))

    def upload_graph(self, handle: int, stream: int) -> None:
        """Put what a launch of the graph needs on the device. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self.stream(stream)
            self._graph(handle, executable=True)
            if self.strikes("oom_at_graph_upload"):
                raise RefusedError(MEMORY_ALLOCATION, "uploading a graph")
            self.counters["graph_uploads"] += 1

    def launch_graph(self, handle: int, stream: int) -> None:
        """Put a whole graph on a stream. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self._check_seen("launching a graph")
            graph = self._graph(handle, executable=True)
            target = self.stream(stream)
            if target.capture is not None:
                self.break_rule("a graph is launched into a capture, which is not supported here")
            for address, _ in (pair for work in graph.works for pair in (*work.reads, *work.writes)):
                allocation = self._memory.find(address)
                if allocation is None or allocation.is_freed:
                    self.break_rule(f"a graph is launched after memory that it uses was freed ({address:#x})")
            self.sim_launch(target, graph)

    def sim_launch(self, stream: Stream, graph: Graph) -> None:
        def done() -> None:
            graph.running -= 1

        self.counters["graph_launches"] += 1
        graph.running += 1
        try:
            self._submit(stream, graph.works, "graph", done)
        except RuleBroken:
            graph.running -= 1
            raise

    def destroy_graph(self, handle: int, *, executable: bool) -> None:
        """Release a graph, or an executable one that is not running."""
        with self._lock:
            if self._graph(handle, executable=executable).running and not self.sticky:
                self.break_rule("a graph is destroyed while it is running")
            del self.graphs[handle]
            if executable:
                self.spend("end of a graph")

    def _add_graph(self, graph: Graph) -> int:
        handle = next(self._handles)
        self.graphs[handle] = graph
        return handle

    def _graph(self, handle: int, *, executable: bool) -> Graph:
        graph = self.graphs.get(handle)
        if graph is None or graph.executable != executable:
            self.break_rule(f"{handle:#x} is not {'an executable' if executable else 'a'} graph; was it destroyed?")
        assert graph is not None
        return graph

    # The end.

    def finish(self) -> None:
        """Check at the end: no broken rule, no unchecked error, no open capture, no work of destroyed streams."""
        if self.broken:
            raise self.broken[0]
        unseen = [code for code in self._errors.values() if code]
        assert not unseen or self.sticky, f"errors {unseen} were returned and never checked"
        for stream in self.streams.values():
            assert stream.capture is None, f"stream {stream.handle:#x} is still capturing"
            orphans = stream.is_destroyed and stream.queue
            assert not orphans or self.sticky, f"stream {stream.handle:#x} was destroyed before its work was done"
        for allocation in self._memory.living():
            assert allocation.guards_are_whole(), f"written outside of the memory at {allocation.address:#x}"

    def alive(self) -> dict[str, int]:
        """The number of objects that exist, by kind; empty after everything was closed."""
        kinds = Counter(allocation.kind for allocation in self._memory.living())
        streams = sum(1 for stream in self.streams.values() if stream.handle and not stream.is_destroyed)
        counts = {"streams": streams, "events": len(self.events), "graphs": len(self.graphs), **kinds}
        return {name: count for name, count in counts.items() if count}


_machine: Machine | None = None


def machine() -> Machine:
    """The process's machine. A process that never calls `reset` is a command: it fails if it broke a rule."""
    global _machine
    if _machine is None:
        _machine = Machine()
        atexit.register(_fail_if_broken, _machine, os.environ.get(CHILDREN, ""))
        os.environ[CHILDREN] = tempfile.mkdtemp()
    return _machine


def broken_by_children(folder: str) -> list[str]:
    """What processes that were started with CHILDREN as this folder have broken; the folder is removed."""
    found = [file.read_text(encoding="utf-8") for file in Path(folder).iterdir()]
    shutil.rmtree(folder)
    return found


def _fail_if_broken(mine: Machine, parents: str) -> None:
    """parents: the folder in which this process tells its parent."""
    found = [*map(str, mine.broken), *broken_by_children(os.environ[CHILDREN])]
    if not found or mine is not _machine:
        return
    if parents:
        with contextlib.suppress(FileNotFoundError):  # it has ended
            (Path(parents) / str(os.getpid())).write_text(found[0], encoding="utf-8")
    print(f"simulated GPU: {found[0]}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(BROKEN_STATUS)


def reset(**options: Any) -> Machine:
    """A new machine in place of the old one."""
    global _machine
    _machine = Machine(**options)
    return _machine
