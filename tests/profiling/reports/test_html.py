"""The page: self-contained, and safe for every name of a layer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.recorded_profiles import VERSIONS, recorded

from profiling.layers.roofline import Ceilings
from profiling.reports.html import content, page

NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def data_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_page_contains_its_data(version: str, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path, Ceilings(1e12, 1e11, "given"))
    text = page(profile, 2)
    assert data_of(text) == json.loads(json.dumps(content(profile, 2)))
    assert "@" not in re.sub(r"@media", "", text.split('id="data"')[0])


def test_every_layer_belongs_to_a_module_row(tmp_path: Path) -> None:
    held = content(recorded("10", tmp_path), 2)
    sums: dict[str, float] = {}
    for layer in held["layers"]:
        sums[layer["group"]] = sums.get(layer["group"], 0.0) + layer["ms"]
    assert sums == pytest.approx({row["name"]: row["ms"] for row in held["modules"]})
    assert {layer["kind"] for layer in held["layers"]} <= set(held["order"])


def test_nothing_is_loaded(tmp_path: Path) -> None:
    text = page(recorded("10", tmp_path), 2)
    reader = Tags()
    reader.feed(text)
    links = [attrs.get(name) for _, attrs in reader.tags for name in ("src", "href") if attrs.get(name)]
    assert links == ["data:,"]
    assert "default-src 'none'" in text
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|\bimport\(", text)
    assert not [url for url in re.findall(r"https?://[^'\" ]+", text) if url != "http://www.w3.org/2000/svg"]


def test_a_name_cannot_end_the_data(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    nasty = replace(profile, engine=NASTY, layers=(replace(profile.layers[0], name=NASTY, module=NASTY),))
    text = page(nasty, 2)
    reader = Tags()
    reader.feed(text)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in reader.tags]
    assert data_of(text)["layers"][0]["name"] == NASTY  # type: ignore[index]


def test_the_data_is_in_the_units_that_the_page_shows(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path, Ceilings(1e12, 1e11, "given"))
    about = {
        "target": "cpu", "machine": {"cpu": "a CPU", "gpu": "a card"}, "versions": {"x": "1", "y": "2"},
        "engine_sha256": "0123456789abcdef", "shapes": {"x": [2, 8], "t": [2]}, "commit": None,
    }  # fmt: skip
    held = content(replace(profile, about=about), 2)
    assert dict(held["about"]) == {
        "target": "cpu", "machine": "a CPU a card", "versions": "x 1, y 2", "engine": "0123456789ab",
        "shapes": "x 2x8, t 2",
    }  # fmt: skip
    assert (held["wall"], held["gap"][0]) == ([profile.wall.p50_ms, profile.wall.p95_ms], profile.gap_ms)
    for shown, layer in zip(held["layers"], profile.layers, strict=True):
        assert (shown["ms"], shown["mean"], shown["share"]) == (layer.median_ms, layer.average_ms, layer.share)
        if layer.work is not None and layer.work.flops and layer.median_ms:
            assert shown["gflops"] == pytest.approx(layer.work.flops / layer.median_ms / 1e6)
            assert shown["gbs"] == pytest.approx(layer.work.bytes / layer.median_ms / 1e6)
            seconds = max(layer.work.flops / 1e12, layer.work.bytes / 1e11)
            assert shown["roof"] == pytest.approx(1e3 * seconds / layer.median_ms)
    assert held["ceilings"][:2] == [1e12, 1e11]
    assert sum(shown["flops"] is None for shown in held["layers"]) == sum(x.work is None for x in profile.layers)
