"""Steps end for themselves: killed, out of time, without room on the disk, without a library; nothing outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.paths import ROOT

from profiling.gpu_check.running import CheckOutcome, CheckStep, run_steps

TIME = ("timeit", "-n", "1", "-r", "1")
WELL = (*TIME, "pass")
SLEEP = (*TIME, "import time; time.sleep(600)")
KILLED = (*TIME, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
# A grandchild in a session of its own, whose number is the step's output.
START = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    "print('child', child.pid, flush=True)"
)
FULL = Path("/dev/full")


def run(steps: list[CheckStep], folder: Path, minutes: float = 10.0) -> list[CheckOutcome]:
    return list(run_steps(steps, folder, minutes))


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def still_running(pids: list[str]) -> bool:
    """Whether one runs; what is killed takes a moment to end."""
    deadline = time.monotonic() + 3
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return any(map(is_running, pids))


def test_a_step_that_fails_ends_only_those_that_need_it(tmp_path: Path) -> None:
    steps = [
        CheckStep("first", ("json.tool", str(tmp_path / "missing.json")), 60),
        CheckStep("after", WELL, 60, needs=("first",)),
        CheckStep("killed", KILLED, 60),
        CheckStep("away", WELL, 60, missing="it is not prepared: prepare it"),
        CheckStep("last", WELL, 60, needs=("elsewhere",)),
    ]
    found = run(steps, tmp_path)
    assert [each.status for each in found] == ["failed", "left out", "failed", "left out", "done"]
    assert "missing.json" in found[0].note
    assert found[1].note == "first is not done"
    assert found[2].note == "it was ended by SIGKILL"
    assert found[3].note == "it is not prepared: prepare it"
    assert "best of 1" in (tmp_path / "last.log").read_text()


def test_a_library_that_is_missing_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ("profiling.gpu_check.card", "facts", "--json", str(tmp_path / "facts.json"))
    (found,) = run([CheckStep("card", words, 60)], tmp_path)
    assert found.status == "failed"
    assert found.note == "package cuda-python is not installed, and using a GPU needs it"
    assert "fix: pip install" in (tmp_path / "card.log").read_text()


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_told_and_ends_no_other_step(tmp_path: Path) -> None:
    (tmp_path / "first.log").symlink_to(FULL)
    steps = [CheckStep("first", (*TIME, "raise SystemExit(5)"), 60), CheckStep("last", WELL, 60)]
    first, last = run(steps, tmp_path)
    assert (first.status, last.status) == ("failed", "done")
    assert first.note.endswith("first.log: No space left on device")


def test_steps_have_their_time_and_what_those_before_have_left(tmp_path: Path) -> None:
    found = run([CheckStep("quick", WELL, 60), CheckStep("slow", WELL, 0.001)], tmp_path)
    assert [each.status for each in found] == ["done", "done"]
    (slow,) = run([CheckStep("slow", SLEEP, 0.05)], tmp_path)
    assert (slow.status, slow.note) == ("out of time", "it was ended after 0 s")
    (late,) = run([CheckStep("late", WELL, 60)], tmp_path / "none", 0.0)
    assert (late.status, late.note) == ("out of time", "0 minutes were over before it began")


@pytest.mark.parametrize("how", ["", "; import os; os.abort()"], ids=["done", "crashed"])
def test_nothing_outlives_its_step(tmp_path: Path, how: str) -> None:
    (found,) = run([CheckStep("step", (*TIME, START + how), 60)], tmp_path)
    child = (tmp_path / "step.log").read_text().partition("child ")[2].split()[0]
    assert found.status == ("failed" if how else "done")
    assert not still_running([child])


def test_nothing_outlives_a_check_that_is_killed(tmp_path: Path) -> None:
    words = (*TIME, f"{START}; import os; print('step', os.getpid(), flush=True); import time; time.sleep(600)")
    code = (
        "from pathlib import Path; from profiling.gpu_check.running import *; "
        f"list(run_steps([CheckStep('step', {words!r}, 600)], Path({str(tmp_path)!r}), 10))"
    )
    log, deadline = tmp_path / "step.log", time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL) as check:
        while not (log.exists() and "step " in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(check.pid, signal.SIGKILL)
    pids = [line.split()[1] for line in log.read_text().splitlines()]
    assert len(pids) == 2
    assert not still_running(pids)
