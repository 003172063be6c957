"""Layer timings add up, on recorded times and on live engines."""

from __future__ import annotations

import pytest
from conftest import Built

from profiling.cli import export, sizes_of
from profiling.layers import OTHER, kind_of, layer_timings, make_feeds, profile_engine
from runtime.device import HostDevice
from runtime.engine import open_engine
from runtime.nodes import NodeTimes
from runtime.spec import load_bundle

NODES = (
    NodeTimes("a", "MatMul", (1.0, 3.0)),
    NodeTimes("b", "Softmax", (2.0, 2.0)),
    NodeTimes("c", "Quux", (0.0, 0.0)),
)


def test_shares_and_averages_by_hand() -> None:
    first, second, third = layer_timings(NODES)
    assert (first.total_ms, first.average_ms, first.median_ms, first.share) == (4.0, 2.0, 2.0, 0.5)
    assert (second.kind, second.share) == ("attention", 0.5)
    assert (third.kind, third.share) == (OTHER, 0.0)


def test_no_operator_has_two_kinds() -> None:
    assert kind_of("Gemm") == "gemm"
    assert kind_of("NotAnOperator") == OTHER


@pytest.mark.parametrize("name", ["decoder", "step.dcw+guidance", "codec_decode", "codec_encode", "conditioner"])
def test_a_live_profile_adds_up(name: str, built: Built) -> None:
    deployment = built()
    engine = open_engine(deployment.engine_folder(), name, HostDevice())
    feeds = make_feeds(engine, sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4))
    profile = profile_engine(engine, feeds, runs=3)
    assert profile.layers
    assert sum(layer.share for layer in profile.layers) == pytest.approx(1.0)
    assert sum(profile.by_kind().values()) == pytest.approx(profile.layer_sum_ms)
    assert profile.wall_ms > 0
    head, *layers = export(profile)
    assert head == {"count": 3}
    assert sum(layer["percentage"] for layer in layers) == pytest.approx(100.0, abs=0.05)
    engine.close()


def test_a_missing_size_is_named(built: Built) -> None:
    engine = open_engine(built().engine_folder(), "decoder", HostDevice())
    with pytest.raises(KeyError, match="tokens"):
        make_feeds(engine, {"rows": 1, "frames": 16})
    engine.close()
