"""The check of a GPU: its steps on the simulated GPU, as a user runs them, and its figures."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Built
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from helpers.processes import is_running
from helpers.storage_faults import faults
from simulator.fixture import child_environment
from typer.main import get_command
from typer.testing import CliRunner

from engine_build.request import read_options
from profiling.bench_cli import app as bench_app
from profiling.gpu_check.__main__ import DOCUMENTS, app
from profiling.gpu_check.card import measure_decodes
from profiling.gpu_check.figures import (
    BEGIN,
    BRIEF,
    END,
    SNR,
    TABLES,
    Figure,
    Summary,
    brief,
    figures_markdown,
    put_tables,
    read_summary,
    show_times,
    step_figures,
)
from profiling.gpu_check.running import CheckOutcome, CheckStep, run_steps
from profiling.gpu_check.steps import (
    BENCH,
    BUNDLES,
    DEPLOYMENTS,
    PROFILE,
    TINY,
    check_steps,
    is_rtx_card,
    write_deployments,
)
from profiling.profile_cli import app as profile_app
from runtime.base.errors import ConfigError
from runtime.commands.terminal import Terminal
from runtime.config.deployment import load_deployment
from runtime.devices.cuda_calls import Gpu
from runtime.engines.manifest import manifest_path, read_manifest, write_manifest
from runtime.pipeline.pipeline import open_pipeline

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
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)  # its engines are not built here
    export(source)
    done = CliRunner().invoke(
        app, ["prepare", "--source", str(source), "--out", str(parts), "--no-wheels", "--part-mb", "2"]
    )
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
    every = [step.name for step in check_steps(out, dest / "source", gpu("8.9"))]
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


APPS = {BENCH: bench_app, PROFILE: profile_app}


def gpu(capability: str) -> Gpu:
    return Gpu("card", capability, 100, 1 << 34, "13.0", "13.0", "")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Every bundle, as if it had been prepared."""
    path = tiny_deployment(tmp_path / "source")
    for name in BUNDLES:
        (path.parent / f"{name}.toml").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return path.parent


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.3", "12.0"])
def test_the_steps_fit_into_ten_minutes_and_into_the_commands(tmp_path: Path, source: Path, capability: str) -> None:
    steps = check_steps(tmp_path, source, gpu(capability))
    names = [step.name for step in steps]
    assert 540 <= sum(step.limit_s for step in steps) <= 600
    assert len(set(names)) == len(names)
    assert all(names.index(need) < names.index(step.name) for step in steps for need in step.needs)
    assert not any(step.missing for step in steps)
    for step in steps:
        if step.words[0] in APPS:
            app: Any = get_command(APPS[step.words[0]])
            name, *words = step.words[1:]
            if name not in app.commands:  # the first command's name may be left out
                name, words = next(iter(app.commands)), [name, *words]
            context = app.make_context("command", [name, *words])
            app.commands[name].make_context(name, words, parent=context)


@pytest.mark.parametrize(
    ("cc", "is_rtx", "has_fp8"),
    [("8.6", True, False), ("8.9", True, True), ("9.0", False, True), ("10.3", False, True), ("12.0", True, True)],
)
def test_engines_of_tensorrt_rtx_and_fp8_are_measured_where_a_card_has_them(
    tmp_path: Path, source: Path, cc: str, is_rtx: bool, has_fp8: bool
) -> None:
    assert not is_rtx_card(None)
    assert is_rtx_card(gpu(cc)) == is_rtx
    names = {step.name for step in check_steps(tmp_path, source, gpu(cc))}
    assert {"rtx-build", "second-build"} & names == ({"rtx-build"} if is_rtx else {"second-build"})
    assert {"fp8-build", "fp8-ticks"} & names == ({"fp8-build", "fp8-ticks"} if has_fp8 else set())


def test_what_is_not_prepared_is_left_out_with_the_command_that_prepares_it(tmp_path: Path) -> None:
    missing = {step.name: step.missing for step in check_steps(tmp_path, tmp_path, gpu("9.0"))}
    assert not any(missing[name] for name in ("card", "tiny-build", "tiny-captured"))  # it is shipped
    assert missing["full-build"] == "full is not prepared: python -m profiling.gpu_check prepare"
    assert sum(map(bool, missing.values())) == len(missing) - 3
    steps = {step.name for step in check_steps(tmp_path, tmp_path, gpu("8.9"))}
    assert {name for keys in BRIEF.values() for name, _ in keys} <= steps, "what one asks first"


def test_deployments_differ_in_what_their_steps_compare(tmp_path: Path, source: Path) -> None:
    write_deployments(tmp_path, source)
    found = {name: load_deployment(tmp_path / f"{name}.toml") for name in DEPLOYMENTS}
    canvas = found["full"].loaded_bundle.latents.canvas_frames
    for name, deployment in found.items():
        assert deployment.bundle == source / "tiny", name
        assert all(shape.frames.min == shape.frames.max == canvas for shape in deployment.shapes), name
        assert [shape.rows.max for shape in deployment.shapes] == ([8, 16] if name == "second" else [8])
        read_options(deployment).check_target(deployment.target)
    codec = {name: read_options(each).of("codec") for name, each in found.items() if name.startswith("codec-")}
    assert {(each.precision, each.optimization_level) for each in codec.values()} == {
        ("fp16", 1), ("fp16", 3), ("tf32", 3), ("fp32", 3),
    }  # fmt: skip
    assert found["full"].runtime.capture
    assert not found["full-plain"].runtime.capture
    assert found["full"].engines == found["full-plain"].engines
    assert len({each.engines for each in found.values()}) == len(found) - 1


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
    found = (step for step in check_steps(out, source, gpu("8.9")) if step.name.startswith("rtx-"))
    steps = [replace(step, limit_s=300) for step in found]
    write_deployments(out, source, ["rtx"])
    outcomes = list(run_steps(steps, out, 60))
    assert [(each.name, each.status) for each in outcomes] == [(step.name, "done") for step in steps], outcomes
    measured = {(each.step, each.what): each for step in steps for each in step_figures(step)}
    assert sum(step == "rtx-kernels" for step, _ in measured) == 9
    assert measured["rtx-kernels", "compiled, not capturable"].verdict == "kept"
    assert measured["rtx-close", "end of a context that compiles"].value > 0
    assert measured["rtx-reload", "largest difference to before"].value < 1e-2


def test_a_process_that_hangs_is_ended_with_what_its_threads_do() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "threading.py" in ended.stderr


SECONDS = 0.05


def test_windows_are_decoded_by_urgency_without_ticks_and_beside_full_batches(built: Built) -> None:
    with open_pipeline(built(text_encoder=False, null=True)) as pipeline:
        found = measure_decodes(pipeline, SECONDS)
    for where in ("alone", "beside"):
        assert found[where].keys() == {"playing", "background"}
        assert all(0 < times["p50"] <= times["p95"] for times in found[where].values())
    assert found["ticks_per_s"] >= pipeline.bundle.sampler.steps / SECONDS
    assert found["difference"] <= found["allowed"]


MEASURED_CARD = {
    "name": "A card",
    "memory_bytes": 24_000_000_000,
    "driver_version": "13.0",
    "versions": {"tensorrt-cu13": "11.4"},
}
ABOUT = {"commit": "abc", "date": "2026-01-02 03:04 UTC", "card": MEASURED_CARD}


def summary() -> Summary:
    outcomes = [CheckOutcome("full-ticks", "done", 3.0), CheckOutcome("fp8-build", "failed", 1.0, "no | kernel")]
    return Summary(dict(ABOUT), outcomes, [Figure("full-ticks", "tick, depth 4", 14.25, "ms")])


def step(tmp_path: Path, kind: str, result: object) -> CheckStep:
    path = tmp_path / "step.json"
    path.write_text(json.dumps(result), encoding="utf-8")
    return CheckStep("step", (), 1.0, kind=kind, result=path)


TICK = {
    "tick_ms": {"p50": 3.0}, "engine_ms": {"p50": 2.9}, "overhead_ratio": 1.03, "free_mib": 900, "resident_mib": 90.0,
    "budget": {"overhead_ratio": 1.02},
}  # fmt: skip
TIMES = {"playing": {"p95": 2.0}, "background": {"p95": 9.0}}
KERNELS = [{"name": "_gemm_mha_v2", "medianMs": 1.0}, {"name": "gemm", "medianMs": 3.0}]


@pytest.mark.parametrize(
    ("kind", "result", "figures"),
    [
        (
            "bench",
            {"points": [{**TICK, "depth": 4}, {**TICK, "depth": 8, "budget": {}}]},
            [
                ("tick, depth 4", 3.0, "ms", ""),
                ("bare engine, depth 4", 2.9, "ms", ""),
                ("overhead_ratio, depth 4", 1.03, "", "missed"),
                ("memory of the process, depth 4", 90.0, "MiB", ""),
                ("memory of the card left, depth 4", 900, "MiB", ""),
                ("tick, depth 8", 3.0, "ms", ""),
                ("bare engine, depth 8", 2.9, "ms", ""),
                ("memory of the process, depth 8", 90.0, "MiB", ""),
                ("memory of the card left, depth 8", 900, "MiB", ""),
            ],
        ),
        (
            "profile",
            [{"tickrt": {"wall_p50_ms": 4.5}}, *KERNELS],
            [("execute", 4.5, "ms", ""), ("layers", 2, "", ""), ("in fused attention", 25.0, "%", "")],
        ),
        (
            "decodes",
            {"alone": TIMES, "beside": TIMES, "ticks_per_s": 70.0, "difference": 0.1, "allowed": 0.05},
            [
                ("decoding, playing, without ticks, p95", 2.0, "ms", ""),
                ("decoding, background, without ticks, p95", 9.0, "ms", ""),
                ("decoding, playing, beside ticks, p95", 2.0, "ms", ""),
                ("decoding, background, beside ticks, p95", 9.0, "ms", ""),
                ("ticks beside", 70.0, "1/s", ""),
                ("largest difference to generations alone", 0.1, "", "missed"),
            ],
        ),
    ],
)
def test_results_have_figures_against_their_limits(
    tmp_path: Path, kind: str, result: object, figures: list[tuple[str, float, str, str]]
) -> None:
    found = step_figures(step(tmp_path, kind, result))
    assert [(each.what, each.value, each.unit, each.verdict) for each in found] == figures


@pytest.mark.parametrize("kind", ["card", "captured", "bench", "decodes", "live", "profile", "planner"])
def test_a_result_of_another_kind_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"step\.json is not a result of step"):
        step_figures(step(tmp_path, kind, {"other": 1}))


def test_a_summary_is_read_as_it_was_saved(tmp_path: Path) -> None:
    summary().save(tmp_path)
    assert read_summary(tmp_path / "summary.json") == summary()
    assert not summary().is_good
    text = (tmp_path / "summary.txt").read_text(encoding="utf-8")
    assert "14.25 ms" in text
    assert "no | kernel" in text
    (tmp_path / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a summary"):
        read_summary(tmp_path / "summary.json")


def test_a_full_disk_leaves_the_summary_before(tmp_path: Path) -> None:
    summary().save(tmp_path)
    later, before = summary(), (tmp_path / "summary.json").read_bytes()
    later.outcomes.append(CheckOutcome("later", "done", 1.0))
    with faults(tmp_path, 1, errno.ENOSPC, stay=True), pytest.raises(OSError, match="No space left"):
        later.save(tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "summary.txt"}


def test_the_table_is_put_between_its_marks_again_and_again(tmp_path: Path) -> None:
    document, out = tmp_path / "README.md", tmp_path / "summary.json"
    (brief_begin, brief_end), (begin, end) = ((BEGIN.format(name), END.format(name)) for name in TABLES)
    between = f"\n{brief_begin}\nold\n{brief_end}\n"
    document.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n{between}", encoding="utf-8")
    summary().save(tmp_path)
    for _ in range(2):
        done = CliRunner().invoke(app, ["table", str(out), "--document", str(document)])
        assert done.exit_code == 0, done.output
    text = document.read_text(encoding="utf-8")
    between = between.replace("old", brief(summary()))
    assert text == f"before\n\n{begin}\n{figures_markdown(summary())}\n{end}\n\nafter\n{between}"
    assert "A card (24 GB), CUDA 13.0, tensorrt-cu13 11.4, commit abc, 2026-01-02 03:04 UTC." in text
    assert "| full-ticks | tick, depth 4 | 14.25 ms |  |  |" in text
    assert "- fp8-build: failed, no | kernel" in text
    assert "| tick of 60 s at depth 1 / 4 / 8 | – / 14.2 / – ms |" in text
    document.write_text("none", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no place for a table"):
        put_tables(document, summary())


@pytest.mark.parametrize(("path", "name"), [*zip(DOCUMENTS, TABLES, strict=True)])
def test_our_documents_have_a_place_for_one_each(tmp_path: Path, path: Path, name: str) -> None:
    copy = tmp_path / "copy.md"
    shutil.copy(path, copy)
    put_tables(copy, summary())
    once = copy.read_text(encoding="utf-8")
    put_tables(copy, summary())
    assert copy.read_text(encoding="utf-8") == once
    given = path.read_text(encoding="utf-8")
    parts = [text.partition(BEGIN.format(name))[::2] for text in (given, once)]
    assert parts[0][0] == parts[1][0]
    assert parts[0][1].partition(END.format(name))[2] == parts[1][1].partition(END.format(name))[2] != ""
    assert TABLES[name](summary()) in once


def test_what_codecs_lose_is_decibels_of_their_manifests(tmp_path: Path, built: Built) -> None:
    manifest = read_manifest(manifest_path(built().engine_folder(), "codec_decode"))
    error = {**manifest.error, "rms_rel": 1e-3}
    assert error.keys() == manifest.error.keys(), "it is measured when an engine is built"
    write_manifest(manifest_path(tmp_path, "codec_decode"), manifest.model_copy(update={"error": error}))
    found = {
        each.what: each.value for each in step_figures(CheckStep("step", (), 1.0, kind="engines", result=tmp_path))
    }
    assert found[SNR] == pytest.approx(60.0)


def test_the_times_of_steps_are_told_before_they_run(capsys: pytest.CaptureFixture[str]) -> None:
    show_times([CheckStep("one", (), 30.0), CheckStep("two", (), 60.0)], Terminal())
    assert [line.split() for line in capsys.readouterr().out.splitlines()[3:]] == [
        ["one", "30", "0.5"],
        ["two", "60", "1.5"],
    ]
