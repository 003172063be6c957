"""A step's process: a module as `python -m` runs it, which also ends every process that it has started."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

MARK = "GPU_CHECK_STEP"


def end_all(mark: str) -> None:
    """Kill every other process that has `mark` in its environment, also those that these start meanwhile."""
    while found := [pid for pid in _marked(f"{MARK}={mark}".encode()) if pid != os.getpid()]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(mark: bytes) -> list[int]:
    """Processes with a variable; none where the system has no /proc. Those that have ended have no environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def main() -> None:
    """Run the module and its arguments that the command line names. Standard input is a pipe of the parent's."""
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    end_all(os.environ[MARK])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
