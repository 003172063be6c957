"""The inspector's JSON in both schemas, at every verbosity, joined with the profiler's times."""

from __future__ import annotations

import json

from runtime.engines.node_times import layer_records, node_times

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


def types(text: str) -> dict[str, str]:
    """Layer name -> type, in a profile with one run of every layer."""
    records = layer_records(text)
    return {node.name: node.op_type for node in node_times([[(name, 1.0) for name in records]], records)}


def test_both_schemas_have_types() -> None:
    assert types(json.dumps(DETAILED_10)) == {"node_linear_myl7_1": "gemm", "__myl_MaxrSubExpSum_myl7_3": "kgen"}
    assert types(json.dumps(DETAILED_11)) == {"node_linear [profile 1]_myl11_2": "gemm", "odd": "unknown"}


def test_a_node_has_the_inspectors_record() -> None:
    records = layer_records(json.dumps(DETAILED_10))
    (node,) = node_times([[("__myl_MaxrSubExpSum_myl7_3", 1.0)]], records)
    assert node.facts["Metadata"] == "[ONNX Layer: softmax]"


def test_types_of_layers_without_a_record() -> None:
    text = json.dumps({"Layers": ["{ForeignNode[a...b]}", "Reformat_1", "0"]})
    assert types(text) == {"{ForeignNode[a...b]}": "ForeignNode", "Reformat_1": "unknown", "0": "unknown"}
    assert layer_records("{}") == {}
    reformat = "Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...b]}"
    assert types(json.dumps({"Layers": [reformat]})) == {reformat: "Reformat"}


def test_the_parameter_type_of_older_releases_is_preferred() -> None:
    text = json.dumps({"Layers": [{"Name": "a", "LayerType": "CaskConvolution", "ParameterType": "Convolution"}]})
    assert types(text) == {"a": "Convolution"}


def test_times_are_per_run_in_order_and_repetitions_are_added() -> None:
    runs = [[("a", 1.0), ("b", 2.0), ("a", 0.5)], [("a", 3.0)], [("b", 4.0), ("{ForeignNode[x]}", 1.0)]]
    nodes = node_times(runs, {"a": {"LayerType": "gemm"}})
    assert [(node.name, node.op_type, node.runs_ms) for node in nodes] == [
        ("a", "gemm", (1.5, 3.0, 0.0)),
        ("b", "unknown", (2.0, 0.0, 4.0)),
        ("{ForeignNode[x]}", "ForeignNode", (0.0, 0.0, 1.0)),
    ]
