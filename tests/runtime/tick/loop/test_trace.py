"""Between the tick thread's loop and the device there are three calls, in two files."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Loops
from helpers.generations import make

from runtime.devices.device import Stream, Tensor
from runtime.tick.loop.tick_loop import TickLoop

TICK, LAUNCH = ("runtime/tick/loop/tick_thread.py", "tick"), ("runtime/tick/denoise/runner.py", "launch")
Call = tuple[str, str]


class TracedExecution:
    """Notes the calls that lead to each launch: (file, function), the outermost first."""

    def __init__(self, execution: Any, traces: list[list[Call]]) -> None:
        self._execution, self._traces = execution, traces

    def launch(self, stream: Stream) -> None:
        frames = [frame for frame in traceback.extract_stack() if frame.name != "<listcomp>"]
        self._traces.append([("/".join(Path(frame.filename).parts[-4:]), frame.name) for frame in frames])
        self._execution.launch(stream)


@pytest.fixture
def traces() -> list[list[Call]]:
    return []


@pytest.fixture
def traced(loops: Loops, traces: list[list[Call]], monkeypatch: pytest.MonkeyPatch) -> TickLoop:
    """A loop whose decoder notes the calls that lead to its launches."""
    loop = loops()
    bind = loop.engines.decoder.bind

    def bind_traced(tensors: Mapping[str, Tensor]) -> Any:
        return TracedExecution(bind(tensors), traces)

    monkeypatch.setattr(loop.engines.decoder, "bind", bind_traced)
    return loop


def test_run_reaches_the_device_in_three_calls(traced: TickLoop, traces: list[list[Call]]) -> None:
    done = threading.Event()
    traced.submit(make("a", steps=1), lambda event: done.set() if hasattr(event, "latents") else None)
    traced.start()
    assert done.wait(30)
    (trace,) = traces
    start = trace.index(("runtime/tick/loop/tick_thread.py", "run"))
    assert trace[start + 1 :] == [TICK, LAUNCH, trace[-1]]
