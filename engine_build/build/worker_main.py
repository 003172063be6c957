"""A process for what may crash: `python -m engine_build.build_process`.

A line on stdin is a request, {"work": "plan" or "smoke", "request": ...}; the end of stdin, also the parent's own end,
cancels and ends it. Events go to stdout, one JSON object per line: {"event": "log", "severity", "text"}, and for each
request at last {"event": "done", "facts"} or {"event": "failed", "what", "fix"}. Whatever else writes to stdout goes to
stderr.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from queue import Queue
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from engine_build.build.worker import PlanRequest, SmokeRequest
from runtime.errors import BuildError, TickError

Tell = Callable[[str, str], None]

CHUNK_BYTES = 1 << 16


def main() -> None:
    """Do what is asked, until the end of input."""
    events = _own_stdout()
    requests: Queue[str | None] = Queue()
    cancelled = threading.Event()
    threading.Thread(target=_read, args=(requests, cancelled), daemon=True).start()
    while (line := requests.get()) is not None:
        _emit(events, **_answer(json.loads(line), events, cancelled))


def _answer(asked: dict[str, Any], events: TextIO, cancelled: threading.Event) -> dict[str, Any]:
    """Do one piece of work; the event that ends it."""

    def tell(severity: str, text: str) -> None:
        _emit(events, event="log", severity=severity, text=text)

    try:
        return {"event": "done", "facts": WORKS[asked["work"]](asked["request"], cancelled, tell)}
    except TickError as error:
        return {"event": "failed", "what": error.what, "fix": error.fix}


def _plan(request: dict[str, Any], cancelled: threading.Event, tell: Tell) -> dict[str, Any]:
    from engine_build.build.tensorrt_compiler import build_plan, versions

    return {**build_plan(PlanRequest.model_validate(request), cancelled, tell), "versions": versions()}


def _smoke(request: dict[str, Any], cancelled: threading.Event, tell: Tell) -> dict[str, Any]:
    """Open the engine as the runtime does, and run every sample through it; the memory that took, weights and all."""
    from engine_build.build.verify import inputs_at, save_arrays
    from runtime.devices.cuda import CudaDevice
    from runtime.engines.loading import open_engine

    asked = SmokeRequest.model_validate(request)
    device = CudaDevice()
    try:
        free_bytes = device.free_bytes
        engine = open_engine(asked.folder, asked.name, device)
        for index, sizes in enumerate(asked.samples):
            if cancelled.is_set():
                raise BuildError("cancelled")
            outputs = engine.run(inputs_at(asked.inputs, asked.samples, index))
            _check_finite(asked.name, sizes, outputs)
            if index < len(asked.results):
                save_arrays(asked.results[index], outputs)
        used_bytes = free_bytes - device.free_bytes
        engine.close()
    finally:
        device.close()
    return {"memory_bytes": used_bytes}


def _check_finite(name: str, sizes: dict[str, int], outputs: dict[str, NDArray[Any]]) -> None:
    for output, values in outputs.items():
        if not np.isfinite(values).all():
            where = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
            raise BuildError(f"{name}: {output} at {where}: values that are not finite", fix="check the weights")


WORKS: dict[str, Callable[[dict[str, Any], threading.Event, Tell], dict[str, Any]]] = {"plan": _plan, "smoke": _smoke}


def _own_stdout() -> TextIO:
    """Where events go; stdout itself becomes stderr, because libraries print as they like."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _read(requests: Queue[str | None], cancelled: threading.Event) -> None:
    """Requests, and the end of them. From the file: a thread in sys.stdin would hold up the interpreter's end."""
    data = b""
    while more := os.read(0, CHUNK_BYTES):
        *lines, data = (data + more).split(b"\n")
        for line in lines:
            requests.put(line.decode())
    cancelled.set()
    requests.put(None)


def _emit(events: TextIO, **event: Any) -> None:
    print(json.dumps(event), file=events, flush=True)


if __name__ == "__main__":
    main()
