"""A process for what may crash: `python -m engine_build.build_process plan|smoke`.

The first line on stdin is the request as JSON; the end of stdin, also the parent's own end, cancels. Events go to
stdout, one JSON object per line: {"event": "log", "severity", "text"}, at last {"event": "done", "facts"} or {"event":
"failed", "what", "fix"}. Whatever else writes to stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from engine_build.build_request import PlanRequest, SmokeRequest
from runtime.errors import BuildError, TickError

Tell = Callable[[str, str], None]

CHUNK_BYTES = 1 << 16


def main(work: str) -> int:
    """Do one piece of work; 0 where it succeeded."""
    events = _own_stdout()
    request = _first_line()
    cancelled = threading.Event()
    threading.Thread(target=_wait_for_end, args=(cancelled,), daemon=True).start()

    def tell(severity: str, text: str) -> None:
        _emit(events, event="log", severity=severity, text=text)

    try:
        facts = WORKS[work](request, cancelled, tell)
    except TickError as error:
        _emit(events, event="failed", what=error.what, fix=error.fix)
        return 1
    _emit(events, event="done", facts=facts)
    return 0


def _plan(request: str, cancelled: threading.Event, tell: Tell) -> dict[str, Any]:
    from engine_build.tensorrt_builder import build_plan, versions

    return {**build_plan(PlanRequest.model_validate_json(request), cancelled, tell), "versions": versions()}


def _smoke(request: str, cancelled: threading.Event, tell: Tell) -> dict[str, Any]:
    """Open the engine as the runtime does, and run every sample through it."""
    from engine_build.tensorrt_target import save_arrays
    from runtime.device import open_device
    from runtime.engine import open_engine

    asked = SmokeRequest.model_validate_json(request)
    device = open_device("tensorrt")
    try:
        engine = open_engine(asked.folder, asked.name, device)
        for feeds, results in zip(asked.feeds, asked.results, strict=True):
            if cancelled.is_set():
                raise BuildError("cancelled")
            with np.load(feeds) as arrays:
                save_arrays(results, engine.run(dict(arrays)))
        engine.close()
    finally:
        device.close()
    return {}


WORKS: dict[str, Callable[[str, threading.Event, Tell], dict[str, Any]]] = {"plan": _plan, "smoke": _smoke}


def _own_stdout() -> TextIO:
    """Where events go; stdout itself becomes stderr, because libraries print as they like."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _first_line() -> str:
    """The request. From the file itself: a thread that waits in sys.stdin would hold up the interpreter's end."""
    data = b""
    while not data.endswith(b"\n") and (more := os.read(0, CHUNK_BYTES)):
        data += more
    return data.decode()


def _wait_for_end(cancelled: threading.Event) -> None:
    while os.read(0, CHUNK_BYTES):
        pass
    cancelled.set()


def _emit(events: TextIO, **event: Any) -> None:
    print(json.dumps(event), file=events, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
