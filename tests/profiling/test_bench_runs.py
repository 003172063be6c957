"""Which options of tickrt-bench go together; test_bench_cli.py measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Built

from profiling import bench_runs
from profiling.bench.churn.arrivals import ChurnLoad
from profiling.bench.cluster_load import ClusterLoad
from profiling.bench.live.run import LiveLoad
from profiling.bench.live.script import Script
from profiling.bench.workload import Workload, workload_of
from profiling.bench_runs import Bench
from runtime.base.errors import ConfigError

SCRIPT = Script("loop", 2.0, 60.0)
workload = Workload(2, 32, 4)


@pytest.fixture
def bench(built: Built) -> Bench:
    """One of ticks."""
    deployment = built()
    runs = (False, 1, False, 0, False, False, "", None, None, None)
    return Bench(deployment, workload_of(deployment, 2, 0, 0), 4, *runs, None, "", None)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "tick"),
        ({"budgets": True}, "budgets"),
        ({"live": LiveLoad((1,), SCRIPT)}, "live"),
        ({"cluster": ClusterLoad(4, SCRIPT)}, "cluster"),
        ({"sweep": "depth=1,2", "plot": Path("a.svg")}, "sweep"),
        ({"churn": ChurnLoad((0.5,), workload, (16,), (1, 2))}, "churn"),
        ({"ablations": True}, "ablations"),
        ({"adapters": 2}, "adapters"),
        ({"planner": True}, "planner"),
        ({"peers": True, "torch": "published"}, "peers"),
    ],
)
def test_a_run_has_a_kind_that_is_known_before(bench: Bench, changes: dict[str, Any], kind: str) -> None:
    wanted = replace(bench, **changes)
    wanted.check()
    assert wanted.kind == wanted.known()["kind"] == kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": ClusterLoad(4, SCRIPT), "budgets": True}, "--budgets and --cluster are different runs"),
        ({"cluster": ClusterLoad(4, SCRIPT), "torch": "published"}, "--torch does not go with --cluster"),
        ({"plot": Path("a.svg")}, "--plot needs --sweep"),
        ({"plot": Path("a.svg"), "live": LiveLoad((1,), SCRIPT)}, "--plot needs --sweep"),
        ({"plot": Path("a.png"), "live": LiveLoad((1, 2), SCRIPT)}, "not the name of an SVG file"),
        ({"plot": Path("a.png"), "sweep": "depth=1,2"}, "not the name of an SVG file"),
    ],
)
def test_options_that_exclude_each_other_are_refused(bench: Bench, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(bench, **changes).check()


def test_live_sessions_are_measured_and_printed_without_a_plot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    load, measured = LiveLoad((1,), SCRIPT), {"kind": "live"}
    monkeypatch.setattr(bench_runs, "measure_live", lambda deployment, wanted: measured if wanted is load else {})
    result, _ = replace(bench, live=load).measure()
    assert result == measured


def test_the_shape_of_a_run() -> None:
    load = ClusterLoad(4, Script("extend", 2.0, 30.0))
    assert load.kind == "cluster"
    assert load.shape() == {"replicas": 2, "sessions": 4, "mode": "extend", "interval_s": 2.0, "minutes": 0.5}


def test_several_numbers_of_live_sessions_can_be_drawn(bench: Bench) -> None:
    replace(bench, live=LiveLoad((1, 2), SCRIPT), plot=Path("a.svg")).check()


def test_what_varies_in_a_run_is_not_known_before(bench: Bench) -> None:
    assert bench.known()["depth"] == 2
    swept, grid = replace(bench, sweep="depth=1,2").known(), replace(bench, budgets=True).known()
    assert ("depth" in swept, swept["variant"]) == (False, "plain")
    assert {"depth", "variant", "guidance"}.isdisjoint(grid)
    assert grid["frames"] == 32
    other = replace(bench, load=replace(bench.load, guidance=3.0, sessions=2))._with("steps", 3)
    assert (other.depth, other.frames, other.steps, other.guidance, other.sessions) == (2, 32, 3, 3.0, 2)


def test_a_module_that_is_no_part_of_the_wheel_is_named_and_a_package_that_it_needs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--peers is measured from a checkout"):
        bench_runs._of_a_checkout("--peers", "profiling.no_such_bench.run")
    (tmp_path / "bench_of_this_test.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        bench_runs._of_a_checkout("--peers", "bench_of_this_test")
