"""Properties of every result: commit, target, runtime switches, engine, versions, machine."""

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
from runtime.engines.manifest import Manifest

PACKAGE = Path(__file__).parent
GIT_TIMEOUT_S = 10.0
SWITCHES = {"fused_guidance", "capture", "ticks_in_flight"}


def provenance(bundle: Bundle, deployment: Deployment, manifest: Manifest) -> dict[str, Any]:
    """The properties of a result; `switches` are the deployment's [runtime] values that ablations change.

    manifest: the decoder's.
    """
    return {
        "bundle": bundle.name,
        "target": deployment.target,
        "commit": this_commit(),
        "switches": deployment.runtime.model_dump(include=SWITCHES),
        "threads": deployment.runtime.threads,
        "engine_sha256": manifest.engine_sha256,
        "versions": {name: metadata.version(name) for name in ("tickrt", "numpy")}
        | {"python": platform.python_version()}
        | manifest.tool_versions,
        "machine": machine_of(deployment.target),
    }


def commit(folder: Path = PACKAGE) -> str | None:
    """The commit of the code in a folder, with "+" where files have changed since; None outside of a git repository."""
    if _git(folder, "ls-files", "--error-unmatch", ".") is None:
        return None
    return _git(folder, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")


@cache
def this_commit() -> str | None:
    """The commit of the running code, read once: call it when a run begins."""
    return commit()


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
