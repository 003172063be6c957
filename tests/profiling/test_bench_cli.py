"""tickrt-bench: every command once; tables, and JSON where it is asked for; what is refused before it is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from typer.testing import CliRunner

from profiling.bench_cli import app, of_a_checkout
from runtime.base.errors import ConfigError
from runtime.tick.clock import PHASES


def saved(path: Path, *command: str) -> dict[str, Any]:
    """The result of a command that prints tables."""
    done = CliRunner().invoke(app, [*command, "--json", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "{" not in done.stdout
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def result_of(*command: str) -> dict[str, Any]:
    """The result of a command that prints it and nothing else."""
    done = CliRunner().invoke(app, [*command, "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_json_goes_to_standard_output_where_asked_for_and_nothing_else(built: Built) -> None:
    command = [str(built().path), "--depth", "4", "--guidance", "3", "--dcw", "--ticks", "4"]
    done = CliRunner().invoke(app, [*command, "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert "tick / engine" in done.stderr
    plain = CliRunner().invoke(app, ["tick", *command], catch_exceptions=False)
    assert "tick / engine" in plain.stdout
    assert "{" not in plain.stdout
    assert plain.stderr.startswith("1/1 depth 4, 32 frames, guidance+dcw: ")
    assert {"p50", "p95", "p99"} <= result["tick_ms"].keys()
    assert result["tick_ms"]["p50"] > 0 < result["engine_ms"]["p50"]
    assert (result["depth"], result["rows"], result["frames"], result["steps"]) == (4, 8, 32, 4)
    assert (result["kind"], result["variant"], result["allocations_per_tick"]) == ("tick", "guidance+dcw", 0)
    assert result["budget"] == {"overhead_ms": 0.9, "overhead_ratio": 1.08}
    low_ms, high_ms = result["overhead_ms_quartiles"]
    assert low_ms <= result["overhead_ms"] <= high_ms
    assert result["overhead_inside_tick"] > 1.0
    assert result["within_budget"] == (result["overhead_ratio"] <= 1.08 and result["overhead_ms"] <= 0.9)
    assert result["audio_s_per_s"] == pytest.approx(result["finished_per_s"] * 32 / 25, rel=1e-3)
    assert len(result["engine_sha256"]) == 64
    assert result["versions"].keys() == {"tickrt", "python", "numpy", "onnxruntime"}
    assert result["machine"].keys() >= {"cpu"}
    assert set(result["phases_ms"]) == set(PHASES)


def test_over_budget_fails_only_when_asked(built: Built) -> None:
    # On a decoder of a few microseconds the loop is most of a tick: the ratio is over budget.
    command = [str(built().path), "--depth", "1", "--ticks", "4"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--fail-over-budget"]).exit_code == 1
    grid = ["budgets", str(built().path), "--repeats", "1", "--ticks", "1", "--fail-over-budget"]
    assert CliRunner().invoke(app, grid).exit_code == 1, "a point of several is over it"
    without = ["churn", str(built().path), "0.5", "--depth", "2", "--ticks", "4", "--fail-over-budget"]
    assert CliRunner().invoke(app, without).exit_code == 0


def test_every_other_mode_measures_what_it_says(built: Built) -> None:
    path, planner = str(built().path), {"capacity": 96, "thinking": False}
    command = [path, "--depth", "2", "--guidance", "3", "--ticks", "4"]
    fused, apart = (result_of(*command, *more) for more in ([], ["--two-pass"]))
    assert (fused["executes"], apart["executes"]) == (1, 2)
    churn = result_of("churn", path, "0.5,0.9", "--depth", "3", "--ticks", "12")
    assert (churn["kind"], churn["ticks"], churn["steps"]) == ("churn", 12, 4)
    assert [(point["load"], point["plain"], point["budget"]) for point in churn["points"]] == [
        (0.5, 1.0, {}), (0.9, 1.0, {})
    ]  # fmt: skip
    ablations = ["ablations", path, "--depth", "2", "--ticks", "2"]
    guided, plain = result_of(*ablations), result_of(*ablations, "--guidance", "1")
    assert (guided["kind"], guided["guidance"], len(guided["ablations"])) == ("ablations", 3.0, 7)
    assert "guidance is off" in plain["ablations"]["fused guidance"]["no_effect_because"]
    planned = built(planner=planner, more=FEW_VARIANTS, codec=False, text_encoder=False)
    result = result_of("planner", str(planned.path), "--depth", "2", "--ticks", "2")
    assert (result["kind"], result["ticks"], result["first_audio"]) == ("planner", 2, [])


def test_another_shape_or_engine_is_not_compared(built: Built, tmp_path: Path) -> None:
    base, path = tmp_path / "base.json", str(built().path)
    more = ("--ticks", "3", "--features", "mask, gain", "--sessions", "2")
    first = saved(base, path, "--depth", "2", *more)
    assert (first["variant"], first["sessions"], first["allocations_per_tick"]) == ("gain+mask", 2, 0)
    compared = result_of(path, "--depth", "2", *more, "--compare", str(base))
    assert compared["changes"]["tick_ms p50"]["base"] == first["tick_ms"]["p50"]
    other = [path, "--depth", "1", *more, "--compare", str(base)]
    refused = CliRunner().invoke(app, other)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "depth: 2 before, 1 now" in refused.stderr
    other_base = base.with_name("other.json")
    other_base.write_text(json.dumps({**first, "engine_sha256": "00"}))
    other_engine = CliRunner().invoke(app, [path, "--depth", "2", *more, "--compare", str(other_base)])
    assert (other_engine.exit_code, other_engine.stdout) == (2, "")
    assert "engine_sha256: 00 before" in other_engine.stderr
    assert result_of(*other, "--force")["changes"].keys() >= {"overhead_ratio"}


def test_a_sweep_measures_each_value(built: Built, tmp_path: Path) -> None:
    """What changes is not known before: sweeps with other values are compared by their points."""
    path, base = str(built().path), tmp_path / "sweep.json"
    command = ["sweep", path, "depth=1,3", "--ticks", "2", "--sessions", "2"]
    first = saved(base, *command, "--plot", str(tmp_path / "a.svg"))
    assert [(point["depth"], point["rows"]) for point in first["points"]] == [(1, 1), (3, 3)]
    lengths = result_of("sweep", path, "frames=16,64", "--depth", "2", "--ticks", "2", "--dcw")
    assert [point["frames"] for point in lengths["points"]] == [16, 64]
    assert (lengths["depth"], lengths["variant"]) == (2, "dcw")
    again = result_of(*command, "--compare", str(base))
    assert again["changes"]["depth 3, tick_ms p50"]["base"] == first["points"][1]["tick_ms"]["p50"]


def test_the_grid_of_budgets_can_be_saved_and_compared(built: Built, tmp_path: Path) -> None:
    path, file = str(built().path), tmp_path / "grid.json"
    command = ["budgets", path, "--repeats", "1", "--ticks", "1", "--steps", "2"]
    base = saved(file, *command)
    assert (base["kind"], base["steps"], len(base["points"])) == ("budgets", 2, 9)
    result = result_of(*command, "--compare", str(file))
    change = result["changes"]["depth 8, guidance+dcw, overhead_ms"]
    assert change["base"] == base["points"][-1]["overhead_ms"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["CONFIG", "--frames", "100000"], 2, "no shape range for 100000 frames"),
        (["CONFIG", "--frames", "31"], 2, "31 frames are not a multiple of 2"),
        (["CONFIG", "--features", "loudness"], 2, "unknown feature: loudness"),
        (["CONFIG", "--live", "8"], 2, "--live is a command of tickrt-bench\n  fix: tickrt-bench live CONFIG"),
        (["--budgets", "CONFIG"], 2, "--budgets is a command of tickrt-bench"),
        (["CONFIG", "--sweep=depth=1"], 2, "--sweep is a command of tickrt-bench"),
        (["sweep", "CONFIG", "colour=1"], 2, "no sweep over 'colour'"),
        (["live", "CONFIG", "--plan"], 2, "only sessions in mode extend play by a plan"),
        (["live", "CONFIG", "none"], 2, "none: expected numbers of sessions"),
        (["live", "CONFIG", "2", "--plot", "a.svg"], 2, "several numbers of live sessions"),
        (["live", "UNBUILT", "1"], 3, "ended with status 3"),
        (["budgets", "CONFIG", "--torch", "published"], 2, "No such option: --torch"),
        (["CONFIG", "--compare", "absent.json"], 2, "absent.json cannot be read"),
        (["sweep", "CONFIG", "depth=1", "--plot", "a.png"], 2, "not the name of an SVG file"),
        (["live", "CONFIG", "1,2", "--plot", "a.png"], 2, "not the name of an SVG file"),
        (["CONFIG", "--json", "absent/a.json"], 2, "there is no folder absent"),
        (["sweep", "CONFIG", "depth=1", "--plot", "absent/a.svg"], 2, "there is no folder absent"),
        (["adapters", "CONFIG", "1"], 2, "adapter_rank is 0, 2 adapters of rank 1 need more"),
        (["absent.toml"], 2, "no configuration at absent.toml"),
        (["UNBUILT"], 3, "is not built"),
        (["CONFIG", "--target", "tensorrt"], 3, "tensorrt"),
    ],
)
def test_an_error_names_its_fix(built: Built, tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    paths = {"CONFIG": str(built().path), "UNBUILT": str(tiny_deployment(tmp_path))}
    done = CliRunner().invoke(app, [paths.get(word, word) for word in arguments])
    assert (done.exit_code, done.stdout) == (status, "")
    assert message in done.stderr
    assert "fix: " in done.stderr


def test_a_module_that_is_no_part_of_the_wheel_is_named_and_a_package_that_it_needs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--torch is measured from a checkout"):
        of_a_checkout("--torch", "profiling.no_such_bench.run")
    (tmp_path / "bench_of_this_test.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        of_a_checkout("--torch", "bench_of_this_test")


@pytest.mark.shipped
def test_live_sessions_are_measured_against_a_server_of_their_own(built: Built, tmp_path: Path) -> None:
    path, file = str(built(max_rows=16).path), tmp_path / "live.json"
    script = ("--minutes", "0.02", "--interval", "0.3")
    result = saved(file, "live", path, "1,2", *script)
    assert (result["kind"], result["values"], result["mode"]) == ("live sweep", [1, 2], "loop")
    for point, sessions in zip(result["points"], (1, 2), strict=True):
        assert (point["sessions"], point["problems"]) == (sessions, 0)
        assert sum(point["controls"].values()) > 0
        assert point["control_to_sound_ms"].keys() == {"step_parameter", "generation_parameter"}
        assert point["ticks_per_s"] > 0 < point["server_cpu"]
        assert point["server_mib"] > 50 < point["idle_mib"]
        assert 0 <= point["idle_cpu_percent"] < 100
    one = result_of("live", path, *script, "--mode", "extend", "--compare", str(file), "--force")
    assert (one["kind"], one["sessions"], one["mode"], one["changes"]) == ("live", 1, "extend", {})
