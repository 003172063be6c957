"""The steps of RTX cards on the simulated one, in their own processes, and the end of a process that hangs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from simulator.fixture import child_environment

from profiling.gpu_check.figures import figures
from profiling.gpu_check.running import run_steps
from profiling.gpu_check.steps import TINY, check_steps, write_deployments
from runtime.devices.cuda_calls import Gpu

CARD = Gpu("card", "8.9", 100, 1 << 34, "13.0", "13.0", "")
HANGS = """
from threading import Event
from profiling.gpu_check.rtx import watchdog
with watchdog(0.1):
    Event().wait()
"""


@pytest.mark.shipped
def test_the_steps_of_rtx_cards_are_done_on_the_simulated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    out.mkdir()
    path = tiny_deployment(source, text_encoder=False)
    path.rename(source / f"{TINY}.toml")
    for name, value in child_environment(SIMULATED_CC="8.9").items():
        monkeypatch.setenv(name, value)
    # Their own limits are those of a card.
    found = (step for step in check_steps(out, source, CARD) if step.name.startswith("rtx-"))
    steps = [replace(step, limit_s=300) for step in found]
    write_deployments(out, source, ["rtx"])
    outcomes = list(run_steps(steps, out, 60))
    assert [(each.name, each.status) for each in outcomes] == [(step.name, "done") for step in steps], outcomes
    measured = {(each.step, each.what): each for step in steps for each in figures(step)}
    assert sum(step == "rtx-kernels" for step, _ in measured) == 9
    assert measured["rtx-kernels", "compiled, not capturable"].verdict == "kept"
    assert measured["rtx-close", "end of a context that compiles"].value > 0
    assert measured["rtx-reload", "largest difference to before"].value < 1e-2


def test_a_process_that_hangs_is_ended_with_what_its_threads_do() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "threading.py" in ended.stderr
