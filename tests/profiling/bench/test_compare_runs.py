"""Changes between two runs, which of them stand out of the noise, and runs that cannot be compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from profiling.bench.compare_runs import (
    SAME,
    changes,
    check_comparable,
    figures,
    print_changes,
    read_result,
)
from profiling.output import write_json
from profiling.significance import thinned
from runtime.base.errors import ConfigError

BASE: dict[str, Any] = {
    "kind": "tick", "bundle": "tiny", "target": "cpu", "machine": {"cpu": "a"}, "engine_sha256": "00", "depth": 2,
    "variant": "plain", "guidance": 1.0, "frames": 32, "steps": 4, "tokens": 16, "sessions": 0,
    "mode": "loop", "interval_s": 2.0,
    "tick_ms": {"p50": 10.0, "p95": 20.0, "p99": 0.0}, "finished_per_s": 4.0, "phases_ms": {"wait": 2.0},
    "commit": "abc", "versions": {"numpy": "1"},
}  # fmt: skip


def test_changes_of_every_figure() -> None:
    now = {**BASE, "tick_ms": {"p50": 11.0, "p95": 10.0, "p99": 1.0}, "finished_per_s": 5.0}
    found = {change.name: change for change in changes(BASE, now)}
    printed = print_changes(Console(quiet=True), BASE, now)
    assert printed["tick_ms p50"] == {
        "base": 10.0, "now": 11.0, "percent": 10.0, "interval": None, "verdict": None,
    }  # fmt: skip
    assert found["tick_ms p95"].percent == -50.0
    assert found["tick_ms p99"].percent is None
    assert found["finished_per_s"].percent == 25.0
    assert found["phases_ms wait"].percent == 0.0


@pytest.mark.parametrize("name", [name for name in SAME if name not in ("over", "values")])
def test_different_properties_are_named(name: str) -> None:
    other = {**BASE, name: "other"}
    check_comparable(BASE, dict(BASE))
    with pytest.raises(ConfigError) as raised:
        check_comparable(BASE, other)
    assert raised.value.what == f"the saved run cannot be compared: {name}: {BASE[name]} before, other now"
    assert "--force" in str(raised.value.fix)


def test_another_commit_or_version_can_be_compared_and_is_shown() -> None:
    now = {**BASE, "commit": "def", "versions": {"numpy": "2"}}
    check_comparable(BASE, now)
    console = Console(record=True, width=100)
    print_changes(console, BASE, now)
    text = console.export_text()
    assert "compared with commit abc" in text
    assert "the two differ in versions: {'numpy': '1'} before, {'numpy': '2'} now" in text


def measured(seed: int, *, ratio: float = 1.05, engine_ms: float = 10.0) -> dict[str, Any]:
    """A result with noisy samples of a tick and of the bare engine."""
    random = np.random.default_rng(seed)
    ratios = ratio * np.exp(random.normal(0.0, 0.03, 64))
    engines_ms = engine_ms * np.exp(random.normal(0.0, 0.03, 65))
    return {
        **BASE,
        "engine_ms": {"p50": float(np.median(engines_ms))},
        "overhead_ratio": float(np.median(ratios)),
        "samples": {"overhead_ratio": [thinned(list(ratios))], "engine_ms p50": [thinned(list(engines_ms))]},
    }


def printed(base: dict[str, Any], now: dict[str, Any], width: int = 100) -> str:
    console = Console(record=True, width=width)
    print_changes(console, base, now)
    return console.export_text()


def test_two_equal_runs_have_no_difference() -> None:
    text = printed(measured(1), measured(2))
    assert "no difference: no change stands out" in text
    assert "slower" not in text
    assert "faster" not in text


def test_a_slower_and_a_faster_tick_are_found() -> None:
    assert "slower: overhead_ratio, +" in printed(measured(1), measured(2, ratio=1.155))
    assert "faster: overhead_ratio, -" in printed(measured(1), measured(2, ratio=0.945))


def test_another_time_of_the_same_engine_is_the_machines() -> None:
    text = printed(measured(1), measured(2, engine_ms=13.0))
    assert "no difference" in text
    assert "machine: the same engine takes another time" in text
    forced = printed({**measured(1), "engine_sha256": "11"}, measured(2, engine_ms=13.0))
    assert "slower: engine_ms p50" in forced
    assert "machine:" not in forced


def test_a_run_saved_without_samples_is_compared_without_a_verdict() -> None:
    text = printed(BASE, measured(2, ratio=2.0))
    assert "not judged: one of the runs has no samples" in text
    assert "slower" not in text


def test_points_and_ablations_are_judged() -> None:
    base, now = measured(1), measured(2, ratio=1.3)
    point = {"depth": 4, "tick_ms": {"p50": 3.0}, "overhead_ms": 1.0}
    sweeps = [{**BASE, "kind": "sweep", "over": "depth", "points": [{**each, **point}]} for each in (base, now)]
    assert "slower: depth 4, overhead_ratio" in printed(*sweeps)
    entries = [
        {"with_ms": {"p50": 1.0}, "without_ms": {"p50": 2.0}, "ratio": each["overhead_ratio"],
         "samples": {"ratio": each["samples"]["overhead_ratio"]}}
        for each in (base, now)
    ]  # fmt: skip
    ablations = [{**BASE, "kind": "ablations", "ablations": {"batched step": entry}} for entry in entries]
    assert "saves more: batched step, ratio" in printed(*ablations)


def test_figures_stay_whole_in_a_narrow_terminal() -> None:
    long = {**measured(1), "phases_ms": {"a phase with a very long name that is cut": 1.0}}
    text = printed(long, long, width=80)
    assert re.search(r"^phases_ms .*….*is cut +1\.000 +1\.000 +\+0\.0 %", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_figures_of_ablations_sweeps_and_grids() -> None:
    entry = {"with_ms": {"p50": 1.0}, "without_ms": {"p50": 2.0}, "ratio": 1.9}
    assert figures({"ablations": {"a": entry}}) == {"a, with, p50": 1.0, "a, without, p50": 2.0, "a, ratio": 1.9}
    point = {
        "depth": 4, "tick_ms": {"p50": 3.0, "p95": 9.0}, "engine_ms": {"p50": 2.0}, "overhead_ms": 1.0,
        "overhead_ratio": 1.5,
    }  # fmt: skip
    assert figures({"kind": "sweep", "over": "depth", "points": [point]}) == {
        "depth 4, tick_ms p50": 3.0,
        "depth 4, engine_ms p50": 2.0,
        "depth 4, overhead_ms": 1.0,
        "depth 4, overhead_ratio": 1.5,
    }
    cell = {**point, "variant": "guidance"}
    assert figures({"kind": "budgets", "points": [cell]}) == {
        "depth 4, guidance, tick_ms p50": 3.0,
        "depth 4, guidance, engine_ms p50": 2.0,
        "depth 4, guidance, overhead_ms": 1.0,
        "depth 4, guidance, overhead_ratio": 1.5,
    }


def test_figures_of_live_sessions() -> None:
    heard = {"step_parameter": {"first": {"p50": 80.0, "p95": 120.0}, "full": {}}}
    run = {"sessions": 2, "control_to_sound_ms": heard, "underruns": 0, "server_cpu": 0.5}
    wanted = {
        "control_to_sound_ms step_parameter first p50": 80.0,
        "control_to_sound_ms step_parameter first p95": 120.0,
        "underruns": 0.0,
        "server_cpu": 0.5,
    }
    assert figures({"kind": "live", **run}) == wanted
    swept = figures({"kind": "live sweep", "over": "sessions", "points": [run]})
    assert swept == {f"sessions 2, {name}": value for name, value in wanted.items()}


def test_a_saved_run_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "base.json", BASE)
    assert read_result(tmp_path / "base.json") == BASE


@pytest.mark.parametrize(
    "change",
    [
        {"ablations": [1]},
        {"ablations": {"a": 1}},
        {"samples": {"tick_ms p50": 1}},
        {"samples": {"tick_ms p50": [["a"], [1]]}},
        {"samples": [1]},
        {"points": [{"depth": 1}]},
        {"comparisons": [None]},
        {"tick_ms": "fast"},
    ],
)
def test_a_result_with_other_types_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    write_json(tmp_path / "base.json", {**BASE, **change})
    with pytest.raises(ConfigError, match="is not a result"):
        read_result(tmp_path / "base.json")


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"kind": "tick"}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a result"):
        read_result(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        read_result(tmp_path / "absent.json")
    for data in (b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "binary").write_bytes(data)
        with pytest.raises(ConfigError, match="is not a result"):
            read_result(tmp_path / "binary")
