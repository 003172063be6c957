"""The kind of work of a layer: by its operator, and by the operators that a fused layer holds."""

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
# Operators with bodies, whose nodes are layers of their own.
CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
OPAQUE = "opaque"
# Types of TensorRT's layers that hold subgraphs.
FOREIGN_NODES = frozenset({"ForeignNode", "Myelin"})
# A fused layer has the first of these kinds that its operators have.
PRECEDENCE = ("attention", "convolution", "gemm", "norm", "reduction", "pointwise", "reformat")
ORDER = (*PRECEDENCE[:1], "gemm", "convolution", "norm", "pointwise", "reduction", "reformat", OPAQUE, OTHER)
PRODUCTS = frozenset({"gemm", "convolution"})
ROOTS = frozenset({"Sqrt", "Reciprocal", "Rsqrt"})
ATTENTION_ORIGIN = "scaled_dot_product_attention"
# Names of generated kernels that contain an attention.
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


def layer_kind(op_type: str, contents: Collection[tuple[str, str]] = (), name: str = "") -> str:
    """The kind of work of a layer.

    contents: (operator, origin) of the model's nodes that it holds, where they are known; for origin see GraphNode. A
    layer that holds a subgraph is "opaque", since its time cannot be divided, unless all its operators are of one kind.
    """
    if op_type in FOREIGN_NODES:
        kinds = {node_kind(*node) for node in contents} - {"reformat"}
        return kinds.pop() if len(kinds) == 1 else OPAQUE
    if op_type in CONTROL:
        return OTHER
    kind = _KIND_OF.get(op_type)
    if kind in (None, "reformat"):
        return kind or _generated_kind(contents, name)
    # The operator is the library's; its contents show whether a product belongs to an attention.
    held = {node_kind(*node) for node in contents}
    return "attention" if "attention" in held and kind not in held else kind


def node_kind(op_type: str, origin: str = "") -> str:
    """The kind of an operator; arithmetic that the exporter made from an attention is "attention"."""
    kind = _KIND_OF.get(op_type, OTHER)
    return "attention" if ATTENTION_ORIGIN in origin and kind != "reformat" else kind


def first_kind(kinds: Iterable[str]) -> str:
    """The first of these kinds in PRECEDENCE."""
    found = set(kinds)
    return next((kind for kind in PRECEDENCE if kind in found), OTHER)


def _generated_kind(contents: Collection[tuple[str, str]], name: str) -> str:
    """The kind of a generated kernel. Products count last: the library usually runs them in kernels of their own."""
    if ATTENTION_NAME.search(name):
        return "attention"
    kinds = {node_kind(*node) for node in contents}
    if _is_norm({op_type for op_type, _ in contents}, kinds):
        return "norm"
    if kinds - PRODUCTS - {OTHER}:
        return first_kind(kinds - PRODUCTS)
    return first_kind(kinds) if kinds - {OTHER} else _kind_of_name(name)


def _is_norm(operators: Collection[str], kinds: Collection[str]) -> bool:
    """Whether these are a norm that was exported in parts: a reduction and a root."""
    return "attention" not in kinds and "reduction" in kinds and not ROOTS.isdisjoint(operators)


def _kind_of_name(name: str) -> str:
    """The kind by the operators in a generated kernel's name, such as __myl_MaxrSubExpSum_myl7_3."""
    tokens = TOKEN.findall(name) if "__myl_" in name else []
    if {"Maxr", "Exp", "Sum"} <= set(tokens):
        return "attention"
    if {"Sqrt", "Rsqr"} & set(tokens) and {"Mean", "Sum"} & set(tokens):
        return "norm"
    return first_kind(TOKENS[token] for token in tokens if token in TOKENS)
