"""The model's nodes in a layer, and their modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from helpers.recorded_profiles import SDPA, transformer
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from profiling.layers.origins import (
    CLASSES,
    NAMESPACE,
    NO_MODULE,
    SCOPES,
    OriginGraph,
    Origins,
    common_module,
    listed_names,
    module_of,
    origin_of,
    read_graph,
)
from runtime.engines.node_times import NodeTimes


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
        read_graph(graph(tmp_path / "source.onnx", source)),
        read_graph(graph(tmp_path / "engine.onnx", engine, constant=False)),
    )
    facts = {"provider": "CPUExecutionProvider"}
    fused = NodeTimes("third/QuickGeluFusion/", "QuickGelu", (1.0,), facts)
    # What is made of constants alone is not done in a run; "before" is a layer of its own.
    assert set(names(origins, fused)) == {"first", "second", "third"}
    assert names(origins, NodeTimes("before", "Abs", (1.0,), facts)) == ["before"]
    # A value that the model does not have: by name.
    assert names(origins, NodeTimes("second/Other/", "Mul", (1.0,), facts)) == ["second"]
    assert names(origins, NodeTimes("unheard", "Mul", (1.0,), facts)) == []
