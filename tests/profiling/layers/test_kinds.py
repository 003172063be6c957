"""Kinds of layers: by operator, by contents, by the kernel's name."""

from __future__ import annotations

import pytest

from profiling.layers.kinds import KINDS, OPAQUE, ORDER, OTHER, kind_of

SDPA = "aten.scaled_dot_product_attention.default"


def test_no_operator_has_two_kinds() -> None:
    names = [name for kind in KINDS.values() for name in kind]
    assert len(names) == len(set(names))
    assert set(KINDS) | {OPAQUE, OTHER} == set(ORDER)


@pytest.mark.parametrize(
    ("op_type", "contents", "name", "kind"),
    [
        ("Gemm", [], "", "gemm"),
        ("NotAnOperator", [], "", OTHER),
        # A product of an attention belongs to it, its copies do not.
        ("MatMul", [("MatMul", SDPA)], "", "attention"),
        ("Transpose", [("Transpose", SDPA)], "", "reformat"),
        ("FusedMatMul", [("MatMul", SDPA), ("Mul", SDPA)], "", "attention"),
        ("gemm", [("MatMul", "aten.linear"), ("Add", "aten.add")], "", "gemm"),
        ("gemm", [], "node_linear_myl7_1", "gemm"),
        # Generated kernels: by what they hold, then by their names.
        ("kgen", [("Pow", ""), ("ReduceMean", ""), ("Sqrt", ""), ("Div", "")], "__myl_MulMean_myl7_2", "norm"),
        ("kgen", [("ReduceMean", ""), ("Mul", "")], "__myl_MulMean_myl7_2", "reduction"),
        ("kgen", [("Mul", ""), ("Transpose", "")], "", "pointwise"),
        ("kgen", [("MatMul", ""), ("Mul", "")], "", "pointwise"),
        ("kgen", [("MatMul", "")], "", "gemm"),
        ("kgen", [("MatMul", ""), ("Mul", "")], "_gemm_mha_v2_myl7_9", "attention"),
        ("kgen", [], "__myl_MaxrSubExpSum_myl7_3", "attention"),
        ("kgen", [], "__myl_MulSumAddSqrtDiv_myl7_3", "norm"),
        ("kgen", [], "__myl_MulAdd_myl7_3", "pointwise"),
        ("kgen", [], "__myl_TranResh_myl7_3", "reformat"),
        ("kgen", [], "__myl_Qux_myl7_3", OTHER),
        ("shape_call", [("MatMul", "")], "", "reformat"),
        ("CaskConvolution", [("Conv", ""), ("Mul", "")], "", "convolution"),
        ("Reformat", [], "Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...b]}", "reformat"),
        # Subgraphs: opaque, unless all operators are of one kind.
        ("ForeignNode", [], "{ForeignNode[a...b]}", OPAQUE),
        ("Myelin", [("MatMul", ""), ("Add", "")], "{ForeignNode[a...b]}", OPAQUE),
        ("Myelin", [("Mul", ""), ("Add", ""), ("Reshape", "")], "{ForeignNode[a...b]}", "pointwise"),
    ],
)
def test_kinds(op_type: str, contents: list[tuple[str, str]], name: str, kind: str) -> None:
    assert kind_of(op_type, contents, name) == kind
