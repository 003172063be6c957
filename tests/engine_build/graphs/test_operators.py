"""Graphs that we write use only operators, with types, that TensorRT's ONNX parser takes."""

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

from engine_build.build.engine_specs import Job, jobs_of
from engine_build.build.verify import sample_feeds
from engine_build.config import load_request


def model_of(job: Job) -> onnx.ModelProto:
    source = job.graph.source
    if isinstance(source, bytes):
        return onnx.load_from_string(source)
    return onnx.load(source)


@pytest.mark.parametrize("bundle", ["demo", "tiny"])
def test_every_graph_is_taken(bundle: str, tmp_path: Path) -> None:
    path = ROOT / "configs" / "demo.toml" if bundle == "demo" else tiny_deployment(tmp_path)
    found = {job.name: list(problems(model_of(job))) for job in jobs_of(load_request(path))}
    assert len(found) == 24
    assert {name: said for name, said in found.items() if said} == {}


def in_single(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def as_the_parser_reads_it(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every double a float."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(in_single(tensor))
    for attribute in (item for node in model.graph.node for item in node.attribute):
        if attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
            attribute.i = TensorProto.FLOAT
    return model


def test_doubles_may_become_floats() -> None:
    """The demo's codec counts phases in double, over any number of frames."""
    jobs = [job for job in jobs_of(load_request(ROOT / "configs" / "demo.toml")) if job.kind.startswith("codec")]
    doubles = 0
    for job in jobs:
        model = model_of(job)
        doubles += sum(tensor.data_type == TensorProto.DOUBLE for tensor in model.graph.initializer)
        feeds = next(sample_feeds(job))
        if "start_frame" in feeds:
            feeds["start_frame"][:] = 123_456_789
        exact = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
        single = ort.InferenceSession(as_the_parser_reads_it(model).SerializeToString()).run(None, feeds)[0]
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
def test_what_is_not_taken_is_found(op: str, kind: int, says: str | None) -> None:
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
