"""The inspector's JSON in both schemas, at every verbosity, joined with what the profiler heard."""

from __future__ import annotations

import json

from runtime.engines.layer_types import layer_types, node_times

DETAILED_10 = {
    "Layers": [
        {"Name": "node_linear_myl7_1", "LayerType": "gemm", "Inputs": [{"Name": "x", "Format/Datatype": "Row-major"}]},
        {"Name": "__myl_MaxrSubExpSum_myl7_3", "LayerType": "kgen", "Metadata": "[ONNX Layer: softmax]"},
    ],
    "Bindings": ["x", "y"],
}
DETAILED_11 = {
    "Layers": [
        {"Name": "node_linear [profile 1]_myl11_2", "LayerType": "gemm"},
        {"Name": "odd"},
        {"LayerType": "kgen"},
    ],
    "I/O Tensors": [{"Name": "x", "IOMode": "Input"}],
}


def test_both_schemas_have_types() -> None:
    assert layer_types(json.dumps(DETAILED_10)) == {
        "node_linear_myl7_1": "gemm",
        "__myl_MaxrSubExpSum_myl7_3": "kgen",
    }
    assert layer_types(json.dumps(DETAILED_11)) == {"node_linear [profile 1]_myl11_2": "gemm", "odd": "unknown"}


def test_names_alone_have_no_type_but_a_blob_is_one() -> None:
    text = json.dumps({"Layers": ["{ForeignNode[a...b]}", "Reformat_1", "0"]})
    assert layer_types(text) == {"{ForeignNode[a...b]}": "ForeignNode", "Reformat_1": "unknown", "0": "unknown"}
    assert layer_types("{}") == {}


def test_times_are_per_run_in_order_and_repeats_add_up() -> None:
    runs = [[("a", 1.0), ("b", 2.0), ("a", 0.5)], [("a", 3.0)], [("b", 4.0), ("{ForeignNode[x]}", 1.0)]]
    nodes = node_times(runs, {"a": "gemm"})
    assert [(node.name, node.op_type, node.runs_ms) for node in nodes] == [
        ("a", "gemm", (1.5, 3.0, 0.0)),
        ("b", "unknown", (2.0, 0.0, 4.0)),
        ("{ForeignNode[x]}", "ForeignNode", (0.0, 0.0, 1.0)),
    ]
