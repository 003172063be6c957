"""Budgets, and what a card says of where it comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import Built

from profiling.bench.result import BUDGETS, budget_of, phases
from profiling.bench.workload import Workload, with_runtime
from profiling.provenance import commit, provenance
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice
from runtime.devices.machine import machine, machine_of
from runtime.engines.loading import open_engines
from runtime.tick.record import PHASES, TickRecord


def test_budgets_by_variant(built: Built) -> None:
    cpu = built()
    assert budget_of(cpu, Workload(1, 32, 4)) == BUDGETS["plain"] == 1.04
    assert budget_of(cpu, Workload(1, 32, 4, guidance=3.0)) == 1.08
    assert budget_of(cpu, Workload(1, 32, 4, dcw=True)) is None
    assert budget_of(cpu, Workload(1, 32, 4, more=frozenset({"mask"}))) is None
    assert budget_of(cpu.model_copy(update={"target": "tensorrt"}), Workload(1, 32, 4, guidance=3.0)) == 1.02


def test_phases_are_medians() -> None:
    records = [TickRecord(0, 1, 1, (16,), 1, ("plain",), 0, marks=(("wait", 0.0), ("", s))) for s in (1, 9, 2)]
    assert phases(records) == {**dict.fromkeys(PHASES, 0.0), "wait": 2000.0}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_code_and_says_whether_it_was_changed(tmp_path: Path) -> None:
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


def test_a_result_says_where_it_comes_from(built: Built) -> None:
    deployment = with_runtime(built(), batched_step=False)
    engines = open_engines(deployment, HostDevice())
    said = provenance(load_bundle(deployment.bundle), deployment, engines)
    engines.close()
    assert (said["bundle"], said["target"]) == ("tiny", "cpu")
    assert said["techniques"]["batched_step"] is False
    assert said["techniques"]["fused_guidance"] is True
    assert said["engine_sha256"] == engines.decoder.manifest.engine_sha256
    assert said["versions"].keys() == {"tickrt", "python", "numpy", "onnxruntime"}
    assert said["machine"] == machine_of("cpu") == machine()
