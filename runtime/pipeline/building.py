"""Opening a deployment whose engines may be missing: tickrt-build runs in a process of its own first."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from runtime.base.errors import BuildError, EngineMismatchError, EngineNotBuiltError
from runtime.base.threads import start_python
from runtime.config.deployment import PLAN_TARGETS, Deployment, Target
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
        from runtime.engines.tensorrt.trials import first_executes, refuse_crashing

        folder = deployment.engine_folder(chosen)
        if crashed := first_executes(folder, chosen):
            for name, how in crashed.items():
                logger.warning("engine %s ended its process (%s) at its first execute: it is built again", name, how)
            build_engines(deployment.path, chosen, quiet=quiet)
            refuse_crashing(folder, chosen)
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

    A separate process, because the runtime does not import the compilers. Interrupted, or where this process is killed,
    it removes the engine that it is building, and ends.
    """
    code = (
        "from runtime.base.threads import end_with_parent as begin; begin(); from engine_build.cli import main; main()"
    )
    arguments = [str(path), "--target", target]
    progress = subprocess.DEVNULL if quiet else sys.stderr if sys.stderr.isatty() else subprocess.PIPE
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with start_python(
            code, *arguments, stdin=subprocess.PIPE, stdout=progress, stderr=errors, text=True
        ) as process:
            try:
                for line in process.stdout or ():
                    print(line, end="", file=sys.stderr, flush=True)
                # Until the build has ended: its output has.
                process.wait()
            except KeyboardInterrupt:
                # Ctrl-C in a terminal has interrupted it already; otherwise it is when its stdin ends, behind this.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(CLEANUP_S)
                raise
        errors.seek(0)
        what, _, fix = f"\n{errors.read()}".rpartition("\nerror: ")[2].strip().partition("\n  fix: ")
    if process.returncode:
        raise BuildError(what or f"tickrt-build ended with status {process.returncode}", fix=fix)
