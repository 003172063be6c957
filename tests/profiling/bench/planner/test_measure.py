"""What `tickrt-bench --planner` measures: every figure is there, and counts what it says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.tiny_planner import save_planner
from rich.console import Console

from profiling.bench.planner import in_place, measure
from profiling.bench.planner.measure import (
    PLAIN,
    PROMPT,
    SETTLED,
    PlannerStream,
    Timed,
    given_tokens,
    measure_planner,
    print_planner,
    spec_of,
)
from profiling.bench.session import BenchSession, open_session
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
    deployment = built(planner=tiny, more=FEW_VARIANTS, codec=False, text_encoder=False)
    with open_session(deployment) as opened:
        yield opened


@pytest.fixture(scope="module")
def load(session: BenchSession) -> Workload:
    return workload_of(session.deployment, 2)


def ring_of(session: BenchSession) -> BenchSession:
    assert session.bundle.planner is not None
    spec = session.bundle.planner.model_copy(update={"window": 40})
    return replace(session, bundle=session.bundle.model_copy(update={"planner": spec}))


def test_tokens_are_those_of_the_timed_ticks(session: BenchSession, load: Workload) -> None:
    stream = PlannerStream(session, load, {**PLAIN, "planner_steps": 3})
    stream.begin(2, is_guided=True)
    timed = stream.time(TICKS)
    assert (timed.tokens, len(timed.times_ms), timed.verifies) == (2 * 3 * TICKS, TICKS, 0)
    assert timed.tokens_per_s == pytest.approx(1e3 * timed.tokens / sum(timed.times_ms))
    record = stream.tick()
    assert record is not None
    assert (record.slots, record.rows) == (4, 4 + 2)
    stream.close()


def test_every_figure_of_a_linear_cache(session: BenchSession, load: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = iter(2**20 * size for size in (10, 12, 20, 37))
    monkeypatch.setattr(measure, "resident_bytes", lambda: next(resident))
    result = measure_planner(session, load, TICKS)
    assert [figures["tokens"] for figures in result["alone"].values()] == [TICKS, 4 * TICKS, 4 * TICKS, 12 * TICKS]
    assert [figures["tokens"] for figures in result["beside"].values()] == [0, 12 * TICKS]
    drafts = result["speculation"]
    assert drafts["verifies"] > 0
    assert 0 < drafts["accepted_share"] <= 1
    assert drafts["tokens"] > TICKS
    assert (result["in_place"], result["ring"]) == ([], None)  # shorter than any length that is measured
    assert result["sequence_mib"] == round(2 * 4 * 2 * 96 * 8 * 4 / 2**20, 3)
    assert result["resident_mib"] == (37 - 20 - (12 - 10)) / 3
    text = StringIO()
    print_planner(Console(file=text, width=120), result)
    assert "4 guided sequences, 3 tokens per tick" in text.getvalue()


def test_a_ring_goes_on_for_ever_and_a_length_is_measured_in_place(
    session: BenchSession, load: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RING_TOKENS", 50)
    monkeypatch.setattr(in_place, "LENGTHS", (64, 256))
    result = measure_planner(ring_of(session), load, TICKS)
    assert result["ring"]["tokens"] > 2 * 96 + 50
    (point,) = result["in_place"]
    assert (point["length"], point["difference"] < 1e-4) == (64, True)
    text = StringIO()
    print_planner(Console(file=text, width=120), result)
    assert "ring:" in text.getvalue()


def test_a_ring_s_figures_are_medians_of_its_begin_and_of_its_end(
    session: BenchSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = iter([[9.0], [1.0, 1.2344, 9.0], [9.0], [1.0, 1.4326, 1.5]])
    monkeypatch.setattr(PlannerStream, "time", lambda stream, ticks: Timed(next(timed), ticks, 0, 0))
    resident = iter(2**20 * size for size in (10.0, 10.128))
    monkeypatch.setattr(measure, "resident_bytes", lambda: next(resident))
    figures = measure._ring(ring_of(session))
    assert figures.pop("tokens") > 0
    assert figures == {"first_ms": 1.234, "last_ms": 1.433, "grown_mib": 0.13}


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


def test_a_bundle_without_a_planner_is_refused(session: BenchSession, load: Workload) -> None:
    bare = replace(session, bundle=session.bundle.model_copy(update={"planner": None}))
    with pytest.raises(ConfigError, match="has no planner"):
        measure_planner(bare, load, TICKS)


def test_a_linear_cache_bounds_the_ticks_and_a_ring_does_not(
    session: BenchSession, load: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without drafts 20 tokens take 2 s, with them 1 s: 4 ticks verify drafts, and bring 11 of the tokens."""
    asked: list[int] = []

    def timed(stream: PlannerStream, ticks: int) -> Timed:
        asked.append(ticks)
        drafts = stream.loop.deployment.runtime.speculation
        return Timed([1000.0], 20, 4, 11) if drafts else Timed([1500.0, 500.0], 20, 0, 0)

    monkeypatch.setattr(PlannerStream, "time", timed)
    monkeypatch.setattr(PlannerStream, "begin", lambda stream, *arguments, **options: None)
    monkeypatch.setattr(measure, "measure_in_place", lambda session, ticks: [])
    spec = spec_of(session)
    most = room_for(spec, PROMPT) // spec.verify_tokens - SETTLED - 1
    assert most > 0
    for ticks, expected in ((10_000, most), (1, 1)):
        asked.clear()
        result = measure_planner(session, load, ticks)
        assert (result["ticks"], set(asked)) == (expected, {expected})
    drafts = result["speculation"]
    assert (drafts["accepted_share"], drafts["gain"]) == (round(7 / (4 * (spec.verify_tokens - 1)), 3), 2.0)
    assert (drafts["tokens_per_s"], result["alone"]["one sequence"]["tick_ms"]["p50"]) == (20.0, 1000.0)
    monkeypatch.setattr(measure, "_ring", lambda session: {})
    assert measure_planner(ring_of(session), load, 10_000)["ticks"] == 10_000
    short = spec.model_copy(update={"capacity": PROMPT + spec.verify_tokens * (SETTLED + 1)})
    bundle = session.bundle.model_copy(update={"planner": short})
    with pytest.raises(ConfigError, match="is too short to measure"):
        measure_planner(replace(session, bundle=bundle), load, 10)
