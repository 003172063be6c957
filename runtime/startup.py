"""The installed commands: Ctrl-C and SIGTERM end one with a message also while its modules are imported."""

from __future__ import annotations

import signal
import sys
from functools import partial
from importlib import import_module

COMMANDS = {
    "tickrt": "runtime.subcommands",
    "tickrt-build": "engine_build.cli",
    "tickrt-serve": "server.cli",
    "tickrt-generate": "runtime.cli",
    "tickrt-bench": "profiling.bench_cli",
    "tickrt-profile": "profiling.profile_cli",
    "tickrt-cluster": "server.scale.cli",
}


def run(command: str) -> None:
    """Import the module of a command and run its `main`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        import_module(COMMANDS[command]).main()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        raise SystemExit(130) from None  # as runtime.terminal.EXIT_INTERRUPTED, which may not be imported yet


tickrt, build, serve, generate, bench, profile, cluster = (partial(run, command) for command in COMMANDS)
