"""Where a result comes from: commit, target, engine, versions, machine. What is not equal cannot be compared."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.devices.machine import machine_of
from runtime.engines.engine import EngineSet

HERE = Path(__file__).parent
GIT_TIMEOUT_S = 10.0


def provenance(bundle: Bundle, deployment: Deployment, engines: EngineSet) -> dict[str, Any]:
    """What every result says of itself; `techniques` are the runtime's switches."""
    manifest, runtime = engines.decoder.manifest, deployment.runtime
    return {
        "bundle": bundle.name,
        "target": deployment.target,
        "commit": this_commit(),
        "techniques": {
            name: getattr(runtime, name)
            for name in (
                "fused_guidance", "event_wait", "capture", "batched_step", "frozen_conditions", "ticks_in_flight",
            )
        },
        "engine_sha256": manifest.engine_sha256,
        "versions": {name: metadata.version(name) for name in ("tickrt", "numpy")}
        | {"python": platform.python_version()}
        | manifest.tool_versions,
        "machine": machine_of(deployment.target),
    }  # fmt: skip


def commit(folder: Path = HERE) -> str | None:
    """The commit that the code in this folder is at, "+" behind it where it was changed since; None outside of git."""
    if _git(folder, "ls-files", "--error-unmatch", ".") is None:
        return None
    return _git(folder, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")


@cache
def this_commit() -> str | None:
    """The commit of the code that runs: asked for when a run begins, it stays what it was."""
    return commit()


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
