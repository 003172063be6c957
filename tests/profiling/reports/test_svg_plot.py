"""Line plots as SVG: points at their values, round marks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from profiling.reports.svg_plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, svg

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


def test_the_frame_its_marks_and_its_words_are_where_they_are_read() -> None:
    root = ElementTree.fromstring(svg("title", "rows", "ms", {"tick": [(2, 3), (4, 8)], "engine": [(2, 2), (4, 4)]}))
    places = {text.text: (float(text.get("x", "")), float(text.get("y", ""))) for text in root.iter(f"{SVG}text")}
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    assert circles[1] == (right, TOP), "the largest values are at the ends of the axes"
    assert circles[0] == ((LEFT + right) / 2, pytest.approx(bottom - (bottom - TOP) * 3 / 8, abs=0.06))
    assert circles[3] == (right, pytest.approx((bottom + TOP) / 2, abs=0.06))
    assert places["title"][1] < places["ms"][1] < TOP
    assert places["8"] == (LEFT - 8, TOP + 4), "a mark stands left of its line"
    assert bottom < places["3"][1] < places["rows"][1] < HEIGHT
    assert places["3"][0] == pytest.approx((LEFT + 3 * right) / 4, abs=0.06)
    assert places["rows"][0] == pytest.approx((LEFT + right) / 2, abs=0.06)
    assert TOP < places["tick"][1] < places["engine"][1] < places["tick"][1] + 30
    assert places["tick"][0] == places["engine"][0] > LEFT
    _, *rects = root.iter(f"{SVG}rect")  # the first one is the background
    keys = [(float(rect.get("x", "")), float(rect.get("y", ""))) for rect in rects]
    assert [places[name][1] - y for name, (_, y) in zip(("tick", "engine"), keys, strict=True)] == [6, 6]
    assert all(LEFT < x < places["tick"][0] for x, _ in keys)
    colours = [line.get("stroke") for line in root.iter(f"{SVG}polyline")]
    assert len(set(colours)) == 2
