"""Our rules and the real builder on small graphs: they agree, or the difference and its reason are listed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from helpers.graphs_with_bodies import FRAMES, C, graph_with_bodies
from onnx import TensorProto, helper, numpy_helper
from real_builder.judge import TARGET, build_graph, need_builder

from engine_build.graphs.plain_graph import plain
from engine_build.graphs.tensorrt_preparation import prepare_model
from engine_build.graphs.tensorrt_rules import doubts, problems
from engine_build.precision.node_rules import LAYOUT, POINTWISE
from engine_build.precision.recipe import apply_recipe, without_kernel
from runtime.base.errors import BuildError
from runtime.engines.value_shapes import PRODUCTS, value_shapes

pytestmark = pytest.mark.builder

KINDS = {
    "fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "int32": TensorProto.INT32,
    "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
}  # fmt: skip
FLOATS = ("fp32", "fp16", "bf16")
NUMBERS = (*FLOATS, "int32", "int64")
# The sizes of free dimensions: smallest, usual and largest.
SIZES = {"b": (1, 2, 3), "t": (4, 6, 8)}
Shape = tuple[int | str, ...]


class Case(NamedTuple):
    """One node. inputs: name -> type and shape, of constants (names in capitals) the values; result: type and rank."""

    name: str
    op: str
    inputs: dict[str, Any]
    result: tuple[str, int] = ("fp32", 2)
    attributes: dict[str, Any] = {}  # noqa: RUF012
    outputs: int = 1


def unary() -> Iterator[Case]:
    for op in (
        "Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
        "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt",
        "Swish", "Tanh",
    ):  # fmt: skip
        yield from (Case(f"{op} {kind}", op, {"x": (kind, ("b", "t"))}, (kind, 2)) for kind in FLOATS)
    yield from (Case(f"Not {kind}", "Not", {"x": (kind, ("b", "t"))}, (kind, 2)) for kind in ("bool",))


def binary() -> Iterator[Case]:
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"):
        for kind in NUMBERS:
            pair = {"x": (kind, ("b", "t")), "z": (kind, (1, "t"))}
            yield Case(f"{op} {kind}", op, pair, (kind, 2), {"fmod": 1} if op == "Mod" and kind in FLOATS else {})
    for op in ("Pow", "PRelu"):
        for kind in FLOATS:
            yield Case(f"{op} {kind}", op, {"x": (kind, ("b", "t")), "z": (kind, (1, "t"))}, (kind, 2))
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        for kind in (*NUMBERS, *(["bool"] if op == "Equal" else [])):
            yield Case(f"{op} {kind}", op, {"x": (kind, ("b", "t")), "z": (kind, ("b", 1))}, ("bool", 2))
    for op in ("And", "Or", "Xor"):
        yield Case(op, op, {"x": ("bool", ("b", "t")), "z": ("bool", ("b", "t"))}, ("bool", 2))


def shaping() -> Iterator[Case]:
    for kind in (*NUMBERS, "bool"):
        x = {"x": (kind, ("b", "t", 8))}
        yield Case(f"Transpose {kind}", "Transpose", x, (kind, 3), {"perm": [0, 2, 1]})
        yield Case(f"Reshape {kind}", "Reshape", {**x, "S": np.array([0, -1])}, (kind, 2))
        yield Case(f"Unsqueeze {kind}", "Unsqueeze", {**x, "A": np.array([1])}, (kind, 4))
        yield Case(f"Gather {kind}", "Gather", {**x, "i": ("int64", ("b",))}, (kind, 3), {"axis": 1})
        ends = {"START": np.array([1]), "END": np.array([7]), "AXIS": np.array([2])}
        yield Case(f"Slice {kind}", "Slice", {**x, **ends}, (kind, 3))
        yield Case(f"Concat {kind}", "Concat", {**x, "z": (kind, ("b", "t", 2))}, (kind, 3), {"axis": -1})
        same = {"c": ("bool", ("b", "t", 1)), **x, "z": (kind, ("b", "t", 8))}
        yield Case(f"Where {kind}", "Where", same, (kind, 3))


def reducing() -> Iterator[Case]:
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "CumSum"):
        for kind in NUMBERS:
            axis = np.array(1) if op == "CumSum" else np.array([1])
            shape = {} if op == "CumSum" else {"keepdims": 1}
            yield Case(f"{op} {kind}", op, {"x": (kind, ("b", "t")), "A": axis}, (kind, 2), shape)
    for op in ("ArgMax", "ArgMin"):
        yield from (Case(f"{op} {kind}", op, {"x": (kind, ("b", "t"))}, ("int64", 2)) for kind in NUMBERS)
    for count in (3840, 3841):
        yield Case(f"TopK {count}", "TopK", {"x": ("fp32", ("b", 8000)), "K": np.array([count])}, outputs=2)
    yield Case("CumSum computed axis", "CumSum", {"x": ("fp32", ("b", "t")), "a": ("int64", ())})


def products() -> Iterator[Case]:
    for kind in FLOATS:
        dtype = helper.tensor_dtype_to_np_dtype(KINDS[kind])
        pair = {"x": (kind, ("b", "t", 8)), "z": (kind, ("b", 8, "t"))}
        yield Case(f"MatMul {kind}", "MatMul", pair, (kind, 3))
        x = {"x": (kind, ("b", 4, "t"))}
        for op, shape in (("Conv", (6, 4, 1)), ("ConvTranspose", (4, 6, 2))):
            yield Case(f"{op} {kind}", op, {**x, "W": np.ones(shape, dtype)}, (kind, 3))
            yield Case(f"{op} computed {kind}", op, {**x, "w": (kind, shape)}, (kind, 3))
        for width in (8, 64, 512):
            heads = dict.fromkeys("qkv", (kind, ("b", 2, "t", width)))
            yield Case(f"Attention {kind} {width}", "Attention", heads, (kind, 4))
        yield Case(f"Attention softcap {kind}", "Attention", heads, (kind, 4), {"softcap": 5.0})
        norm = {"x": (kind, ("b", "t", 8)), "SCALE": np.ones(8, dtype)}
        yield from (Case(f"{op} {kind}", op, norm, (kind, 3)) for op in ("RMSNormalization", "LayerNormalization"))


def caches() -> Iterator[Case]:
    for kind in NUMBERS:
        cache = {"c": (kind, ("b", 2, 16, 8)), "u": (kind, ("b", 2, 1, 8)), "w": ("int64", ("b",))}
        yield Case(f"TensorScatter {kind}", "TensorScatter", cache, (kind, 4), {"axis": -2})
    for reduction in ("none", "add"):
        three = {"x": ("fp32", ("b", 8)), "i": ("int64", ("b", 8)), "u": ("fp32", ("b", 8))}
        yield Case(f"ScatterElements {reduction}", "ScatterElements", three, attributes={"reduction": reduction})
    yield Case(
        "Range rank 1", "Range", {"s": ("int64", (1,)), "l": ("int64", (1,)), "d": ("int64", (1,))}, ("int64", 1)
    )


CASES = [*unary(), *binary(), *shaping(), *reducing(), *products(), *caches()]
# What our rules refuse for tensorrt although TensorRT-RTX builds it: that lifts no rule for TensorRT 10.16 and 11.
ONLY_OURS = {
    **{f"Swish {kind}": "new in opset 24, the importer's table does not have it" for kind in FLOATS},
    "Equal bool": "not in the importer's table; the preparation writes Xor and Not",
    "CumSum int32": "not in the importer's table",
    **{f"Conv computed {kind}": "an importer before 10.15 wants weights" for kind in FLOATS},
    **{f"ConvTranspose computed {kind}": "an importer before 10.15 wants weights" for kind in ("fp32", "fp16")},
}


def model_of_case(case: Case) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, KINDS[given[0]], given[1])
        for name, given in case.inputs.items()
        if isinstance(given, tuple)
    ]
    constants = [numpy_helper.from_array(given, name) for name, given in case.inputs.items() if name.isupper()]
    names = [f"y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, list(case.inputs), names, "n", **case.attributes)
    kind, rank = case.result
    result = helper.make_tensor_value_info("y0", KINDS[kind], [None] * rank)
    graph = helper.make_graph([node], "case", values, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def at(shape: Shape, end: int) -> tuple[int, ...]:
    return tuple(SIZES[size][end] if isinstance(size, str) else size for size in shape)


def refusal(case: Case, folder: Path) -> str:
    """Why the real builder refuses a graph; "" where it builds."""
    path = folder / "graph.onnx"
    onnx.save(model_of_case(case), path)
    shapes = {name: given[1] for name, given in case.inputs.items() if isinstance(given, tuple)}
    profile = {name: " ".join("x".join(map(str, at(shape, end))) for end in range(3)) for name, shape in shapes.items()}
    try:
        build_graph(path, profile, optimization_level=0)
    except BuildError as error:
        if "build process ended" in error.what:  # a fault of ours
            raise
        return error.what
    return ""


def test_rules_and_builder_agree(tmp_path: Path) -> None:
    """And what the recipe bf16 rounds can be built: it leaves out what cannot."""
    need_builder()
    assert len(CASES) > 200
    ours, theirs = {}, {}
    for case in CASES:
        model = model_of_case(case)
        shapes = {name: at(given[1], 2) for name, given in case.inputs.items() if isinstance(given, tuple)}
        values = value_shapes(model, shapes)
        if found := [*problems(model, values), *doubts(model, values)]:
            ours[case.name] = found[0]
        if why := refusal(case, tmp_path):
            theirs[case.name] = why
    assert {name: why for name, why in ours.items() if name not in theirs}.keys() == ONLY_OURS.keys()
    assert {name: why for name, why in theirs.items() if name not in ours} == {}
    assert len(theirs) > 8
    low = [case for case in CASES if case.name == f"{case.op} bf16" and case.op in (*POINTWISE, *LAYOUT, *PRODUCTS)]
    assert {case.op for case in low if case.name in theirs} == without_kernel(TARGET, "bf16")
    assert len(low) > 25


SEEDS = range(12)
ROWS = (1, 2, 4)
PROFILE = {
    "latents": " ".join(f"{rows}x{FRAMES}x{C}" for rows in ROWS),
    "time": " ".join(map(str, ROWS)),
}
RECIPES: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "fp32": lambda model: model,
    "bf16": lambda model: apply_recipe(model, "bf16"),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_builder_takes_them(recipe: str, seed: int, tmp_path: Path) -> None:
    build(graph_with_bodies(seed, depth=1), recipe, tmp_path)


def build(model: onnx.ModelProto, recipe: str, tmp_path: Path) -> None:
    need_builder()
    shapes = [{"latents": (rows, FRAMES, C), "time": (rows,)} for rows in ROWS[1:]]
    graph = tmp_path / "graph.onnx"
    onnx.save(prepare_model(RECIPES[recipe](plain(model)), shapes), graph)
    build_graph(graph, PROFILE)


def test_nesting_that_it_does_not_build_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as found:
        build(graph_with_bodies(9), "fp32", tmp_path)
    assert "TensorRT does not build all control flow inside control flow" in found.value.fix
