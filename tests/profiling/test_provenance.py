"""Properties of results: commit, switches, engine, versions, machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import Built

from profiling.bench.workload import with_runtime
from profiling.provenance import commit, provenance
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice
from runtime.devices.machine import machine, machine_of
from runtime.engines.loading import open_engines


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_the_code_is_marked_where_files_changed(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git(tmp_path, "init")
    assert commit(tmp_path) is None
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert commit(tmp_path / "code") == head
    (tmp_path / "code" / "a.py").write_text("b")
    assert commit(tmp_path / "code") == f"{head}+"
    (tmp_path / "installed").mkdir()
    assert commit(tmp_path / "installed") is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_the_properties_of_a_result(built: Built) -> None:
    deployment = with_runtime(built(), capture=False)
    engines = open_engines(deployment, HostDevice())
    found = provenance(load_bundle(deployment.bundle), deployment, engines.decoder.manifest)
    engines.close()
    assert (found["bundle"], found["target"]) == ("tiny", "cpu")
    assert found["switches"]["capture"] is False
    assert found["switches"]["fused_guidance"] is True
    assert found["engine_sha256"] == engines.decoder.manifest.engine_sha256
    assert found["versions"].keys() == {"tickrt", "python", "numpy", "onnxruntime"}
    assert found["machine"] == machine_of("cpu") == machine()
