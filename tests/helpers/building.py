"""One engine of a deployment, built alone."""

from __future__ import annotations

from pathlib import Path

from engine_build.compile.builder import Build
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import RebuildDecision
from engine_build.compile.worker import BuildLog, Worker
from engine_build.request import BuildRequest
from runtime.engines.manifest import Manifest


def build_engine(
    decision: RebuildDecision,
    request: BuildRequest,
    folder: Path,
    environment: BuildEnvironment,
    log: BuildLog | None = None,
    worker: Worker | None = None,
) -> Manifest:
    """As Build.build_engine, with a build process of its own where one is needed and none given. Raises BuildError."""
    with Worker() as own:
        return Build(request, folder, environment, worker or own).build_engine(decision, log)
