"""Line plots as SVG: points at their values, round marks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from profiling.reports.svg_plot import Axis, svg

SVG = "{http://www.w3.org/2000/svg}"


def test_points_are_drawn_at_their_values() -> None:
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
def test_marks_are_round_and_cover_the_largest_value(largest: float, marks: list[float]) -> None:
    assert Axis("", largest, 0.0, 1.0).marks == pytest.approx(marks)
