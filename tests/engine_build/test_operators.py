"""Graphs that we write use only operators, with types, that TensorRT's ONNX parser takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from factories import tiny_deployment
from onnx import TensorProto, helper, numpy_helper, shape_inference

from engine_build.config import load_request
from engine_build.jobs import Job, jobs_of
from engine_build.verify import sample_feeds

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "data" / "tensorrt_operators.txt"
OPSETS = range(9, 21)
NAMES = {
    TensorProto.FLOAT: "FP32", TensorProto.FLOAT16: "FP16", TensorProto.BFLOAT16: "BF16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8",
    TensorProto.DOUBLE: "FP32",  # the parser reads double as float: see test_doubles_may_become_floats
}  # fmt: skip
DATA_INPUT = {"Where": 1, "OneHot": 2}


def table() -> dict[str, tuple[frozenset[str], bool]]:
    """Operator -> the types of its data, and whether its axes must be constant."""
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {name: (frozenset(types.split(",")), bool(star)) for name, types, *star in lines}


def problems(model: onnx.ModelProto) -> Iterator[str]:
    """What TensorRT's parser would not take of a graph."""
    known = table()
    yield from (f"opset {item.version}" for item in model.opset_import if item.version not in OPSETS)
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    values = [*graph.input, *graph.output, *graph.value_info]
    types = constants | {value.name: value.type.tensor_type.elem_type for value in values}
    constants |= {output: 0 for node in graph.node if node.op_type == "Constant" for output in node.output}
    for node in graph.node:
        if node.op_type not in known or node.domain not in ("", "ai.onnx"):
            yield f"{node.name}: {node.op_type} is not supported"
            continue
        allowed, has_constant_axes = known[node.op_type]
        place = min(DATA_INPUT.get(node.op_type, 0), len(node.input) - 1)
        kind = NAMES.get(types.get(node.input[place], 0), "?") if node.input else "FP32"
        if kind not in allowed:
            yield f"{node.name}: {node.op_type} of {kind}, TensorRT takes {', '.join(sorted(allowed))}"
        if has_constant_axes and len(node.input) > 1:
            axes = node.input[3 if node.op_type in ("Slice", "Pad") else 1 :]
            yield from (f"{node.name}: axes {name} are computed" for name in axes[:1] if name and name not in constants)


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
