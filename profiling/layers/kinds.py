"""What kind of work a layer does: by its operator, and by what a fused layer contains."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

KINDS: Mapping[str, frozenset[str]] = {
    "attention": frozenset({
        "Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention", "Softmax", "SoftMax",
        "RaggedSoftMax", "LogSoftmax", "RotaryEmbedding",
    }),
    "gemm": frozenset({
        "MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum", "MatMulNBits", "MatMulInteger", "QLinearMatMul",
        "TransposeMatMul", "gemm", "matmul", "matrix_multiply", "MatrixMultiply", "CaskGemmMatrixMultiply",
        "CublasConvolution", "CublasLt", "FullyConnected",
    }),
    "convolution": frozenset({
        "Conv", "FusedConv", "ConvTranspose", "NhwcConv", "QLinearConv", "Convolution", "Deconvolution",
        "CaskConvolution", "CaskDeconvolutionV2", "CaskConvolutionV2", "conv", "deconv",
    }),
    "norm": frozenset({
        "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "RMSNormalization",
        "SkipSimplifiedLayerNormalization", "GroupNormalization", "InstanceNormalization", "BatchNormalization",
        "GroupNorm", "SkipGroupNorm", "MeanVarianceNormalization", "LpNormalization", "Normalization",
        "NormalizationV2",
    }),
    "reduction": frozenset({
        "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSumExp", "CumSum", "TopK", "ArgMax", "ArgMin", "Reduce", "GlobalAveragePool", "AveragePool",
        "MaxPool", "Pooling", "CaskPooling",
    }),
    "pointwise": frozenset({
        "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "QuickGelu", "Gelu", "BiasGelu",
        "FastGelu", "Erf", "Sin", "Cos", "Neg", "Abs", "Exp", "Log", "Max", "Min", "Where", "And", "Or", "Not", "Xor",
        "Less", "LessOrEqual", "Mod", "Greater", "GreaterOrEqual", "Equal", "Clip", "Relu", "LeakyRelu", "Elu",
        "Floor", "Ceil", "Round", "Sign", "Softplus", "Swish", "HardSigmoid", "HardSwish", "Mish", "IsNaN", "IsInf",
        "Snake", "PointWise", "PointWiseV2", "ElementWise", "Unary", "Activation", "Select", "Scale",
    }),
    "reformat": frozenset({
        "Reshape", "Transpose", "Concat", "Slice", "Split", "Gather", "GatherND", "GatherElements", "Expand", "Squeeze",
        "Unsqueeze", "Shape", "Size", "Cast", "CastLike", "Pad", "Tile", "Identity", "Range", "ConstantOfShape",
        "Flatten", "ReorderInput", "ReorderOutput", "ScatterND", "ScatterElements", "Resize", "DepthToSpace",
        "SpaceToDepth", "Constant", "MemcpyToHost", "MemcpyFromHost", "Reformat", "NoOp", "Shuffle", "shape_call",
        "signal", "wait", "reshape", "Concatenation", "Padding", "Fill", "copy",
    }),
}  # fmt: skip
OTHER = "other"
OPAQUE = "opaque"
# Types of TensorRT's layers that hold whole parts of a graph.
BLOBS = frozenset({"ForeignNode", "Myelin"})
# A fused layer is what the strongest of its parts is.
STRENGTH = ("attention", "convolution", "gemm", "norm", "reduction", "pointwise", "reformat")
ORDER = (*STRENGTH[:1], "gemm", "convolution", "norm", "pointwise", "reduction", "reformat", OPAQUE, OTHER)
PRODUCTS = frozenset({"gemm", "convolution"})
ROOTS = frozenset({"Sqrt", "Reciprocal", "Rsqrt"})
ATTENTION_ORIGIN = "scaled_dot_product_attention"
# Names that keep what a generated kernel does.
ATTENTION_NAME = re.compile(r"(?<![a-z])f?mha(?![a-z])|multi_head_attention|flash_attn", re.IGNORECASE)
TOKEN = re.compile(r"[A-Z][a-z]+")
TOKENS: Mapping[str, str] = {
    **dict.fromkeys(("Sum", "Mean", "Maxr", "Minr", "Prod", "Topk"), "reduction"),
    **dict.fromkeys(
        ("Add", "Mul", "Sub", "Div", "Sqrt", "Exp", "Erf", "Tanh", "Neg", "Pow", "Abs", "Sele", "Sin", "Cos", "Log",
         "Max", "Min", "Sigm", "Rsqr", "Clip", "Equa", "Less", "Grea", "And", "Or", "Not"), "pointwise",
    ),
    **dict.fromkeys(("Resh", "Tran", "Slic", "Gath", "Move", "Cast", "Conc", "Repl", "Pad", "Unsq"), "reformat"),
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}


def kind_of(op_type: str, contents: Collection[tuple[str, str]] = (), name: str = "") -> str:
    """The kind of work of a layer.

    contents: (operator, what the exporter made it from) of the model's nodes that it holds, where that is known. A blob
    that holds parts of a graph is "opaque" unless all that it holds is of one kind: its time cannot be shared out.
    """
    if op_type in BLOBS:
        kinds = {node_kind(*node) for node in contents} - {"reformat"}
        return kinds.pop() if len(kinds) == 1 else OPAQUE
    kind = _KIND_OF.get(op_type)
    if kind in (None, "reformat"):
        return kind or _generated_kind(contents, name)
    # The library says what the kernel is; what it holds tells an attention's product from others.
    held = {node_kind(*node) for node in contents}
    return "attention" if "attention" in held and kind not in held else kind


def node_kind(op_type: str, origin: str = "") -> str:
    """The kind of an operator; arithmetic that the exporter made from an attention belongs to it."""
    kind = _KIND_OF.get(op_type, OTHER)
    return "attention" if ATTENTION_ORIGIN in origin and kind != "reformat" else kind


def strongest(kinds: Iterable[str]) -> str:
    """The kind that a fused layer is taken for."""
    found = set(kinds)
    return next((kind for kind in STRENGTH if kind in found), OTHER)


def _generated_kind(contents: Collection[tuple[str, str]], name: str) -> str:
    """A kernel without a product of its own, unless nothing else is known of it or its name says attention."""
    if ATTENTION_NAME.search(name):
        return "attention"
    kinds = {node_kind(*node) for node in contents}
    if _is_norm({op_type for op_type, _ in contents}, kinds):
        return "norm"
    if kinds - PRODUCTS - {OTHER}:
        return strongest(kinds - PRODUCTS)
    return strongest(kinds) if kinds - {OTHER} else _kind_of_name(name)


def _is_norm(operators: Collection[str], kinds: Collection[str]) -> bool:
    """A mean and the division by a root: a norm that was exported in parts."""
    return "attention" not in kinds and "reduction" in kinds and not ROOTS.isdisjoint(operators)


def _kind_of_name(name: str) -> str:
    """What the words in a generated kernel's name say: __myl_MaxrSubExpSum_myl7_3."""
    tokens = TOKEN.findall(name) if "__myl_" in name else []
    if {"Maxr", "Exp", "Sum"} <= set(tokens):
        return "attention"
    if {"Sqrt", "Rsqr"} & set(tokens) and {"Mean", "Sum"} & set(tokens):
        return "norm"
    return strongest(TOKENS[token] for token in tokens if token in TOKENS)
