"""A build for the simulated GPU, as a task of a process that does nothing else."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

from engine_build.compile import builder
from engine_build.compile.worker import BuildLog, OnLog, Task, Worker
from runtime.config.deployment import Target, load_deployment


class Here(Worker):
    """Runs its tasks in the process that builds."""

    def run(self, task: Task, request: Any, log: BuildLog, limit_s: float = math.inf) -> Any:
        return task(request, threading.Event(), log.add)


def build(request: tuple[Path, Target], cancelled: threading.Event, on_log: OnLog) -> None:
    """Task: build a deployment's engines."""
    import simulated_machine

    builder.Worker = Here  # type: ignore[misc]
    builder.build_deployment(load_deployment(request[0]), target=request[1])
    simulated_machine.machine().finish()
