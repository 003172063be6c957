"""Precision recipes: which parts of a decoder run in 16 bits, as casts in its graph.

Strongly typed TensorRT and ONNX Runtime's CUDA provider both do what the graph says, so the recipe is the precision.
Inputs and outputs stay float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx
from onnx import TensorProto, defs

from engine_build.graphs.graph_view import GraphView, node_name
from engine_build.precision.casts import FileWeights, InlineWeights, Rewriter, Weights
from engine_build.precision.node_rules import parts_of
from engine_build.precision.normalize import prepared
from runtime.errors import BuildError

RecipeName = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """A low precision: its ONNX type, and the largest number that may be added to an attention score."""

    name: RecipeName
    kind: int
    mask_limit: float


RECIPES: Mapping[str, Recipe] = {
    "fp16": Recipe("fp16", TensorProto.FLOAT16, 2.0**15),
    "bf16": Recipe("bf16", TensorProto.BFLOAT16, 2.0**127),
}
# What has no bf16 kernel for a target. For ONNX Runtime that is docs/OperatorKernels.md in its source, at the opset in
# which graphs for its CUDA provider are written.
WITHOUT_KERNEL: Mapping[tuple[str, str], frozenset[str]] = {
    ("cuda", "bf16"): frozenset({
        "Clip", "Conv", "ConvTranspose", "Einsum", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu",
        "Reciprocal", "Softplus", "Swish",
    }),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """One node of the source graph: in what it runs ("index" where it holds no floating-point numbers), and why."""

    name: str
    op_type: str
    precision: str
    part: str
    why: str


def without_kernel(target: str, recipe: str) -> frozenset[str]:
    """Operators that stay in fp32 because a target cannot run them in the recipe's precision."""
    return WITHOUT_KERNEL.get((target, recipe), frozenset())


def without_type(view: GraphView, kind: int) -> frozenset[str]:
    """Operators of a graph that ONNX does not define for an element type: bf16's Conv came with opset 22."""
    opset = next(item.version for item in view.model.opset_import if item.domain in ("", "ai.onnx"))
    wanted = f"tensor({TensorProto.DataType.Name(kind).lower()})"
    operators = {node.op_type for node in view.nodes if node.domain in ("", "ai.onnx")}
    return frozenset(name for name in operators if not _is_defined(name, opset, wanted))


def apply_recipe(
    model: onnx.ModelProto, recipe: RecipeName, *, without: Iterable[str] = (), weights: Weights | None = None
) -> onnx.ModelProto:
    """A float32 model with its trunk in the recipe's precision; "fp32" gives an equal one.

    `without` names operators that stay in fp32. Where `model` was loaded without its external data, `weights` says
    where that lies; `write_recipe` does all of this for files. Raises BuildError.
    """
    if recipe == "fp32":
        same = onnx.ModelProto()
        same.CopyFrom(model)
        return same
    found, weights = RECIPES[recipe], weights or InlineWeights()
    view = GraphView(prepared(_checked(model), found.mask_limit, weights))
    parts = parts_of(view, frozenset(without) | without_type(view, found.kind))
    return Rewriter(view, parts, found.kind, recipe, weights).rewrite()


def write_recipe(source: Path, target: Path, recipe: RecipeName, *, without: Iterable[str] = ()) -> None:
    """Apply a recipe to the graph at `source` and write it to `target`. Raises BuildError.

    Weights that lie in files of their own are read, rounded and written one by one, to `target` + ".data": a model of
    any size takes no more memory than its largest weight.
    """
    model = onnx.load(source, load_external_data=False)
    data = target.with_name(f"{target.name}.data")
    outside = any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer)
    weights = FileWeights(source.parent, data) if outside else InlineWeights()
    result = apply_recipe(model, recipe, without=without, weights=weights)
    if recipe == "fp32":
        kept = [weights.keep(tensor) for tensor in result.graph.initializer]
        del result.graph.initializer[:]
        result.graph.initializer.extend(kept)
    onnx.save(result, target)


def explain(
    model: onnx.ModelProto, recipe: RecipeName, *, without: Iterable[str] = (), weights: Weights | None = None
) -> tuple[NodePrecision, ...]:
    """What every node runs in under a recipe, and why; attention's scales stand where the recipe puts them."""
    if recipe == "fp32":
        nodes = model.graph.node
        return tuple(NodePrecision(node_name(node), node.op_type, "fp32", "all", "the recipe") for node in nodes)
    view = GraphView(prepared(_checked(model), RECIPES[recipe].mask_limit, weights or InlineWeights()))
    parts = parts_of(view, frozenset(without) | without_type(view, RECIPES[recipe].kind))
    names = {"full": "fp32", "low": recipe, "index": "index"}
    return tuple(
        NodePrecision(node_name(node), node.op_type, names[part.width], part.part, part.why)
        for node, part in zip(view.nodes, parts, strict=True)
    )


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Raises BuildError where a graph holds 16-bit numbers already, or graphs inside that would read its values."""
    inner = [node.name for node in model.graph.node for item in node.attribute if item.g.node or item.graphs]
    if inner := [*inner, *(function.name for function in model.functions)]:
        raise BuildError(
            f"the graph has control flow or functions ({inner[0]}); a precision recipe takes plain graphs",
            fix='inline them when exporting, or precision = "fp32" in [build]',
        )
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    if found := kinds & {TensorProto.FLOAT16, TensorProto.BFLOAT16}:
        names = ", ".join(sorted(TensorProto.DataType.Name(kind).lower() for kind in found))
        raise BuildError(f"the graph holds {names}; a precision recipe starts from float32", fix="export it in float32")
    return model


def _is_defined(operator: str, opset: int, wanted: str) -> bool:
    if not defs.has(operator, opset):
        return False
    schema = defs.get_schema(operator, opset)
    constraints = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
    return all(wanted in constraints.get(value.type_str, (value.type_str,)) for value in schema.outputs)
