"""Measured profiles: of live engines, the simulated TensorRT and the simulated CUDA provider."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.backends import CPU, FEW_VARIANTS, SIMULATED, SIMULATED_RTX, Backend
from helpers.bodies import SIZE, TIMES, with_bodies
from helpers.factories import SECOND_FAMILY, TinySpec, tiny_deployment
from helpers.opened_graph import opened_graph
from helpers.recorded_profiles import FOREIGN_NODE, assert_adds_up
from helpers.tiny_structure import FRAMES_PER_CODE
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.compile.builder import build_deployment
from profiling.layers import measure as measuring
from profiling.layers.kinds import OPAQUE
from profiling.layers.measure import (
    BODIES,
    feeds_of,
    joined,
    measure,
    notes_of,
    profile_engine,
    round_sizes,
    sizes_of,
    source_path,
    spread_notes,
    usual_frames,
)
from profiling.layers.origins import Origins, graphs_of, read_graph
from profiling.layers.timings import Profile, Wall, layer_timings
from runtime.base.errors import EngineNotBuiltError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment
from runtime.devices.device import HostDevice
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engine
from runtime.engines.node_times import NodeTimes


@pytest.mark.parametrize(
    "name",
    [
        "decoder",
        "step.dcw+guidance",
        "step.blend+guidance",
        "rows.mask",
        "codec_decode",
        "codec_encode",
        "text_encoder",
    ],
)
def test_a_live_profile_assert_adds_up(name: str, built: Built) -> None:
    deployment = built(more="")
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    engine = open_engine(deployment.engine_folder(), name, HostDevice())
    feeds = feeds_of(engine, load_bundle(deployment.bundle), sizes)
    engine.close()
    profile = measure(deployment, HostDevice(), name, sizes, runs=3)
    assert_adds_up(profile)
    assert len(profile.wall.times_ms) == profile.runs == sum(profile.rounds) == 3
    assert profile.wall.p95_ms >= profile.wall.p50_ms > 0
    assert all(layer.work is not None for layer in profile.layers)
    assert profile.about["target"] == "cpu"
    assert len(profile.about["engine_sha256"]) == 64
    assert profile.about["shapes"] == {key: list(value.shape) for key, value in feeds.items()}


@pytest.mark.parametrize("name", ["lyric_encoder", "timbre_encoder", "structure_encode", "structure_decode"])
def test_engines_beside_the_tick_are_profiled_by_the_bundles_graphs(name: str, built: Built) -> None:
    deployment = built(conditions=True, structure=True, more=FEW_VARIANTS)
    bundle = load_bundle(deployment.bundle)
    profile = measure(deployment, HostDevice(), name, sizes_of(bundle, rows=1, frames=16, tokens=4), runs=1)
    assert_adds_up(profile)
    (shape,) = {tuple(shape) for shape in profile.about["shapes"].values()}
    channels, frames = bundle.latents.channels, 5 * FRAMES_PER_CODE
    assert (
        shape
        == {
            "lyric_encoder": (1, 4),
            "timbre_encoder": (1, TinySpec().timbre_frames, channels),
            "structure_encode": (1, frames, channels),
            "structure_decode": (1, frames // FRAMES_PER_CODE),
        }[name]
    )
    path = source_path(bundle, name)
    assert path is not None
    assert path.is_file()


@pytest.fixture(params=[SIMULATED[0], SIMULATED_RTX], ids=str)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The simulated GPU."""
    return request.param


DETAILED = '[build]\nstep_variants = []\nverbosity = "detailed"\n'


@pytest.mark.parametrize("verbosity", ["detailed", "layer_names"])
def test_a_simulated_gpu_s_profile_adds_up(verbosity: str, built: Built, backend: Backend) -> None:
    # "layer_names" is the default: other tests have these engines too.
    shared = verbosity == "layer_names"
    deployment = built(max_rows=16, backend=backend, **({} if shared else {"more": DETAILED}))
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    with backend.running() as machine:
        device = open_device(backend.target)
        profile = measure(deployment, device, "decoder", sizes, runs=3)
        device.close()
        assert machine is not None
        # Runs that tell the outputs' shapes, one per round; the context's first execute; two that are not measured.
        assert machine.counters["fallback_executes"] <= 3 + 1 + 2
    assert_adds_up(profile)
    assert profile.wall.p50_ms > 0
    assert profile.about["target"] == backend.target
    if verbosity == "detailed":
        assert {"gemm", "pointwise", "reformat"} <= {layer.kind for layer in profile.layers}
        assert all(layer.work is not None for layer in profile.layers if layer.contents)
    else:
        assert [layer.kind for layer in profile.layers] == [OPAQUE]


def test_notes_by_target(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [NodeTimes("a", "MatMul", (2.0,)), NodeTimes(FOREIGN_NODE, "ForeignNode", (1.0,))]
    layers = layer_timings(nodes)
    assert list(notes_of("cpu", layers[:-1])) == []
    (note,) = notes_of("tensorrt", layers)
    assert note.startswith("33% of the time is in opaque layers")
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    assert next(notes_of("cuda", layers)).startswith("layer times are those of launches")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert "wall time contains the waits" in next(notes_of("cuda", layers))


def test_executes_are_measured_in_equal_rounds() -> None:
    assert [round_sizes(runs) for runs in (1, 3, 5, 7, 20)] == [(1,), (1,) * 3, (1,) * 5, (2, 2, 1, 1, 1), (4,) * 5]
    first, second = NodeTimes("a", "Add", (1.0, 2.0), {"x": 1}), NodeTimes("a", "Add", (3.0,))
    assert joined([[first], [second]]) == (NodeTimes("a", "Add", (1.0, 2.0, 3.0), {"x": 1}),)


@pytest.mark.parametrize("named", [True, False])
def test_a_graph_with_bodies_has_each_of_its_nodes_once_with_its_work(named: bool, tmp_path: Path) -> None:
    model = with_bodies()
    if not named:
        for body, _ in graphs_of(model.graph):
            for node in body.node:
                node.name = ""
    engine = opened_graph(model, tmp_path, HostDevice())
    graph = read_graph(tmp_path / "graph.onnx")
    feeds = {"x": np.ones((SIZE, SIZE), np.float32), "chosen": np.array(True)}
    profile = profile_engine(engine, HostDevice(), feeds, 6, Origins(graph, graph))
    assert_adds_up(profile)
    assert BODIES in profile.notes
    assert (len(profile.rounds), engine.most_open) == (5, 1), "the weights are in memory once"
    # As many products as run, each once: the layers of a loop have the work of all its runs.
    products = [layer for layer in profile.layers if layer.op_type == "MatMul"]
    flops = sum(layer.work.flops for layer in products if layer.work is not None)
    assert len(products) == 6
    assert flops == 2 * SIZE**3 * (1 + 4 * TIMES + TIMES**2)
    containers = {layer.name: layer for layer in profile.layers if layer.op_type in ("Loop", "If", "Scan")}
    assert len(containers) == 4
    if named:
        assert {"loop/in_loop", "loop/if/inner_loop/in_inner_loop", "outside"} <= {each.name for each in products}


def test_tables_that_do_not_add_up_to_an_execute_say_so() -> None:
    steady = layer_timings([NodeTimes("a", "Add", (1.0, 1.1, 1.0)), NodeTimes("b", "Add", (2.0, 2.0, 2.1))])
    in_turn = layer_timings(
        [NodeTimes(name, "Add", tuple(9.0 if i == j else 1.0 for j in range(3))) for i, name in enumerate("abc")]
    )
    notes = [list(spread_notes(Profile("e", 3, layers, Wall((1.0,))))) for layers in (steady, in_turn, ())]
    assert notes == [
        [],
        ["the layers' medians add up to 27% of the sum's: times vary from execute to execute"],
        [],
    ]


def test_a_node_that_a_round_does_not_run_has_no_time_in_it() -> None:
    often, seldom = NodeTimes("a", "Add", (1.0, 2.0)), NodeTimes("b", "Add", (3.0,), path=("if",))
    found = joined([[often], [replace(often, runs_ms=(1.0,)), seldom], []])
    assert {node.name: node.runs_ms for node in found} == {"a": (1.0, 2.0, 1.0), "b": (0.0, 0.0, 3.0)}


def test_an_unbuilt_engine_is_named(built: Built) -> None:
    with pytest.raises(EngineNotBuiltError, match="tickrt-build"):
        measure(built(backend=CPU), HostDevice(), "nope", {}, runs=1)


def test_masks_are_ones_by_their_role(built: Built) -> None:
    deployment = built(prefix="their_", axes=("a", "b", "c"))
    engine = open_engine(deployment.engine_folder(), "decoder", HostDevice())
    bundle = load_bundle(deployment.bundle)
    feeds = feeds_of(engine, bundle, sizes_of(bundle, rows=2, frames=16, tokens=4))
    engine.close()
    assert feeds["their_hidden_states"].shape == (2, 16, 8)
    assert feeds["their_condition_mask"].tolist() == [[1.0] * 4] * 2


def test_a_profile_of_the_cuda_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    path = tiny_deployment(tmp_path, more='[build]\nstep_variants = ["plain"]\n', codec=False, text_encoder=False)
    deployment = load_deployment(path).model_copy(update={"target": "cuda"})
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    with simulated() as machine, simulated_provider(machine):
        build_deployment(deployment, target="cuda")
        device = open_device("cuda")
        profile = measure(deployment, device, "decoder", sizes, runs=3)
        device.close()
    assert_adds_up(profile)
    assert all(layer.work is not None for layer in profile.layers)
    assert len(profile.wall.times_ms) == 3
    assert "those of launches" in profile.notes[0]


def test_engines_are_profiled_by_the_graphs_that_the_bundle_has_of_them(built: Built) -> None:
    bundle = load_bundle(built(conditions=True, structure=True, more=FEW_VARIANTS).bundle)
    assert bundle.codec is not None
    assert bundle.codec.encode is not None
    graphs = {
        "decoder": bundle.decoder.graph, "codec_decode": bundle.codec.decode.graph,
        "codec_encode": bundle.codec.encode.graph,
    }  # fmt: skip
    assert {name: source_path(bundle, name) for name in graphs} == {
        name: bundle.graph_path(graph) for name, graph in graphs.items()
    }
    assert (source_path(bundle, "step.plain"), source_path(bundle, "rows.mask")) == (None, None)
    assert source_path(bundle.model_copy(update={"codec": None}), "codec_decode") is None


def test_the_share_that_is_done_is_told_before_every_round(built: Built) -> None:
    deployment, shares = built(more=""), list[float]()
    sizes = sizes_of(load_bundle(deployment.bundle), rows=1, frames=16, tokens=4)
    measure(deployment, HostDevice(), "rows.mask", sizes, 2, shares.append)
    assert shares == [0.0, 0.5]


def test_a_wall_time_is_that_of_a_launch_and_its_wait_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done, now_s = list[str](), [0.0]

    def takes(name: str, time_s: float) -> None:
        done.append(name)
        now_s[0] += time_s

    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    monkeypatch.setattr(measuring, "run_once", lambda engine, feeds: {"y": np.zeros(1, np.float32)})
    stream = SimpleNamespace(record=lambda: SimpleNamespace(wait=lambda: takes("wait", 0.001)))
    device: Any = SimpleNamespace(
        main=stream,
        zeros=lambda shape, dtype: np.zeros(shape, dtype),
        upload=lambda tensor, feed, stream: done.append("upload"),
    )
    execution = SimpleNamespace(launch=lambda stream: takes("launch", 0.002), release=lambda: done.append("release"))
    engine: Any = SimpleNamespace(manifest=SimpleNamespace(target="cpu"), bind=lambda tensors: execution)
    found = list(measuring.wall_times_ms(engine, device, {"x": np.ones(2, np.float32)}, 4))
    assert found == pytest.approx([3.0] * 4)
    assert done == ["upload", *("wait", "launch", "wait") * (measuring.WARM_UP_RUNS + 4), "release"]


@pytest.mark.parametrize("name", ["text_encoder", "codec_decode", "codec_encode"])
def test_a_text_graph_with_seconds_and_a_codec_in_groups_have_profiles(name: str, built: Built) -> None:
    deployment = built(**SECOND_FAMILY)
    sizes = sizes_of(load_bundle(deployment.bundle), rows=1, frames=16, tokens=4)
    assert_adds_up(measure(deployment, HostDevice(), name, sizes, runs=1))


def test_the_usual_frames_of_a_codec_are_a_window_that_its_engine_takes(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    bundle = load_deployment(path).loaded_bundle
    codec = bundle.codec
    assert codec is not None
    canvas = bundle.latents.canvas_frames
    assert usual_frames(bundle, "decoder") == canvas <= usual_frames(bundle, "codec_decode") == canvas
    short = codec.decode.model_copy(update={"window_frames": 16})
    bundle = bundle.model_copy(update={"codec": codec.model_copy(update={"decode": short})})
    assert (usual_frames(bundle, "codec_decode"), usual_frames(bundle, "step.plain")) == (18, canvas)
