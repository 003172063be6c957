"""Precision recipes: which nodes of a decoder run in 16 bits, as casts in its graph, and which in 8 bits.

"fp8", and "int8" on GPUs, are the recipe bf16 with 8-bit products in it, as a Quantization says; "int8" without one, or
with one by token, is for CPUs. Strongly typed TensorRT and ONNX Runtime's CUDA provider both compute in the types of
the graph. Inputs and outputs stay float32, but for caches, which are of 16 bits where the target takes them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import onnx
from onnx import TensorProto, defs

from engine_build.config import EIGHT_BITS, EIGHT_BITS_BASE
from engine_build.graphs.graph_file import Graph
from engine_build.graphs.graph_view import GraphView, node_name
from engine_build.graphs.plain_graph import opset
from engine_build.graphs.reference_session import model_of
from engine_build.precision.casts import FileWeights, InlineWeights, Rewriter
from engine_build.precision.int8 import int8_products, with_int8_products
from engine_build.precision.node_rules import CACHE_UPDATE, NODE_RULES, NodeRule, node_rules
from engine_build.precision.normalize import normalized, raised, widened
from engine_build.precision.quantization import Quantization, chosen_nodes, quantized
from engine_build.precision.wide_values import in_range
from runtime.base.errors import BuildError

RecipeName = Literal["fp32", "fp16", "bf16", "fp8", "int8"]


@dataclass(frozen=True)
class Recipe:
    """A low precision: its ONNX type, the largest number that may be added to an attention score, and whether its range
    is smaller than that of published weights' residual streams, which are then in float32."""

    name: RecipeName
    kind: int
    mask_limit: float
    is_narrow: bool = False


RECIPES: Mapping[str, Recipe] = {
    "fp16": Recipe("fp16", TensorProto.FLOAT16, 2.0**15, is_narrow=True),
    "bf16": Recipe("bf16", TensorProto.BFLOAT16, 2.0**127),
}
# Operators without a bf16 kernel, by target. For ONNX Runtime: docs/OperatorKernels.md of its source, at opset
# onnxruntime_compiler.CUDA_OPSET; and updates of caches, because its sessions take no arrays of bfloat16. For TensorRT:
# what TensorRT-RTX 1.7 refuses.
WITHOUT_KERNEL: Mapping[tuple[str, str], frozenset[str]] = {
    ("tensorrt", "bf16"): frozenset({"ConvTranspose", "HardSwish", "Mish"}),
    ("tensorrt-rtx", "bf16"): frozenset({"ConvTranspose", "HardSwish", "Mish"}),
    ("cuda", "bf16"): frozenset({
        "Clip", "Conv", "ConvTranspose", "Einsum", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu",
        "Reciprocal", "Softplus", "Swish", CACHE_UPDATE,
    }),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """One node of the source graph: its precision ("index": no floating-point numbers), its rule, and the reason."""

    name: str
    op_type: str
    precision: str
    rule: str
    reason: str


def without_kernel(target: str, recipe: str) -> frozenset[str]:
    """Operators that stay in fp32 because a target has no kernel for them in the recipe's precision."""
    return WITHOUT_KERNEL.get((target, EIGHT_BITS_BASE if recipe in EIGHT_BITS else recipe), frozenset())


def has_low_caches(target: str, recipe: str) -> bool:
    """Whether keys and values are stored in the recipe's 16 bits, on GPUs."""
    return recipe in RECIPES and CACHE_UPDATE not in without_kernel(target, recipe)


def without_type(view: GraphView, kind: int) -> frozenset[str]:
    """Operators of a graph that ONNX does not define for an element type at its opset."""
    version = opset(view.model)
    wanted = f"tensor({TensorProto.DataType.Name(kind).lower()})"
    operators = {node.op_type for node in view.nodes if node.domain in ("", "ai.onnx")}
    return frozenset(name for name in operators if not _is_defined(name, version, wanted))


def apply_recipe(
    model: onnx.ModelProto,
    recipe: RecipeName,
    *,
    without: Iterable[str] = (),
    weights: InlineWeights | None = None,
    quantization: Quantization | None = None,
) -> onnx.ModelProto:
    """A float32 model with its trunk in the recipe's precision; "fp32" gives an equal one.

    `without`: operators that stay in fp32. `weights`: reads the constants where `model` was loaded without its external
    data; `write_recipe` does this for graphs. `quantization`: of "fp8", and of "int8" on GPUs. Raises BuildError.
    """
    if recipe == "fp32":
        return deepcopy(model)
    weights = weights or InlineWeights()
    if recipe == "int8" and (quantization is None or quantization.by_token):
        products = None if quantization is None else quantization.products
        return with_int8_products(float32_model(model, weights), weights, products)
    base = recipe if quantization is None else EIGHT_BITS_BASE
    view, rules = _rules(model, base, without, weights)
    if quantization is not None:
        view, rules = quantized(view, rules, quantization, weights)
    return Rewriter(view, rules, RECIPES[base].kind, base, weights).rewrite()


def changes_anything(model: onnx.ModelProto, recipe: RecipeName) -> bool:
    """Whether anything of a model that a recipe made is of low precision."""
    if recipe in EIGHT_BITS:
        return any(node.op_type in ("MatMulIntegerToFloat", "DequantizeLinear") for node in model.graph.node)
    kind = RECIPES[recipe].kind
    casts = (item.i for node in model.graph.node for item in node.attribute if item.name == "to")
    return kind in (*casts, *(tensor.data_type for tensor in model.graph.initializer))


def write_recipe(
    graph: Graph,
    target: Path,
    recipe: RecipeName,
    *,
    without: Iterable[str] = (),
    quantization: Quantization | None = None,
) -> None:
    """Apply a recipe to a graph and write it to `target`. Raises BuildError.

    External weights are read, rounded and written one by one, to `target` + ".data": a model of any size takes no more
    memory than its largest weight.
    """
    model, data = model_of(graph), target.with_name(f"{target.name}.data")
    has_external = any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer)
    weights = FileWeights(graph.folder, data) if has_external else InlineWeights()
    result = apply_recipe(model, recipe, without=without, weights=weights, quantization=quantization)
    if recipe == "fp32":
        kept = [weights.keep(tensor) for tensor in result.graph.initializer]
        del result.graph.initializer[:]
        result.graph.initializer.extend(kept)
    onnx.save(result, target)


def node_precisions(
    model: onnx.ModelProto,
    recipe: RecipeName,
    *,
    without: Iterable[str] = (),
    weights: InlineWeights | None = None,
    quantization: Quantization | None = None,
) -> tuple[NodePrecision, ...]:
    """The precision and rule of every node of the normalized graph under a recipe."""
    if recipe == "fp32":
        nodes = model.graph.node
        return tuple(NodePrecision(node_name(node), node.op_type, "fp32", "all", "the recipe") for node in nodes)
    if recipe == "int8" and (quantization is None or quantization.by_token):
        changed = {*int8_products(model).values()} if quantization is None else quantization.products
        low = NodePrecision("", "", "int8", "linear", "a product with a matrix of weights")
        full = NodePrecision("", "", "fp32", "other", "no product with weights, of the graph's inputs, or too inexact")
        nodes = ((node, low if node_name(node) in changed else full) for node in model.graph.node)
        return tuple(replace(kind, name=node_name(node), op_type=node.op_type) for node, kind in nodes)
    weights = weights or InlineWeights()
    base = recipe if quantization is None else EIGHT_BITS_BASE
    view, rules = _rules(model, base, without, weights)
    names = {"full": "fp32", "low": base, "index": "index"}
    precisions = [names[rule.width] for rule in rules]
    for index in chosen_nodes(view, quantization) if quantization is not None else ():
        precisions[index], rules[index] = recipe, NODE_RULES["8 bits"]
    return tuple(
        NodePrecision(node_name(node), node.op_type, precision, rule.name, rule.reason)
        for node, precision, rule in zip(view.nodes, precisions, rules, strict=True)
    )


def normalized_graph(model: onnx.ModelProto, recipe: RecipeName, weights: InlineWeights) -> onnx.ModelProto:
    """The float32 model that a 16-bit recipe starts from. Raises BuildError."""
    return raised(normalized(float32_model(model, weights), RECIPES[recipe].mask_limit, weights))


def float32_model(model: onnx.ModelProto, weights: InlineWeights) -> onnx.ModelProto:
    """The model that every recipe starts from. Raises BuildError."""
    return _checked(widened(model, weights))


def _rules(
    model: onnx.ModelProto, recipe: RecipeName, without: Iterable[str], weights: InlineWeights
) -> tuple[GraphView, list[NodeRule]]:
    """The normalized model, and the rule of each of its nodes."""
    found = RECIPES[recipe]
    graph, wide = normalized_graph(model, recipe, weights), frozenset[str]()
    if found.is_narrow:
        graph, wide = in_range(graph, weights)
    view = GraphView(graph)
    kept = frozenset(without) | without_type(view, found.kind)
    return view, node_rules(view, kept, wide)


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Raises BuildError where a graph has 16-bit tensors already, or functions that cannot be inlined."""
    if model.functions:
        raise BuildError(
            f"the graph's function {model.functions[0].name!r} has operators of another opset than the graph, and "
            "cannot be inlined",
            fix='export all of it for one opset, or precision = "fp32" in [build]',
        )
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    if found := kinds & {TensorProto.FLOAT16, TensorProto.BFLOAT16}:
        names = ", ".join(sorted(TensorProto.DataType.Name(kind).lower() for kind in found))
        raise BuildError(f"the graph has {names} tensors, expected a float32 graph", fix="export it in float32")
    return model


def _is_defined(operator: str, version: int, wanted: str) -> bool:
    if not defs.has(operator, version):
        return False
    schema = defs.get_schema(operator, version)
    constraints = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
    return all(wanted in constraints.get(value.type_str, (value.type_str,)) for value in schema.outputs)
