"""Differences between two profiles, and the limit on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.recorded_profiles import FOLDER, recorded
from typer.testing import CliRunner

from profiling.profile_cli import app
from profiling.reports.diff import Change, Saved, compare, read_saved, slower_than, unlike
from profiling.reports.trtexec_json import profile_records, write_json

OLD = Saved(
    {"gemm": 15.0, "norm": 1.01},
    {"layers.0.mlp": 16.01},
    {"a": 10.0, "b": 5.0, "gone": 1.0, "tiny": 0.01},
    16.0,
    {"target": "cpu"},
)
NEW = Saved(
    {"gemm": 17.0, "norm": 2.03},
    {"layers.0.mlp": 14.0, "layers.1.mlp": 5.03},
    {"a": 12.0, "b": 5.0, "new": 2.0, "tiny": 0.03},
    18.0,
    {"target": "cuda"},
)


def changes() -> dict[str, Change]:
    return {change.name: change for change in compare(OLD, NEW)}


def test_changes_by_scope() -> None:
    scopes = [change.scope for change in compare(OLD, NEW)]
    assert scopes == sorted(scopes, key=["whole", "kind", "module", "layer"].index)
    found = changes()
    assert found["sum of layers"].delta_ms == pytest.approx(3.02)
    assert found["wall time, p50"].percent == pytest.approx(12.5)
    assert found["gemm"].percent == pytest.approx(100 * 2 / 15)
    assert (found["gone"].after_ms, found["new"].before_ms) == (0.0, 0.0)
    assert found["new"].percent == float("inf")
    assert [change.name for change in compare(OLD, NEW) if change.scope == "layer"][:2] == ["a", "new"]


def test_slower_is_more_than_a_percentage_and_more_than_noise() -> None:
    slower = {change.name for change in slower_than(compare(OLD, NEW), 10)}
    assert slower == {"sum of layers", "wall time, p50", "gemm", "norm", "layers.1.mlp", "a", "new"}
    assert {change.name for change in slower_than(compare(OLD, NEW), 30)} == {"norm", "layers.1.mlp", "new"}
    assert slower_than(compare(OLD, OLD), 0) == []
    assert "gone" in {change.name for change in slower_than(compare(NEW, OLD), 10)}


def test_differences_of_machine_or_target_are_named() -> None:
    assert list(unlike(OLD, NEW)) == ["target: cpu and cuda"]
    assert list(unlike(OLD, OLD)) == []


def test_layers_of_one_name_are_summed(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_json(path, [{"count": 1}, {"name": "a", "averageMs": 1.0}, {"name": "a", "averageMs": 2.0}])
    saved = read_saved(path)
    assert saved.layers == {"a": 3.0}
    assert saved.sum_ms == sum(saved.kinds.values()) == 3.0
    assert saved.wall_ms is None


def test_by_medians(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    row = {"name": "a", "timeMs": 9.0, "averageMs": 3.0, "medianMs": 1.0, "percentage": 100.0}
    write_json(path, [{"count": 3}, row, {"name": "old", "averageMs": 2.0}])
    assert read_saved(path, median=True).layers == {"a": 1.0, "old": 2.0}
    assert read_saved(path).layers == {"a": 3.0, "old": 2.0}


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diff", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_command_fails_past_its_limit(tmp_path: Path) -> None:
    """The two recordings differ in one product, which takes twice as long in the second."""
    paths = []
    for version in ("10", "11"):
        paths.append(tmp_path / f"{version}.json")
        write_json(paths[-1], profile_records(recorded(version, tmp_path)))
    assert run(*paths)[0] == 0
    assert run(*paths, "--fail-over", "101")[0] == 0
    code, text = run(*paths, "--fail-over", "20")
    assert code == 1
    # Kernels have other numbers in the other build, and are the same layers.
    assert "slower by 100.0 %: layer up_1" in text
    assert "module layers.1.mlp" in text
    assert "0 new, 0 gone" in text
    assert run(paths[0], paths[0], "--fail-over", "0")[0] == 0


def test_trtexec_files_are_compared_by_layer() -> None:
    path = FOLDER / "profile_10.json"
    code, text = run(path, path)
    assert code == 0
    assert "sum of layers" in text
    assert "by module" not in text
    assert "before: a profile of trtexec's" in text


def test_other_files_are_an_error(tmp_path: Path) -> None:
    code, text = run(FOLDER / "layers_10.json", tmp_path / "nowhere.json")
    assert code == 2
    assert "is not a profile" in text
