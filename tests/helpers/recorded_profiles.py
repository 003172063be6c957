"""TensorRT profiles of a small transformer, in the formats of 10.x and 11.x, and the graph of their layers.

The files are written by hand from the documented field names; their times are invented.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from profiling.layers.origins import CLASSES, SCOPES, OriginGraph, Origins, read_origin_graph
from profiling.layers.rollups import by_block, by_kind, by_module
from profiling.layers.timings import Profile, Wall, layer_timings
from profiling.layers.work import Ceilings, layer_works
from profiling.reports.json_files import profile_records
from runtime.engines.node_times import NodeTimes, layer_records, node_times

FOLDER = Path(__file__).parents[1] / "data" / "profiles"
VERSIONS = ("10", "11")
RUNS = 20
BLOCKS = (0, 1)
SHAPES = {"x": (2, 8, 16)}
FOREIGN_NODE = "{ForeignNode[out_norm...out_proj]}"
SDPA = "aten.scaled_dot_product_attention.default"


def recorded_nodes(version: str) -> tuple[NodeTimes, ...]:
    """Layers as Engine.profile returns them, from the two files in trtexec's format."""
    records = layer_records((FOLDER / f"layers_{version}.json").read_text(encoding="utf-8"))
    _, *rows = recorded_rows(version)
    assert set(records) == {row["name"] for row in rows}
    return node_times([[(row["name"], row["averageMs"]) for row in rows]] * RUNS, records)


def recorded_rows(version: str) -> list[dict[str, Any]]:
    """The records of trtexec's --exportProfile."""
    return json.loads((FOLDER / f"profile_{version}.json").read_text(encoding="utf-8"))


def recorded(version: str, folder: Path, ceilings: Ceilings | None = None) -> Profile:
    """The recording as a profile; its graph is written into `folder`."""
    nodes, origins = recorded_nodes(version), Origins(transformer(folder))
    layers = layer_timings(nodes, origins, layer_works(nodes, origins, SHAPES))
    about = {"target": "tensorrt", "shapes": {name: list(shape) for name, shape in SHAPES.items()}}
    return Profile("decoder", RUNS, layers, Wall((0.7, 0.8, 0.9)), about, ceilings)


def assert_adds_up(profile: Profile) -> None:
    """Every rollup adds up to the layer sum, and every share to 1."""
    assert profile.layers
    for rows in (by_kind(profile), *(by_module(profile, depth) for depth in (1, 2, 9))):
        assert sum(row.ms for row in rows) == pytest.approx(profile.layer_medians_ms)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert sum(row.layers for row in rows) == len(profile.layers)
    for blocks in by_block(profile):
        for index, block_ms in zip(blocks.indices, blocks.whole.median_ms, strict=True):
            inside = [layer for layer in profile.layers if f"{layer.module}.".startswith(f"{blocks.prefix}.{index}.")]
            assert block_ms == pytest.approx(median(map(sum, zip(*(layer.runs_ms for layer in inside), strict=True))))
    assert sum(layer.share for layer in profile.layers) == pytest.approx(1.0)
    _, *rows = profile_records(profile)
    assert sum(row["percentage"] for row in rows) == pytest.approx(100.0, abs=1e-3)
    rounding_ms = 1e-6 * len(rows)
    assert sum(row["averageMs"] for row in rows) == pytest.approx(profile.layer_sum_ms, rel=1e-4, abs=rounding_ms)


def transformer(folder: Path) -> OriginGraph:
    """The graph, read from a file in `folder`."""
    path = folder / "transformer.onnx"
    onnx.save(transformer_model(), path)
    return read_origin_graph(path)


def transformer_model() -> onnx.ModelProto:
    """x [rows, frames, 16] through two blocks of attention and gated MLP, a norm, a projection and a convolution."""
    parts = _Parts()
    value = "x"
    for index in BLOCKS:
        value = _block(parts, index, value)
    value = _norm(parts, "out_square", "out_mean", "out_root", "out_norm", value, "decoder.norm_out")
    parts.node("MatMul", "out_proj", [value, "w"], "decoder.proj_out")
    parts.node("Transpose", "channels_first", ["out_proj"], "decoder", perm=[0, 2, 1])
    parts.node("Conv", "out_conv", ["channels_first", "kernel"], "decoder.conv_out", pads=[1, 1])
    shapes = ("rows", "frames", 16), ("rows", 16, "frames")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(("x", "out_conv"), shapes, strict=True)
    )
    weights = {"w": (16, 16), "kernel": (16, 16, 3), "two": ()}
    initializers = [
        helper.make_tensor(name, TensorProto.FLOAT, dims, b"\0" * 4 * _count(dims), raw=True)
        for name, dims in weights.items()
    ]
    initializers.append(helper.make_tensor("last", TensorProto.INT64, (1,), [-1]))
    graph = helper.make_graph(parts.nodes, "transformer", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _block(parts: _Parts, index: int, value: str) -> str:
    module = f"decoder.layers.{index}"
    names = (f"square_{index}", f"mean_{index}", f"root_{index}", f"normed_{index}")
    normed = _norm(parts, *names, value, f"{module}.norm")
    parts.node("MatMul", f"to_q_{index}", [normed, "w"], f"{module}.attn.to_q")
    parts.node("MatMul", f"to_k_{index}", [normed, "w"], f"{module}.attn.to_k")
    parts.node("Transpose", f"turned_{index}", [f"to_k_{index}"], f"{module}.attn", SDPA, perm=[0, 2, 1])
    parts.node("MatMul", f"scores_{index}", [f"to_q_{index}", f"turned_{index}"], f"{module}.attn", SDPA)
    parts.node("Softmax", f"weights_{index}", [f"scores_{index}"], f"{module}.attn", SDPA, axis=-1)
    parts.node("MatMul", f"mixed_{index}", [f"weights_{index}", normed], f"{module}.attn", SDPA)
    parts.node("MatMul", f"up_{index}", [f"mixed_{index}", "w"], f"{module}.mlp.up")
    parts.node("Mul", f"gate_{index}", [f"up_{index}", f"up_{index}"], f"{module}.mlp")
    parts.node("Add", f"add_{index}", [f"gate_{index}", value], module)
    return f"add_{index}"


def _norm(parts: _Parts, square: str, mean: str, root: str, result: str, value: str, module: str) -> str:
    parts.node("Pow", square, [value, "two"], module)
    parts.node("ReduceMean", mean, [square, "last"], module)
    parts.node("Sqrt", root, [mean], module)
    parts.node("Div", result, [value, root], module)
    return result


def _count(dims: tuple[int, ...]) -> int:
    return dims[0] * _count(dims[1:]) if dims else 1


class _Parts:
    """Nodes with the metadata of torch's exporter; a node's output has the node's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def node(
        self,
        op_type: str,
        name: str,
        inputs: list[str],
        module: str,
        origin: str = "aten.op.default",
        **attributes: Any,
    ) -> None:
        node = helper.make_node(op_type, inputs, [name], name, **attributes)
        path = module.split(".")
        scopes = ["", *(".".join(path[: end + 1]) for end in range(len(path))), name]
        for key, value in ((SCOPES, scopes), (CLASSES, ["Model", origin])):
            entry = node.metadata_props.add()
            entry.key, entry.value = key, repr(value)
        self.nodes.append(node)
