"""Layers: their kinds, the model's nodes in them, their work and times, rooflines, and how a profile is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS, SIMULATED, SIMULATED_RTX, Backend
from helpers.bodies import SIZE, TIMES, with_bodies
from helpers.factories import SECOND_FAMILY, TinySpec, tiny_deployment
from helpers.opened_graph import opened_graph
from helpers.recorded_profiles import FOREIGN_NODE, SDPA, assert_adds_up, recorded, transformer
from helpers.tiny_structure import FRAMES_PER_CODE
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.compile.builder import build_deployment
from profiling.layers.kinds import KINDS, OPAQUE, ORDER, OTHER, layer_kind
from profiling.layers.measure import (
    BODIES,
    feeds_of,
    joined,
    measure_profile,
    notes_of,
    profile_engine,
    round_sizes,
    sizes_of,
    source_path,
    spread_notes,
    usual_frames,
    wall_times_ms,
)
from profiling.layers.origins import (
    CLASSES,
    NAMESPACE,
    NO_MODULE,
    SCOPES,
    OriginGraph,
    Origins,
    common_module,
    graphs_of,
    listed_names,
    module_of,
    origin_of,
    read_origin_graph,
)
from profiling.layers.rollups import (
    SEVERAL,
    UNKNOWN_MODULE,
    WHOLE_BLOCK,
    WHOLE_MODEL,
    BlockTimes,
    by_block,
    by_kind,
    by_module,
    shown_module,
)
from profiling.layers.timings import WARM_UP_RUNS, LayerTiming, Profile, Wall, layer_timings, make_feeds
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
    deployment, shares = built(more=""), list[float]()
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    engine = open_engine(deployment.engine_folder(), name, HostDevice())
    feeds = feeds_of(engine, load_bundle(deployment.bundle), sizes)
    engine.close()
    profile = measure_profile(deployment, HostDevice(), name, sizes, 3, shares.append)
    assert_adds_up(profile)
    assert len(profile.wall.times_ms) == profile.runs == sum(profile.rounds) == 3
    assert shares == pytest.approx([0.0, 1 / 3, 2 / 3]), "it is told before every round"
    assert profile.wall.p95_ms >= profile.wall.p50_ms > 0
    assert all(layer.work is not None for layer in profile.layers)
    assert profile.about["target"] == "cpu"
    assert len(profile.about["engine_sha256"]) == 64
    assert profile.about["shapes"] == {key: list(value.shape) for key, value in feeds.items()}


@pytest.mark.parametrize("name", ["lyric_encoder", "timbre_encoder", "structure_encode", "structure_decode"])
def test_engines_beside_the_tick_are_profiled_by_the_bundles_graphs(name: str, built: Built) -> None:
    deployment = built(conditions=True, structure=True, more=FEW_VARIANTS)
    bundle = load_bundle(deployment.bundle)
    profile = measure_profile(deployment, HostDevice(), name, sizes_of(bundle, rows=1, frames=16, tokens=4), runs=1)
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


DETAILED = '[build]\nstep_variants = []\nverbosity = "detailed"\n'


@pytest.mark.parametrize(
    ("verbosity", "backend"), [("detailed", SIMULATED[0]), ("layer_names", SIMULATED_RTX)], ids=str
)
def test_a_simulated_gpu_s_profile_adds_up(verbosity: str, built: Built, backend: Backend) -> None:
    # "layer_names" is the default: other tests have these engines too.
    shared = verbosity == "layer_names"
    deployment = built(max_rows=16, backend=backend, **({} if shared else {"more": DETAILED}))
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    with backend.running() as machine:
        device = open_device(backend.target)
        profile = measure_profile(deployment, device, "decoder", sizes, runs=3)
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
    graph = read_origin_graph(tmp_path / "graph.onnx")
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
        profile = measure_profile(deployment, device, "decoder", sizes, runs=3)
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


def test_a_wall_time_is_that_of_each_execute_after_warming_up(built: Built) -> None:
    """By a clock that moves by 3 ms whenever it is read."""
    deployment, reads = built(more=""), list[float]()

    def clock() -> float:
        reads.append(0.003 * len(reads))
        return reads[-1]

    engine, bundle = open_engine(deployment.engine_folder(), "decoder", HostDevice()), deployment.loaded_bundle
    feeds = feeds_of(engine, bundle, sizes_of(bundle, rows=1, frames=16, tokens=4))
    found = list(wall_times_ms(engine, HostDevice(), feeds, 4, clock))
    engine.close()
    assert found == pytest.approx([3.0] * 4)
    assert len(reads) == 2 * (WARM_UP_RUNS + 4)


@pytest.mark.parametrize("name", ["text_encoder", "codec_decode", "codec_encode"])
def test_a_text_graph_with_seconds_and_a_codec_in_groups_have_profiles(name: str, built: Built) -> None:
    deployment = built(**SECOND_FAMILY)
    sizes = sizes_of(load_bundle(deployment.bundle), rows=1, frames=16, tokens=4)
    assert_adds_up(measure_profile(deployment, HostDevice(), name, sizes, runs=1))


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


@pytest.mark.parametrize(("version", "slow"), [("10", False), ("11", True)])
def test_kinds_modules_and_blocks_of_a_recorded_transformer(version: str, slow: bool, tmp_path: Path) -> None:
    """In the recording of 11.x the second block's product takes twice as long."""
    profile = recorded(version, tmp_path)
    assert_adds_up(profile)
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
    (blocks,) = by_block(profile)
    assert (blocks.prefix, blocks.indices) == ("decoder.layers", (0, 1))
    assert set(blocks.parts) == {"norm", "attn", "mlp", WHOLE_BLOCK}
    first, second = blocks.parts["mlp"].median_ms
    assert second / first == pytest.approx(2.0 if slow else 1.0)


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


def profile(**modules: tuple[str | None, float]) -> Profile:
    """Layers by name: (module, ms)."""
    whole = sum(ms for _, ms in modules.values())
    layers = [LayerTiming(name, "Add", "pointwise", (ms,), ms / whole, path) for name, (path, ms) in modules.items()]
    return Profile("e", 1, tuple(layers), Wall((1.0,)))


SMALL = profile(
    a=("net.layers.0.mlp.up", 1.0),
    b=("net.layers.0", 0.5),
    c=("net.layers.1.mlp", 3.0),
    d=("net.out", 0.25),
    e=("net", 0.125),
    f=(None, 2.0),
)


def test_modules_at_a_depth_below_the_common_root() -> None:
    found = by_module(SMALL, 1)
    assert [row.layers for row in found] == [1, 1, 2, 1, 1]
    assert [row.share for row in found] == pytest.approx([ms / 6.875 for ms in (3.0, 2.0, 1.5, 0.25, 0.125)])
    rows = {row.name: row.ms for row in found}
    assert list(rows) == ["layers.1", UNKNOWN_MODULE, "layers.0", "out", WHOLE_MODEL], "the longest time is first"
    assert rows == {"layers.1": 3.0, UNKNOWN_MODULE: 2.0, "layers.0": 1.5, "out": 0.25, WHOLE_MODEL: 0.125}
    deep = {row.name: row.ms for row in by_module(SMALL, 2)}
    assert (deep["layers.0"], deep["layers.0.mlp"], deep["layers.1.mlp"]) == (0.5, 1.0, 3.0)


def test_a_layer_across_several_parts_has_a_row_of_its_own() -> None:
    assert shown_module("net", 1, 2, is_wide=True) == SEVERAL
    assert shown_module("net.layers.0", 1, 2, is_wide=True) == f"layers.0.{SEVERAL}"
    # Projections of one attention, shown as deep as the attention: nothing is lost.
    assert shown_module("net.layers.0.attn", 1, 2, is_wide=True) == "layers.0.attn"
    assert shown_module("net.layers.0", 1, 2) == "layers.0"


def test_blocks_side_by_side() -> None:
    (blocks,) = by_block(SMALL)
    assert (blocks.prefix, blocks.indices) == ("net.layers", (0, 1))
    assert blocks.parts == {"mlp": BlockTimes((1.0, 3.0)), WHOLE_BLOCK: BlockTimes((0.5, 0.0))}
    assert blocks.whole == BlockTimes((1.5, 3.0))
    assert by_block(profile(a=("net.layers.0", 1.0), b=("net.out", 1.0))) == [], "a single one is not compared"


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.0, "no block is slower"), (1.09, "no block is slower"), (1.5, "block 7 takes 1.50 of the median")],
)
def test_a_block_is_slow_from_a_tenth_above_the_median_on(ratio: float, verdict: str) -> None:
    times = {f"l{index}": (f"net.layers.{index}.mlp", ratio if index == 7 else 1.0) for index in range(8)}
    (blocks,) = by_block(profile(**times))
    assert blocks.verdict.startswith(verdict)


def test_a_single_slow_execute_makes_no_slow_block() -> None:
    times = {"0": (1.0, 1.0, 1.0), "1": (1.0, 40.0, 1.0)}
    layers = [LayerTiming(index, "Add", "pointwise", ms, 0.5, f"net.layers.{index}.mlp") for index, ms in times.items()]
    (blocks,) = by_block(Profile("e", 3, tuple(layers), Wall((1.0,))))
    assert blocks.whole == BlockTimes((1.0, 1.0))
    assert "no block is slower" in blocks.verdict


def test_families_and_the_parts_of_blocks_are_by_time_the_longest_first() -> None:
    layers = {
        "a0": ("enc.0.norm", 1.0), "a1": ("enc.1.norm", 1.0), "a2": ("enc.1.mlp", 2.5),
        "b0": ("dec.0.norm", 2.0), "b1": ("dec.0.mlp", 3.0), "b2": ("dec.3.norm", 2.0), "b3": ("dec.3.mlp", 3.0),
    }  # fmt: skip
    first, second = by_block(profile(**layers))
    assert (first.prefix, first.indices, second.prefix) == ("dec", (0, 3), "enc")
    assert (list(first.parts), list(second.parts)) == (["mlp", "norm"], ["mlp", "norm"])
    assert (first.slowest, second.slowest) == ((0, 1.0), (1, 3.5 / 2.25))


def layer(name: str, op_type: str = "kgen", metadata: str = "") -> NodeTimes:
    return NodeTimes(name, op_type, (1.0,), {"Metadata": metadata} if metadata else {})


@pytest.mark.parametrize(
    ("notes", "name", "module"),
    [
        ({"pkg.torch.onnx.name_scopes": "['', 'a', 'a.b.0', 'a.b.0.to_k', 'linear_3']"}, "n", "a.b.0.to_k"),
        ({"pkg.torch.onnx.name_scopes": "['', 'view']"}, "n", ""),
        ({"pkg.torch.onnx.name_scopes": f"['{NO_MODULE}', 'size']"}, "n", None),
        ({"namespace": ": Model/a: Inner/a.b: Block/linear: aten.linear.default"}, "n", "a.b"),
        ({"namespace": f"{NO_MODULE}: x/size: aten.size"}, "n", None),
        ({}, "/layers.0/attn/MatMul", "layers.0.attn"),
        ({}, "guidance/project/Mul", "guidance.project"),
        ({}, "guidance/Mul/QuickGeluFusion/", "guidance"),
        ({}, "node_linear", None),
        ({"pkg.torch.onnx.name_scopes": """['', 'it\\'s', "b[0].class", 'x']"""}, "n", "b[0].class"),
        ({"pkg.torch.onnx.name_scopes": "layers[0].attn"}, "a/b", "a"),
        ({"pkg.torch.onnx.name_scopes": "['', layers.0, 'x']"}, "n", None),
        ({"pkg.torch.onnx.name_scopes": "[" * 100_000}, "n", None),
        ({"pkg.torch.onnx.name_scopes": "['a', 1, None]", "namespace": "a: A/b: B/x: y"}, "n", "b"),
    ],
)
def test_modules(notes: dict[str, str], name: str, module: str | None) -> None:
    assert module_of(notes, name) == module


def test_origins() -> None:
    assert origin_of({"pkg.torch.onnx.class_hierarchy": f"['Model', '{SDPA}']"}) == SDPA
    assert origin_of({"namespace": ": Model/linear: aten.linear.default"}) == "aten.linear.default"
    assert origin_of({}) == ""


@given(st.lists(st.text()))
@settings(max_examples=60, deadline=None)
def test_a_list_of_names_is_read_as_torch_writes_it(names: list[str]) -> None:
    found = listed_names(repr(names))
    assert len(found) == len(names)
    assert [name for name in found if name.isidentifier()] == [name for name in names if name.isidentifier()]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="[]'\", \\abc.()\n\0"))
def test_any_text_of_an_exporter_is_read(text: str) -> None:
    notes = dict.fromkeys((SCOPES, CLASSES, NAMESPACE), text)
    assert origin_of(notes) == (listed_names(text) or [""])[-1]
    module_of(notes, text)


def test_common_module() -> None:
    assert common_module(["a.b.0.q", "a.b.0.k.x"]) == "a.b.0"
    assert common_module(["a.b.1", "a.b.10"]) == "a.b"
    assert common_module(["a.b", "a.b.c", None]) == "a.b"
    assert common_module(["a", ""]) == ""
    assert common_module(["a", "b"]) == ""
    assert common_module([None]) is None
    assert common_module([]) is None


def names(origins: Origins, of: NodeTimes) -> list[str]:
    return [node.name for node in origins.of(of)]


def test_tensorrt_layers_are_found_by_metadata_then_by_name(tmp_path: Path) -> None:
    origins = Origins(transformer(tmp_path))
    marks = "[ONNX Layer: up_0]\x1e[ONNX Layer: gone]\x1f[ONNX Layer: gate_0]\x1e[ONNX Layer: up_0]"
    assert names(origins, layer("__myl_Mul_myl7_3", metadata=marks)) == ["up_0", "gate_0"]
    assert names(origins, layer("up_1_myl7_9")) == ["up_1"]
    assert names(origins, layer("up_1 [profile 1]_myl11_9")) == ["up_1"]
    assert names(origins, layer("__myl_Mul_myl7_3")) == []
    odd = renamed(origins.source, {"up_0": "a] [b", "gate_0": "x]\n*_myl7_1"})
    marks = "[ONNX Layer: a] [b]\x1e[ONNX Layer: x]\n*_myl7_1]\x1f"
    assert names(odd, layer("__myl_Mul_myl7_3", metadata=marks)) == ["a] [b", "x]\n*_myl7_1"]
    assert names(odd, layer("x]\n*_myl7_1")) == ["x]\n*_myl7_1"]
    # Of a blob's two ends nothing follows for what lies between them.
    assert names(origins, layer("{ForeignNode[up_0...up_1]}", "ForeignNode")) == []
    assert names(Origins(), layer("up_1_myl7_9")) == []


def renamed(graph: OriginGraph | None, by_name: Mapping[str, str]) -> Origins:
    assert graph is not None
    return Origins(OriginGraph(graph.model, tuple(replace(n, name=by_name.get(n.name, n.name)) for n in graph.nodes)))


def graph(path: Path, nodes: list[onnx.NodeProto], *, constant: bool = True) -> Path:
    """x [4] -> y [4] through these nodes."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    constants = [helper.make_tensor("c", TensorProto.FLOAT, [], [2.0])] if constant else []
    model = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], constants))
    onnx.save(model, path)
    return path


def node(op_type: str, name: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [output], name)


def test_a_fused_onnxruntime_layer_holds_the_nodes_between_common_values(tmp_path: Path) -> None:
    source = [
        node("Abs", "before", ["x"], "a"),
        node("Neg", "folded", ["c"], "d"),
        node("Sigmoid", "first", ["a"], "b"),
        node("Mul", "second", ["b", "d"], "e"),
        node("Mul", "third", ["a", "e"], "y"),
    ]
    engine = [
        node("Abs", "before", ["x"], "a"),
        # What the optimizer put in between has a name of its own.
        node("Identity", "copy", ["a"], "a_token_1"),
        node("QuickGelu", "third/QuickGeluFusion/", ["a_token_1"], "y"),
    ]
    origins = Origins(
        read_origin_graph(graph(tmp_path / "source.onnx", source)),
        read_origin_graph(graph(tmp_path / "engine.onnx", engine, constant=False)),
    )
    facts = {"provider": "CPUExecutionProvider"}
    fused = NodeTimes("third/QuickGeluFusion/", "QuickGelu", (1.0,), facts)
    # What is made of constants alone is not done in a run; "before" is a layer of its own.
    assert set(names(origins, fused)) == {"first", "second", "third"}
    assert names(origins, NodeTimes("before", "Abs", (1.0,), facts)) == ["before"]
    # A value that the model does not have: by name.
    assert names(origins, NodeTimes("second/Other/", "Mul", (1.0,), facts)) == ["second"]
    assert names(origins, NodeTimes("unheard", "Mul", (1.0,), facts)) == []


def test_no_operator_has_two_kinds() -> None:
    names = [name for kind in KINDS.values() for name in kind]
    assert len(names) == len(set(names))
    assert set(KINDS) | {OPAQUE, OTHER} == set(ORDER)


@pytest.mark.parametrize(
    ("op_type", "contents", "name", "kind"),
    [
        ("Gemm", [], "", "gemm"),
        ("NotAnOperator", [], "", OTHER),
        # A product of an attention belongs to it, its copies do not.
        ("MatMul", [("MatMul", SDPA)], "", "attention"),
        ("Transpose", [("Transpose", SDPA)], "", "reformat"),
        ("FusedMatMul", [("MatMul", SDPA), ("Mul", SDPA)], "", "attention"),
        ("gemm", [("MatMul", "aten.linear"), ("Add", "aten.add")], "", "gemm"),
        ("gemm", [], "node_linear_myl7_1", "gemm"),
        # Generated kernels: by what they hold, then by their names.
        ("kgen", [("Pow", ""), ("ReduceMean", ""), ("Sqrt", ""), ("Div", "")], "__myl_MulMean_myl7_2", "norm"),
        ("kgen", [("ReduceMean", ""), ("Mul", "")], "__myl_MulMean_myl7_2", "reduction"),
        ("kgen", [("Mul", ""), ("Transpose", "")], "", "pointwise"),
        ("kgen", [("MatMul", ""), ("Mul", "")], "", "pointwise"),
        ("kgen", [("MatMul", "")], "", "gemm"),
        ("kgen", [("MatMul", ""), ("Mul", "")], "_gemm_mha_v2_myl7_9", "attention"),
        ("kgen", [], "__myl_MaxrSubExpSum_myl7_3", "attention"),
        ("kgen", [], "__myl_MulSumAddSqrtDiv_myl7_3", "norm"),
        ("kgen", [], "__myl_MulAdd_myl7_3", "pointwise"),
        ("kgen", [], "__myl_TranResh_myl7_3", "reformat"),
        ("kgen", [], "__myl_Qux_myl7_3", OTHER),
        ("shape_call", [("MatMul", "")], "", "reformat"),
        ("CaskConvolution", [("Conv", ""), ("Mul", "")], "", "convolution"),
        ("Reformat", [], "Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...b]}", "reformat"),
        # Subgraphs: opaque, unless all operators are of one kind.
        ("ForeignNode", [], "{ForeignNode[a...b]}", OPAQUE),
        ("Myelin", [("MatMul", ""), ("Add", "")], "{ForeignNode[a...b]}", OPAQUE),
        ("Myelin", [("Mul", ""), ("Add", ""), ("Reshape", "")], "{ForeignNode[a...b]}", "pointwise"),
    ],
)
def test_kinds(op_type: str, contents: list[tuple[str, str]], name: str, kind: str) -> None:
    assert layer_kind(op_type, contents, name) == kind
