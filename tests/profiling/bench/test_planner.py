"""The planner's bench: every figure is there, and counts what it says; caches that are concatenated are the same."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.tiny_planner import save_planner
from rich.console import Console

from profiling.bench.in_place_caches import concatenate
from profiling.bench.planner import (
    PLAIN,
    PROMPT,
    SETTLED,
    SequenceStream,
    given_tokens,
    measure_first_audio,
    measure_planner,
    print_planner,
    spec_of,
)
from profiling.bench.session import BenchSession, open_bench
from profiling.bench.workload import Workload, workload_of
from runtime.base.errors import ConfigError
from runtime.config.explain import validated
from runtime.config.planner import PlannerSpec
from runtime.tick.language.constraints import CodesConstraint
from runtime.tick.language.sequence import room_for

TICKS = 3


@pytest.fixture(scope="module")
def session(built: Built) -> Iterator[BenchSession]:
    tiny = {"capacity": 96, "thinking": False}
    with open_bench(built(planner=tiny, more=FEW_VARIANTS, codec=False, text_encoder=False)) as opened:
        yield opened


@pytest.fixture(scope="module")
def load(session: BenchSession) -> Workload:
    return workload_of(session.deployment, 2)


def with_planner(session: BenchSession, **changes: Any) -> BenchSession:
    """The same with another planner; `planner=None`: without one."""
    planner = changes["planner"] if "planner" in changes else spec_of(session).model_copy(update=changes)
    return replace(session, bundle=session.bundle.model_copy(update={"planner": planner}))


def printed(result: dict[str, Any]) -> str:
    console = Console(record=True, width=200)
    print_planner(console, result)
    return console.export_text()


def test_tokens_are_those_of_the_timed_ticks(session: BenchSession, load: Workload) -> None:
    with closing(SequenceStream(session, load, {**PLAIN, "planner_steps": 3})) as stream:
        stream.begin(2, is_guided=True)
        timed = stream.time(TICKS)
        record = stream.tick()
    assert (timed.tokens, len(timed.times_ms), timed.verifies) == (2 * 3 * TICKS, TICKS, 0)
    assert timed.tokens_per_s == pytest.approx(1e3 * timed.tokens / sum(timed.times_ms))
    assert record is not None
    assert (record.slots, record.rows) == (4, 4 + 2)


def test_every_figure_of_a_linear_cache_which_bounds_the_ticks(session: BenchSession, load: Workload) -> None:
    spec = spec_of(session)
    most = room_for(spec, PROMPT) // spec.verify_tokens - SETTLED - 1
    result = measure_planner(session, load, 10_000)
    assert result["ticks"] == most > 0
    assert [figures["tokens"] for figures in result["alone"].values()] == [most, 4 * most, 4 * most, 12 * most]
    assert [figures["tokens"] for figures in result["beside"].values()] == [0, 12 * most]
    drafts, alone = result["speculation"], result["alone"]["one sequence"]
    assert drafts["verifies"] > 0
    assert drafts["tokens"] > most
    assert 0 < drafts["accepted_share"] <= 1
    assert drafts["gain"] == pytest.approx(drafts["tokens_per_s"] / alone["tokens_per_s"], rel=0.01)
    assert (result["in_place"], result["ring"]) == ([], None)  # shorter than any length that is measured
    assert result["sequence_mib"] == round(2 * 4 * 2 * 96 * 8 * 4 / 2**20, 3)
    assert "4 guided sequences, 3 tokens per tick" in printed(result)


def test_a_ring_goes_on_for_ever_and_lengths_that_fit_are_measured_in_place(
    session: BenchSession, load: Workload
) -> None:
    """More ticks than a linear cache has room for."""
    ticks = 20
    result = measure_planner(with_planner(session, window=40), load, ticks, lengths=(2, 64, 256), ring_tokens=50)
    assert result["ticks"] == ticks
    assert result["ring"]["tokens"] > 2 * 96 + 50
    assert [point["length"] for point in result["in_place"]] == [2, 64]
    for point in result["in_place"]:
        assert point["difference"] < 1e-4
        assert point["ratio"] == pytest.approx(point["concat_ms"] / point["ms"], rel=0.5)
    assert "ring:" in printed(result)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": None}, "has no planner"),
        ({"capacity": PROMPT + 4}, "a cache of 24 tokens is too short to measure"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    session: BenchSession, load: Workload, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        measure_planner(with_planner(session, **changes), load, TICKS)


def test_codes_of_a_plan_have_the_tokens_of_its_pages_before_them(session: BenchSession, tmp_path: Path) -> None:
    tables = tomllib.loads(save_planner(tmp_path, plan=True))
    spec = validated(PlannerSpec, tables["planner"], "planner")
    assert spec.plan is not None
    given = given_tokens(spec, 3)
    assert CodesConstraint(spec, 4, partial(given_tokens, spec)).forced(99) == list(given_tokens(spec, 0))
    assert (given[0], given[-1]) == (spec.plan.recall, spec.plan.clock_markers.first + 3)
    groups = zip(given[1:-1], spec.codes.groups, strict=True)
    assert all(group.first <= token < group.end for token, group in groups)
    assert len(given_tokens(spec_of(session), 3)) == 1


def test_caches_become_inputs_and_outputs_of_any_length_once(tmp_path: Path) -> None:
    save_planner(tmp_path)
    model = onnx.load(tmp_path / "planner.onnx")
    counts = [sum(node.op_type == kind for node in model.graph.node) for kind in ("TensorScatter", "Slice")]
    concatenate(model)
    onnx.checker.check_model(model)
    assert counts == [4, 4]
    assert [node.op_type for node in model.graph.node if node.op_type in ("TensorScatter", "Slice")] == []
    values = {item.name: item.type.tensor_type.shape.dim[2].dim_param for item in model.graph.output[:-1]}
    assert values.keys() >= {"present_key_0", "present_value_1"}
    assert set(values.values()) == {"grown"}
    with pytest.raises(ConfigError, match="no caches"):
        concatenate(model)


def test_the_first_audio_has_its_times_in_their_order(built: Built) -> None:
    planner = {"capacity": 1024, "plan": True}
    (point,) = measure_first_audio(built(planner=planner, more=FEW_VARIANTS), lengths=(2.0,), repeats=1)
    assert 0 < point["sections_ms"] < point["codes_ms"] < point["planned_ms"]
    assert point["ratio"] == pytest.approx(point["planned_ms"] / point["without_ms"], rel=0.05)  # both are rounded
    drafts = {"tick_ms": {"p50": 1.0, "p95": 1.0}, "tokens_per_s": 1.0, "accepted_share": None, "gain": 1.0}
    result = {
        "bundle": "tiny", "target": "cpu", "capacity": 1, "window": 0, "alone": {}, "beside": {}, "speculation": drafts,
        "in_place": [], "ring": None, "resident_mib": None, "sequence_mib": 1.0, "first_audio": [point],
    }  # fmt: skip
    assert f"first audio of 2 s: {point['planned_ms']:.0f} ms with a plan" in printed(result)
    assert measure_first_audio(built(max_rows=16)) == [], "of a bundle that does not plan"
    without_text = built(planner=planner, text_encoder=False, null=True, more=FEW_VARIANTS)
    assert measure_first_audio(without_text) == []
