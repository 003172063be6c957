"""All graphs of a deployment use only operators and types that TensorRT's ONNX parser supports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from helpers.tensorrt_operators import problems
from onnx import TensorProto, helper, numpy_helper

from engine_build.build.engine_specs import EngineSpec, engine_specs
from engine_build.build.verify import sample_inputs
from engine_build.config import load_request


def model_of(spec: EngineSpec) -> onnx.ModelProto:
    source = spec.graph.source
    if isinstance(source, bytes):
        return onnx.load_from_string(source)
    return onnx.load(source)


@pytest.mark.parametrize("bundle", ["demo", "tiny"])
def test_every_graph_is_supported(bundle: str, tmp_path: Path) -> None:
    path = ROOT / "configs" / "demo.toml" if bundle == "demo" else tiny_deployment(tmp_path)
    found = {spec.name: list(problems(model_of(spec))) for spec in engine_specs(load_request(path))}
    assert len(found) == 25
    assert {name: unsupported for name, unsupported in found.items() if unsupported} == {}


def in_single(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def with_doubles_as_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as TensorRT's parser reads it: float64 as float32."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(in_single(tensor))
    for attribute in (item for node in model.graph.node for item in node.attribute):
        if attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
            attribute.i = TensorProto.FLOAT
    return model


def test_doubles_may_become_floats() -> None:
    """The demo codec computes phases in float64, for any start frame."""
    specs = [
        spec for spec in engine_specs(load_request(ROOT / "configs" / "demo.toml")) if spec.kind.startswith("codec")
    ]
    doubles = 0
    for spec in specs:
        model = model_of(spec)
        doubles += sum(tensor.data_type == TensorProto.DOUBLE for tensor in model.graph.initializer)
        feeds = next(sample_inputs(spec))
        if "start_frame" in feeds:
            feeds["start_frame"][:] = 123_456_789
        exact = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
        single = ort.InferenceSession(with_doubles_as_floats(model).SerializeToString()).run(None, feeds)[0]
        assert np.abs(single - exact).max() <= 1e-5 * np.abs(exact).max()
    assert doubles > 0


@pytest.mark.parametrize(
    ("op", "kind", "says"),
    [
        ("Unique", TensorProto.FLOAT, "Unique is not supported"),
        ("Softmax", TensorProto.INT64, "Softmax of INT64"),
        ("Neg", TensorProto.FLOAT, None),
    ],
)
def test_unsupported_operators_are_found(op: str, kind: int, says: str | None) -> None:
    x, y = (helper.make_tensor_value_info(name, kind, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], name="n")], "g", [x], [y])
    found = list(problems(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])))
    assert not found if says is None else says in found[0]


def test_computed_axes_are_found() -> None:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 2]), ("y", None))
    )
    axes = helper.make_tensor_value_info("axes", TensorProto.INT64, [1])
    node = helper.make_node("Squeeze", ["x", "axes"], ["y"], name="n")
    graph = helper.make_graph([node], "g", [x, axes], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    assert list(problems(model)) == ["n: axes axes are computed"]
