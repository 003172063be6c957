"""Sweeps: what is swept, what the points have in common, and the drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from profiling.bench.svg_plot import Axis, svg
from profiling.bench.sweep import COMMON, Sweep, parse_sweep, print_sweep, report_sweep
from runtime.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def test_a_sweep_is_a_name_and_values() -> None:
    assert parse_sweep("depth=1,2, 4") == Sweep("depth", (1, 2, 4))


@pytest.mark.parametrize("text", ["", "depth", "depth=", "depth=1,x", "depth=0", "depth=2,2", "colour=1", "=1"])
def test_other_words_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep depth=1,2,4,8"):
        parse_sweep(text)


def card(depth: int, tick_ms: float) -> dict[str, object]:
    return {
        **dict.fromkeys(COMMON, "abc"), "kind": "tick", "depth": depth, "rows": 2 * depth,
        "tick_ms": {"p50": tick_ms}, "engine_ms": {"p50": 1.0}, "overhead_ratio": tick_ms,
    }  # fmt: skip


def test_points_keep_what_they_do_not_share() -> None:
    cards = [card(1, 1.5), card(4, 3.0)]
    found = report_sweep(Sweep("depth", (1, 4)), cards)
    assert (found["kind"], found["over"], found["values"], found["bundle"]) == ("sweep", "depth", [1, 4], "abc")
    assert [point["depth"] for point in found["points"]] == [1, 4]
    assert [point["tick_ms"]["p50"] for point in found["points"]] == [1.5, 3.0]
    assert [point["engine_ms"]["p50"] for point in found["points"]] == [1.0, 1.0]
    assert ("commit" in found["points"][0], found["commit"]) == (False, "abc")
    console = Console(record=True, width=80)
    print_sweep(console, found, cards)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["4", "8", "3.00", "1.00", "3.000", "0.375", "█" * 12] in lines
    assert ["1", "2", "1.50", "1.00", "1.500", "0.750", "█" * 6] in lines


def test_a_drawing_has_every_point_where_it_belongs() -> None:
    root = ElementTree.fromstring(svg("a < b", "rows", "ms", {"tick": [(1, 2), (4, 8)], "engine": [(1, 1), (4, 4)]}))
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    assert len(circles) == 4
    assert circles[0][0] == circles[2][0] < circles[1][0] == circles[3][0]
    assert circles[1][1] < circles[3][1] == circles[0][1] - (circles[0][1] - circles[3][1])
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "rows", "ms", "tick", "engine", "0", "8"} <= set(texts)


@pytest.mark.parametrize(
    ("largest", "marks"),
    [
        (8.0, [0, 2, 4, 6, 8]),
        (0.9, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (58.0, [0, 20, 40, 60]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_marks_are_round_and_reach_beyond_the_largest_value(largest: float, marks: list[float]) -> None:
    assert Axis("", largest, 0.0, 1.0).marks == pytest.approx(marks)
