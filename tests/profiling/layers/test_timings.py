"""Layer timings: shares, averages, medians, and the sums of recorded profiles of both formats."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.recorded_profiles import FOREIGN_NODE, VERSIONS, assert_adds_up, recorded

from profiling.layers.kinds import OPAQUE, OTHER
from profiling.layers.rollups import SEVERAL, UNKNOWN_MODULE, by_kind, by_module
from profiling.layers.timings import Profile, Wall, layer_timings, make_feeds
from runtime.engines.node_times import NodeTimes

NODES = (
    NodeTimes("a", "MatMul", (1.0, 3.0)),
    NodeTimes("b", "Softmax", (2.0, 2.0)),
    NodeTimes("c", "Quux", (0.0, 0.0)),
)


def test_shares_and_averages() -> None:
    first, second, third = layer_timings(NODES)
    assert (first.total_ms, first.average_ms, first.median_ms, first.share) == (4.0, 2.0, 2.0, 0.5)
    assert (second.kind, second.share) == ("attention", 0.5)
    assert (third.kind, third.share) == (OTHER, 0.0)


def test_the_gap_to_wall_time_is_named() -> None:
    layers = layer_timings(NODES)
    assert Profile("e", 2, layers, Wall((5.0, 6.0, 7.0))).gap_ms == pytest.approx(2.0)
    # The gap compares medians: one long execute does not change it.
    once = Profile("e", 3, layer_timings([NodeTimes("a", "Add", (1.0, 90.0, 1.0))]), Wall((1.5,)))
    assert (once.layer_sum_ms, once.layer_sum_p50_ms, once.gap_ms) == (pytest.approx(92 / 3), 1.0, 0.5)
    assert "outside of layers" in Profile("e", 2, layers, Wall((5.0,))).gap_name
    assert "cost of profiling" in Profile("e", 2, layers, Wall((3.0,))).gap_name


def test_quantiles_of_wall_time() -> None:
    wall = Wall(tuple(float(value) for value in range(101)))
    assert (wall.p50_ms, wall.p95_ms) == (50.0, 95.0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_profile_assert_adds_up(version: str, tmp_path: Path) -> None:
    assert_adds_up(recorded(version, tmp_path))


@pytest.mark.parametrize("version", VERSIONS)
def test_kinds_and_modules_of_a_recorded_transformer(version: str, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path)
    counts = {row.name: row.layers for row in by_kind(profile)}
    expected = {"gemm": 6, "attention": 2, "norm": 2, "pointwise": 2, "reformat": 5, "convolution": 1, OPAQUE: 1}
    assert counts == expected
    (subgraph,) = (layer for layer in profile.layers if layer.kind == OPAQUE)
    assert (subgraph.name, subgraph.module, subgraph.is_wide) == (FOREIGN_NODE, "decoder", True)
    assert not any(layer.is_wide for layer in profile.layers if layer is not subgraph)
    assert subgraph.contents == ("Pow", "ReduceMean", "Sqrt", "Div", "MatMul")
    rows = {row.name: row for row in by_module(profile)}
    assert rows[UNKNOWN_MODULE].layers == 3
    assert rows[SEVERAL].ms == pytest.approx(subgraph.median_ms)


def test_feeds_are_noise_zeros_as_indices_and_ones_as_masks() -> None:
    infos = {"x": "float16", "tokens": "int64", "mask": "float32", "is_known": "bool"}
    engine: Any = SimpleNamespace(inputs={name: SimpleNamespace(dtype=dtype) for name, dtype in infos.items()})
    shapes = dict.fromkeys(infos, (2, 50))
    feeds = make_feeds(engine, shapes, ("mask", "is_known"))
    assert {name: (feed.shape, feed.dtype.name) for name, feed in feeds.items()} == {
        name: ((2, 50), dtype) for name, dtype in infos.items()
    }
    assert (feeds["mask"].all(), feeds["is_known"].all(), feeds["tokens"].any()) == (True, True, False)
    assert 0.5 < feeds["x"].std() < 1.5
    assert np.array_equal(make_feeds(engine, shapes)["x"], feeds["x"])
    assert not np.array_equal(make_feeds(engine, shapes, seed=1)["x"], feeds["x"])
    assert not make_feeds(engine, shapes)["is_known"].any()
