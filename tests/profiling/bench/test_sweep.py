"""Sweeps: their values, what the points have in common, the table and the plot."""

from __future__ import annotations

import pytest
from rich.console import Console

from profiling.bench.sweep import COMMON, Sweep, common_of, parse_sweep, plot_sweep, print_sweep, sweep_result
from runtime.base.errors import ConfigError


def test_a_sweep_is_a_name_and_values() -> None:
    assert parse_sweep("depth=1,2, 4") == Sweep("depth", (1, 2, 4))


@pytest.mark.parametrize("text", ["", "depth", "depth=", "depth=1,x", "depth=0", "depth=2,2", "colour=1", "=1"])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep depth=1,2,4,8"):
        parse_sweep(text)


def point(depth: int, tick_ms: float) -> dict[str, object]:
    return {
        **dict.fromkeys(COMMON, "abc"), "kind": "tick", "depth": depth, "rows": 2 * depth,
        "tick_ms": {"p50": tick_ms}, "engine_ms": {"p50": 1.0}, "overhead_ms": tick_ms - 1, "overhead_ratio": tick_ms,
        "resident_mib": 100.0 + 2.5 * depth,
    }  # fmt: skip


def test_shared_properties_are_stated_once() -> None:
    results = [point(1, 1.5), point(4, 3.0)]
    found = sweep_result(Sweep("depth", (1, 4)), results)
    assert (found["kind"], found["over"], found["values"], found["bundle"]) == ("sweep", "depth", [1, 4], "abc")
    assert [point["depth"] for point in found["points"]] == [1, 4]
    assert [point["tick_ms"]["p50"] for point in found["points"]] == [1.5, 3.0]
    assert [point["engine_ms"]["p50"] for point in found["points"]] == [1.0, 1.0]
    assert ("commit" in found["points"][0], found["commit"]) == (False, "abc")
    console = Console(record=True, width=80)
    print_sweep(console, found)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["4", "8", "3.00", "1.00", "2.00", "3.000", "0.375", "110", "█" * 12] in lines
    assert ["1", "2", "1.50", "1.00", "0.50", "1.500", "0.750", "102", "█" * 6] in lines
    assert ["memory:", "2.5", "MiB", "per", "slot"] in lines
    assert plot_sweep(found).count("<circle") == 4


def test_a_property_that_one_result_does_not_share_is_not_common() -> None:
    found = common_of([point(1, 1.0), {**point(1, 1.0), "commit": "def"}])
    assert found.keys() == set(COMMON) - {"commit"}
