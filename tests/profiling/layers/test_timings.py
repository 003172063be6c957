"""Layer timings add up, on recorded profiles of both formats, on live engines, and on the simulated TensorRT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Built
from helpers.backends import CPU, FEW_VARIANTS, SIMULATED, Backend
from helpers.recorded_profiles import BLOB, VERSIONS, recorded

from profiling.layers.kinds import OPAQUE, OTHER
from profiling.layers.measure import measure, notes_of, sizes_of
from profiling.layers.rollups import SEVERAL, UNKNOWN_MODULE, by_block, by_kind, by_module
from profiling.layers.timings import Profile, Wall, layer_timings, make_feeds
from profiling.reports.trtexec_json import profile_records
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice
from runtime.devices.machine import open_device
from runtime.engines.engine import NodeTimes
from runtime.engines.loading import open_engine
from runtime.errors import ConfigError, EngineNotBuiltError

NODES = (
    NodeTimes("a", "MatMul", (1.0, 3.0)),
    NodeTimes("b", "Softmax", (2.0, 2.0)),
    NodeTimes("c", "Quux", (0.0, 0.0)),
)


def adds_up(profile: Profile) -> None:
    """Everything that a report sums up comes to the layer sum, and every share to one."""
    assert profile.layers
    for rows in (by_kind(profile), *(by_module(profile, depth) for depth in (1, 2, 9))):
        assert sum(row.ms for row in rows) == pytest.approx(profile.layer_sum_ms)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert sum(row.layers for row in rows) == len(profile.layers)
    for blocks in by_block(profile):
        inside = [layer for layer in profile.layers if (layer.module or "").startswith(f"{blocks.prefix}.")]
        assert sum(blocks.whole.average_ms) == pytest.approx(sum(layer.average_ms for layer in inside))
    assert sum(layer.share for layer in profile.layers) == pytest.approx(1.0)
    _, *rows = profile_records(profile)
    assert sum(row["percentage"] for row in rows) == pytest.approx(100.0, abs=1e-3)
    assert sum(row["averageMs"] for row in rows) == pytest.approx(profile.layer_sum_ms, rel=1e-4)


def test_shares_and_averages_by_hand() -> None:
    first, second, third = layer_timings(NODES)
    assert (first.total_ms, first.average_ms, first.median_ms, first.share) == (4.0, 2.0, 2.0, 0.5)
    assert (second.kind, second.share) == ("attention", 0.5)
    assert (third.kind, third.share) == (OTHER, 0.0)


def test_the_difference_to_wall_time_has_a_name() -> None:
    layers = layer_timings(NODES)
    assert Profile("e", 2, layers, Wall((5.0, 6.0, 7.0))).gap_ms == pytest.approx(2.0)
    # Medians beside medians: one long execute is no cost of profiling.
    once = Profile("e", 3, layer_timings([NodeTimes("a", "Add", (1.0, 90.0, 1.0))]), Wall((1.5,)))
    assert (once.layer_sum_ms, once.layer_sum_p50_ms, once.gap_ms) == (pytest.approx(92 / 3), 1.0, 0.5)
    assert "outside of layers" in Profile("e", 2, layers, Wall((5.0,))).gap_name
    assert "cost of profiling" in Profile("e", 2, layers, Wall((3.0,))).gap_name


def test_quantiles_of_wall_time() -> None:
    wall = Wall(tuple(float(value) for value in range(101)))
    assert (wall.p50_ms, wall.p95_ms) == (50.0, 95.0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_profile_adds_up(version: str, tmp_path: Path) -> None:
    adds_up(recorded(version, tmp_path))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_transformer_is_told_apart(version: str, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path)
    counts = {row.name: row.layers for row in by_kind(profile)}
    expected = {"gemm": 6, "attention": 2, "norm": 2, "pointwise": 2, "reformat": 5, "convolution": 1, OPAQUE: 1}
    assert counts == expected
    (blob,) = (layer for layer in profile.layers if layer.kind == OPAQUE)
    assert (blob.name, blob.module, blob.is_wide) == (BLOB, "decoder", True)
    assert blob.contents == ("Pow", "ReduceMean", "Sqrt", "Div", "MatMul")
    rows = {row.name: row for row in by_module(profile)}
    assert rows[UNKNOWN_MODULE].layers == 3
    assert rows[SEVERAL].ms == pytest.approx(blob.average_ms)


@pytest.mark.parametrize("name", ["decoder", "step.dcw+guidance", "codec_decode", "codec_encode", "text_encoder"])
def test_a_live_profile_adds_up(name: str, built: Built) -> None:
    deployment = built()
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    engine = open_engine(deployment.engine_folder(), name, HostDevice())
    feeds = make_feeds(engine, sizes)
    engine.close()
    profile = measure(deployment, HostDevice(), name, sizes, runs=3)
    adds_up(profile)
    assert len(profile.wall.times_ms) == profile.runs == 3
    assert profile.wall.p95_ms >= profile.wall.p50_ms > 0
    assert all(layer.work is not None for layer in profile.layers)
    assert profile.about["target"] == "cpu"
    assert len(profile.about["engine_sha256"]) == 64
    assert profile.about["shapes"] == {key: list(value.shape) for key, value in feeds.items()}


@pytest.fixture(params=SIMULATED[:1], ids=str)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The simulated GPU."""
    return request.param


@pytest.mark.parametrize("verbosity", ["detailed", "layer_names"])
def test_a_simulated_tensorrt_profile_adds_up(verbosity: str, built: Built, backend: Backend) -> None:
    deployment = built(backend=backend, more=FEW_VARIANTS + f'verbosity = "{verbosity}"\n')
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    with backend.running():
        device = open_device("tensorrt")
        profile = measure(deployment, device, "decoder", sizes, runs=3)
        device.close()
    adds_up(profile)
    assert profile.wall.p50_ms > 0
    assert profile.about["target"] == "tensorrt"
    if verbosity == "detailed":
        assert {"gemm", "pointwise", "reformat"} <= {layer.kind for layer in profile.layers}
        assert all(layer.work is not None for layer in profile.layers if layer.contents)
    else:
        assert [layer.kind for layer in profile.layers] == [OPAQUE]


def test_notes_say_what_times_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layer_timings((*NODES, NodeTimes(BLOB, "ForeignNode", (2.0, 2.0))))
    assert list(notes_of("cpu", layers[:-1])) == []
    (note,) = notes_of("tensorrt", layers)
    assert note.startswith("33% of the time is in fused blobs")
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    assert next(notes_of("cuda", layers)).startswith("layer times are those of launches")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert "wall time has the waits in it" in next(notes_of("cuda", layers))


def test_an_engine_that_is_not_built_is_named(built: Built) -> None:
    with pytest.raises(EngineNotBuiltError, match="tickrt-build"):
        measure(built(backend=CPU), HostDevice(), "nope", {}, runs=1)


def test_a_missing_size_is_named(built: Built) -> None:
    engine = open_engine(built().engine_folder(), "decoder", HostDevice())
    with pytest.raises(KeyError, match="tokens"):
        make_feeds(engine, {"rows": 1, "frames": 16})
    engine.close()
    with pytest.raises(ConfigError, match=r"frames, rows, tokens; no size for 'tokens'"):
        measure(built(), HostDevice(), "decoder", {"rows": 1, "frames": 16}, runs=1)
