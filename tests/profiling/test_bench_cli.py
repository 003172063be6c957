"""tickrt-bench: a card for people, one JSON line for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Built
from helpers.factories import tiny_deployment
from typer.testing import CliRunner

from profiling.bench_cli import app
from runtime.tick.record import PHASES


def test_the_last_line_is_one_json_object(built: Built) -> None:
    command = [str(built().path), "--depth", "2", "--guidance", "3", "--dcw", "--ticks", "4"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    card = json.loads(result.stdout.splitlines()[-1])
    assert {"p50", "p95", "p99"} <= card["tick_ms"].keys()
    assert card["tick_ms"]["p50"] > 0 < card["engine_ms"]["p50"]
    assert (card["depth"], card["rows"], card["frames"], card["steps"]) == (2, 4, 32, 4)
    assert (card["variant"], card["budget"], card["allocations_per_tick"]) == ("guidance+dcw", 1.12, 0)
    assert card["overhead_inside_tick"] > 1.0
    assert card["within_budget"] == (card["overhead_ratio"] <= 1.12)
    assert card["audio_s_per_s"] == pytest.approx(card["finished_per_s"] * 32 / 25, rel=1e-3)
    assert len(card["engine_sha256"]) == 64
    assert card["versions"].keys() == {"tickrt", "python", "numpy", "onnxruntime"}
    assert "tick / engine" in result.stdout


def test_over_budget_fails_only_when_asked(built: Built) -> None:
    # On a decoder of a few microseconds the loop itself is most of a tick.
    command = [str(built().path), "--depth", "1", "--ticks", "4"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--fail-over-budget"]).exit_code == 1


def test_two_passes_take_two_executes(built: Built) -> None:
    command = [str(built().path), "--depth", "2", "--guidance", "3", "--ticks", "4"]
    fused, apart = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--two-pass"]))
    assert json.loads(fused.stdout.splitlines()[-1])["executes"] == 1
    assert json.loads(apart.stdout.splitlines()[-1])["executes"] == 2


def last_line(*command: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, list(command), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    card: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return card


def test_a_result_says_where_it_comes_from_and_its_phases_are_the_tick(built: Built) -> None:
    card = last_line(str(built().path), "--depth", "2", "--ticks", "5", "--features", "mask,gain", "--sessions", "2")
    assert (card["kind"], card["variant"], card["sessions"]) == ("tick", "gain+mask", 2)
    assert card["machine"].keys() >= {"cpu"}
    assert set(card["phases_ms"]) == set(PHASES)
    assert card["allocations_per_tick"] == 0


def test_a_saved_run_can_be_compared_with_and_another_shape_cannot(built: Built, tmp_path: Path) -> None:
    base, path = tmp_path / "base.json", str(built().path)
    saved = last_line(path, "--depth", "2", "--ticks", "3", "--json", str(base))
    assert json.loads(base.read_text()) == saved
    compared = last_line(path, "--depth", "2", "--ticks", "3", "--compare", str(base))
    assert compared["changes"]["tick_ms p50"]["base"] == saved["tick_ms"]["p50"]
    other = [path, "--depth", "1", "--ticks", "3", "--compare", str(base)]
    refused = CliRunner().invoke(app, other)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "depth: 2 there, 1 here" in refused.stderr
    strange = base.with_name("strange.json")
    strange.write_text(json.dumps({**saved, "engine_sha256": "00"}))
    other_engine = CliRunner().invoke(app, [path, "--depth", "2", "--ticks", "3", "--compare", str(strange)])
    assert (other_engine.exit_code, other_engine.stdout) == (2, "")
    assert "engine_sha256: 00 there" in other_engine.stderr
    assert last_line(*other, "--force")["changes"].keys() >= {"overhead_ratio"}


def test_a_sweep_measures_each_value_and_draws_them(built: Built, tmp_path: Path) -> None:
    plot = tmp_path / "sweep.svg"
    card = last_line(str(built().path), "--sweep", "depth=1,3", "--ticks", "2", "--plot", str(plot))
    assert [(point["depth"], point["rows"]) for point in card["points"]] == [(1, 1), (3, 3)]
    assert plot.read_text().count("<circle") == 4
    lengths = last_line(str(built().path), "--sweep", "frames=16,64", "--depth", "2", "--ticks", "2", "--dcw")
    assert [point["frames"] for point in lengths["points"]] == [16, 64]
    assert lengths["variant"] == "dcw"
    saved = tmp_path / "sweep.json"
    saved.write_text(json.dumps(card))
    again = last_line(str(built().path), "--sweep", "depth=1,3", "--ticks", "2", "--compare", str(saved))
    assert again["changes"]["depth 3, tick_ms p50"]["base"] == card["points"][1]["tick_ms"]["p50"]


def test_a_matrix_is_guided_unless_told_otherwise(built: Built) -> None:
    card = last_line(str(built().path), "--matrix", "--depth", "2", "--ticks", "2")
    assert (card["kind"], card["guidance"], len(card["techniques_off"])) == ("matrix", 3.0, 7)
    plain = last_line(str(built().path), "--matrix", "--depth", "2", "--ticks", "2", "--guidance", "1")
    assert "nothing is guided" in plain["techniques_off"]["fused guidance"]["idle_because"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["CONFIG", "--frames", "100000"], 2, "no shape range for 100000 frames"),
        (["CONFIG", "--features", "loudness"], 2, "no feature loudness"),
        (["CONFIG", "--sweep", "colour=1"], 2, "no sweep over 'colour'"),
        (["CONFIG", "--matrix", "--sweep", "depth=1"], 2, "two runs"),
        (["CONFIG", "--compare", "absent.json"], 2, "absent.json cannot be read"),
        (["CONFIG", "--sweep", "depth=1", "--plot", "a.png"], 2, "no name of an SVG file"),
        (["absent.toml"], 2, "no configuration at absent.toml"),
        (["UNBUILT"], 3, "is not built"),
        (["CONFIG", "--target", "tensorrt"], 3, "tensorrt"),
    ],
)
def test_mistakes_are_said_with_what_mends_them(
    built: Built, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    paths = {"CONFIG": str(built().path), "UNBUILT": str(tiny_deployment(tmp_path))}
    result = CliRunner().invoke(app, [paths.get(word, word) for word in arguments])
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr
    assert "fix: " in result.stderr
