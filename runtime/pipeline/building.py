"""Opening a deployment whose engines may be missing: tickrt-build runs in a process of its own first."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from runtime.config.deployment import Deployment
from runtime.config.targets import PLAN_TARGETS, Target
from runtime.errors import BuildError, EngineError, EngineMismatchError, EngineNotBuiltError
from runtime.pipeline.pipeline import Pipeline, open_pipeline

CLEANUP_S = 1.0

logger = logging.getLogger(__name__)


def open_tried_pipeline(deployment: Deployment, *, target: Target | None = None, quiet: bool = False) -> Pipeline:
    """As open_pipeline(), after each plan was executed once on this card, in a process of its own.

    Where a plan ends that process it is built again, at a lower optimization level, once. Raises ConfigError,
    BuildError, EngineError that names the plan.
    """
    chosen = target or deployment.target
    if chosen in PLAN_TARGETS:
        from runtime.engines.tensorrt.trials import first_executes

        folder = deployment.engine_folder(chosen)
        if crashed := first_executes(folder, chosen):
            for name, how in crashed.items():
                logger.warning("engine %s ended its process (%s) at its first execute: it is built again", name, how)
            build_engines(deployment.path, chosen, quiet=quiet)
            crashed = first_executes(folder, chosen)
        for name, how in crashed.items():
            raise EngineError(
                f"engine {name!r} ended its process ({how}) at its first execute on this card, at every optimization "
                "level that was tried",
                fix="another precision for its kind of engine in [build], or another release of the library",
            )
    return open_pipeline(deployment, target=target)


def open_built_pipeline(deployment: Deployment, *, target: Target | None = None, quiet: bool = False) -> Pipeline:
    """As open_tried_pipeline(), but engines that are missing or do not fit this machine are built first.

    The progress of the build goes to standard error, unless it is `quiet`. Raises ConfigError, BuildError, EngineError.
    """
    try:
        return open_tried_pipeline(deployment, target=target, quiet=quiet)
    except (EngineNotBuiltError, EngineMismatchError):
        build_engines(deployment.path, target or deployment.target, quiet=quiet)
        return open_tried_pipeline(deployment, target=target, quiet=quiet)


def build_engines(path: Path, target: Target, *, quiet: bool = False) -> None:
    """Run tickrt-build for a deployment file. Raises BuildError with the message of the command.

    A separate process, because the runtime does not import the compilers. It imports modules from where this one does,
    and not from the working directory. Interrupted, it removes the engine that it is building.
    """
    arguments = [str(path), "--target", target]
    command = [sys.executable, "-P", "-c", "from engine_build.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    progress = subprocess.DEVNULL if quiet else sys.stderr if sys.stderr.isatty() else subprocess.PIPE
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(command, stdout=progress, stderr=errors, text=True, env=environment) as process:
            try:
                for line in process.stdout or ():
                    print(line, end="", file=sys.stderr, flush=True)
                # Until the build has ended: its output has.
                process.wait()
            except KeyboardInterrupt:
                _interrupt(process)
                raise
        errors.seek(0)
        what, _, fix = f"\n{errors.read()}".rpartition("\nerror: ")[2].strip().partition("\n  fix: ")
    if process.returncode:
        raise BuildError(what or f"tickrt-build ended with status {process.returncode}", fix=fix)


def _interrupt(process: subprocess.Popen[str]) -> None:
    """End the build. Ctrl-C in a terminal has interrupted it already."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(CLEANUP_S)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
