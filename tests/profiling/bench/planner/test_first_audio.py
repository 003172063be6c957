"""The first audio with a plan and without one."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from rich.console import Console

from profiling.bench.planner import first_audio, measure
from profiling.bench.planner.first_audio import measure_first_audio


def test_every_length_has_its_times_in_their_order(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_audio, "SECONDS", (2.0,))
    monkeypatch.setattr(first_audio, "REPEATS", 1)
    (point,) = measure_first_audio(built(planner={"capacity": 1024, "plan": True}, more=FEW_VARIANTS))
    assert 0 < point["sections_ms"] < point["codes_ms"] < point["planned_ms"]
    assert point["ratio"] == pytest.approx(point["planned_ms"] / point["without_ms"], rel=0.05)  # both are rounded
    text, result = StringIO(), dict[str, Any]()
    result |= {"bundle": "tiny", "target": "cpu", "capacity": 1, "window": 0, "alone": {}, "beside": {}}
    result |= {"speculation": {"tick_ms": {"p50": 1.0, "p95": 1.0}, "tokens_per_s": 1.0, "accepted_share": None}}
    result["speculation"]["gain"] = 1.0
    result |= {"in_place": [], "ring": None, "resident_mib": None, "sequence_mib": 1.0, "first_audio": [point]}
    measure.print_planner(Console(file=text, width=200), result)
    assert f"first audio of 2 s: {point['planned_ms']:.0f} ms with a plan" in text.getvalue()


def test_a_bundle_that_does_not_plan_or_takes_no_text_has_none(built: Built) -> None:
    assert measure_first_audio(built(max_rows=16)) == []
    planner = {"capacity": 1024, "plan": True}
    assert measure_first_audio(built(planner=planner, text_encoder=False, null=True, more=FEW_VARIANTS)) == []
