"""The installed commands: Ctrl-C and SIGTERM end one with a message also while its modules are imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # As typing has it, which takes long to import.
if TYPE_CHECKING:
    from types import TracebackType


def _interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The hook of an error that ends the process: after Ctrl-C a sentence and the exit code in place of a traceback."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("error: interrupted\n")
    raise SystemExit(130)  # as runtime.commands.terminal.EXIT_INTERRUPTED, which may not be imported yet


# Before all other imports: each takes long enough to be interrupted.
sys.excepthook = _interrupted

import gc  # noqa: E402
import signal  # noqa: E402
from functools import partial  # noqa: E402
from importlib import import_module  # noqa: E402

COMMANDS = {
    "tickrt": "runtime.commands.subcommands",
    "tickrt-build": "engine_build.cli",
    "tickrt-serve": "server.cli",
    "tickrt-generate": "runtime.commands.generate",
    "tickrt-bench": "profiling.bench_cli",
    "tickrt-profile": "profiling.profile_cli",
    "tickrt-cluster": "server.cluster.cli",
    "tickrt-mcp": "server.protocols.mcp.cli",
}


def run(command: str) -> None:
    """Import the module of a command and run its `main`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gc.disable()  # imports leave no garbage, and looking for it is a seventh of their time
    module = import_module(COMMANDS[command])
    gc.freeze()
    gc.enable()
    module.main()


tickrt, build, serve, generate, bench, profile, cluster, mcp = (partial(run, command) for command in COMMANDS)
