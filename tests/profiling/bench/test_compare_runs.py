"""Changes between two runs, and runs that cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from profiling.bench.compare_runs import (
    SAME,
    changes,
    check_comparable,
    differences,
    figures,
    print_changes,
    read_result,
)
from runtime.errors import ConfigError

BASE: dict[str, Any] = {
    "kind": "tick", "bundle": "tiny", "target": "cpu", "machine": {"cpu": "a"}, "engine_sha256": "00", "depth": 2,
    "variant": "plain", "guidance": 1.0, "frames": 32, "steps": 4, "tokens": 16, "sessions": 0,
    "mode": "loop", "interval_s": 2.0,
    "tick_ms": {"p50": 10.0, "p95": 20.0, "p99": 0.0}, "finished_per_s": 4.0, "phases_ms": {"wait": 2.0},
    "commit": "abc", "versions": {"numpy": "1"},
}  # fmt: skip


def test_changes_of_every_figure() -> None:
    now = {**BASE, "tick_ms": {"p50": 11.0, "p95": 10.0, "p99": 1.0}, "finished_per_s": 5.0}
    found = changes(BASE, now)
    assert found["tick_ms p50"] == {"base": 10.0, "now": 11.0, "percent": 10.0}
    assert found["tick_ms p95"]["percent"] == -50.0
    assert found["tick_ms p99"]["percent"] is None
    assert found["finished_per_s"]["percent"] == 25.0
    assert found["phases_ms wait"]["percent"] == 0.0


@pytest.mark.parametrize("name", [name for name in SAME if name not in ("over", "values")])
def test_different_properties_are_named(name: str) -> None:
    other = {**BASE, name: "other"}
    check_comparable(BASE, dict(BASE))
    assert differences(BASE, other) == [f"{name}: {BASE[name]} in the saved run, other in this one"]
    with pytest.raises(ConfigError, match="--force"):
        check_comparable(BASE, other)


def test_another_commit_or_version_can_be_compared_and_is_shown() -> None:
    now = {**BASE, "commit": "def", "versions": {"numpy": "2"}}
    check_comparable(BASE, now)
    console = Console(record=True, width=100)
    print_changes(console, BASE, now)
    text = console.export_text()
    assert "compared with commit abc" in text
    assert "versions differ: {'numpy': '1'} before" in text


def test_slower_ticks_and_lower_throughput_are_red() -> None:
    now = {**BASE, "tick_ms": {"p50": 12.0, "p95": 19.0, "p99": 0.0}, "finished_per_s": 3.0}
    console = Console(record=True, width=100, force_terminal=True)
    print_changes(console, BASE, now)
    styled = console.export_text(styles=True)
    assert "\x1b[31m+20.0 %" in styled
    assert "\x1b[32m-5.0 %" in styled
    assert "\x1b[31m-25.0 %" in styled


def test_figures_of_ablations_sweeps_and_grids() -> None:
    entry = {"with_ms": {"p50": 1.0}, "without_ms": {"p50": 2.0}}
    assert figures({"ablations": {"a": entry}}) == {"a, with, p50": 1.0, "a, without, p50": 2.0}
    point = {"depth": 4, "tick_ms": {"p50": 3.0, "p95": 9.0}, "engine_ms": {"p50": 2.0}, "overhead_ms": 1.0}
    assert figures({"kind": "sweep", "over": "depth", "points": [point]}) == {
        "depth 4, tick_ms p50": 3.0,
        "depth 4, engine_ms p50": 2.0,
        "depth 4, overhead_ms": 1.0,
    }
    cell = {**point, "variant": "guidance", "overhead_ratio": 1.5}
    assert figures({"kind": "budgets", "points": [cell]}) == {
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


@pytest.mark.parametrize("text", [json.dumps(BASE, indent=1), f"a table\n\n{json.dumps(BASE)}\n"])
def test_a_saved_run_is_a_file_of_json_or_the_output_of_a_run(text: str, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    assert read_result(path) == BASE


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"kind": "tick"}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a result"):
        read_result(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
        read_result(tmp_path / "absent.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_result(tmp_path / "binary")
