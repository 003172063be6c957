"""From the preparation to the table, on the simulated GPU: a step is killed, a disk is full, a library is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from simulator.fixture import child_environment
from typer.testing import CliRunner

from profiling.gpu_check import prepare
from profiling.gpu_check.__main__ import app
from profiling.gpu_check.figures import BEGIN, BRIEF, END
from profiling.gpu_check.steps import BUNDLES, check_steps
from runtime.devices.cuda_calls import Gpu

# What ends badly in the first run, and the builds that it needs.
RTX = ("rtx-build", "rtx-kernels", "rtx-close", "rtx-reload", "rtx-ticks")
BROKEN = ("tiny-build", "tiny-captured", "full-build", "full-kernels", *RTX)
# What the exporter leaves of random weights: no text, a null condition, the defaults of a turbo checkpoint.
RANDOM = {
    "text_encoder": False,
    "null": True,
    "guidance": 1.0,
    "sampler": 'shift = 3.0\ndcw = { mode = "double", low = 0.05, high = 0.02 }',
}
CARD = Gpu("card", "8.9", 100, 1 << 34, "13.0", "13.0", "")


def export(source: Path) -> None:
    """Tiny bundles in place of large ones, as the exporter leaves them."""
    for name in BUNDLES:
        more = {"planner": {"capacity": 256}} if name == "planner" else {}
        text = tiny_deployment(source / "made", **RANDOM, **more).read_text(encoding="utf-8")
        bundle = source / "made" / "tiny" / "bundle.toml"
        windows = bundle.read_text(encoding="utf-8").replace(
            "margin_frames = 1", "margin_frames = 1\nwindow_frames = 16"
        )
        bundle.write_text(windows, encoding="utf-8")  # shorter than the canvas
        shutil.move(source / "made" / "tiny", source / name)
        (source / f"{name}.toml").write_text(text.replace('"tiny"', f'"{name}"'), encoding="utf-8")
    shutil.rmtree(source / "made")


def kill_step(check: subprocess.Popen[str], word: str) -> None:
    """Kill the process of the step whose command has `word`, once it runs."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and check.poll() is None:
        for pid in Path(f"/proc/{check.pid}/task/{check.pid}/children").read_text(encoding="utf-8").split():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                return os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)
    pytest.fail(f"no step has {word}")


@pytest.mark.shipped
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full, or no /proc")
def test_from_the_preparation_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parts, dest = (tmp_path / name for name in ("source", "parts", "dest"))
    monkeypatch.setattr(prepare, "PART_BYTES", 2_000_000)
    monkeypatch.setattr(prepare.util, "find_spec", lambda name: None)  # engines of TensorRT-RTX are not built here
    export(source)
    done = CliRunner().invoke(app, ["prepare", "--source", str(source), "--out", str(parts), "--no-wheels"])
    assert done.exit_code == 0, done.output
    assert "not in the parts: engines of TensorRT-RTX" in done.output
    words = [sys.executable, str(parts / "unpack.py"), str(parts), str(dest)]
    unpacked = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "not carried: engines of TensorRT-RTX" in unpacked.stderr
    assert len(unpacked.stderr.splitlines()) == 1, unpacked.stderr

    shadow, out = tmp_path / "shadow", tmp_path / "out"
    (shadow / "tensorrt_rtx").mkdir(parents=True)
    (shadow / "tensorrt_rtx" / "__init__.py").write_text("raise ImportError('no libnvinfer')", encoding="utf-8")
    out.mkdir()
    (out / "full-kernels.json").symlink_to("/dev/full")
    code = dest / "code"
    simulated = child_environment(SIMULATED_CC="8.9")
    path = os.pathsep.join(map(str, (shadow, code, code / "runtime" / "api", simulated["PYTHONPATH"])))
    command = [sys.executable, "-m", "profiling.gpu_check", "--source", str(dest / "source"), "--out", str(out)]
    command += ["--minutes", "100"]  # no card, and a machine with other work
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=code, env={**simulated, "PYTHONPATH": path}, text=True, **pipes) as check:
        kill_step(check, "captured")
        seen = json.loads((out / "summary.json").read_bytes())  # while the check runs
        output, _ = check.communicate(timeout=1800)
    every = [step.name for step in check_steps(out, dest / "source", CARD)]
    assert [step["name"] for step in seen["steps"]] == every[:2]
    assert check.returncode == 1, output
    found = json.loads((out / "summary.json").read_bytes())
    ended = {step["name"]: (step["status"], step["note"]) for step in found["steps"]}
    assert list(ended) == every
    assert ended["tiny-captured"] == ("failed", "it was ended by SIGKILL")
    assert ended["full-kernels"][0] == "failed"
    assert "No space left on device" in ended["full-kernels"][1]
    assert ended["rtx-build"][0] == "failed"
    assert "a library cannot be loaded: no libnvinfer" in ended["rtx-build"][1]
    assert ended["rtx-ticks"] == ("left out", "rtx-build is not done")
    done_steps = {name for name, (status, _) in ended.items() if status == "done"}
    assert done_steps == {*every} - {*BROKEN} | {"tiny-build", "full-build"}, ended
    assert {figure["step"] for figure in found["figures"]} == done_steps
    assert {key for keys in BRIEF.values() for key in keys} <= {
        (each["step"], each["what"]) for each in found["figures"]
    }

    shutil.rmtree(shadow)
    (out / "full-kernels.json").unlink()
    command += ["--only", ",".join(BROKEN)]
    again = subprocess.run(
        command, cwd=code, env={**simulated, "PYTHONPATH": path}, text=True, capture_output=True, check=False
    )
    steps = json.loads((out / "summary.json").read_bytes())["steps"]
    assert [(step["name"], step["status"]) for step in steps] == [(name, "done") for name in BROKEN], again.stdout
    document = tmp_path / "README.md"
    marks = [mark.format(name) for name in ("brief", "figures") for mark in (BEGIN, END)]
    document.write_text("\n".join(marks), encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(found), encoding="utf-8")
    done = CliRunner().invoke(app, ["table", str(tmp_path / "summary.json"), "--document", str(document)])
    assert done.exit_code == 0, done.output
    brief, _, whole = document.read_text(encoding="utf-8").partition(marks[1])
    assert "Simulated GPU" in brief
    assert "–" not in brief, "all of it was measured"
    assert "| full-ticks | tick, depth 8 |" in whole
    assert "- rtx-build: failed, " in whole
