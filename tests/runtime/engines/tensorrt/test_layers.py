"""The inspector's JSON in both schemas, at every verbosity, joined with the profiler's times."""

from __future__ import annotations

import json

from runtime.engines.node_times import layer_records, node_times


def types(text: str) -> dict[str, str]:
    """Layer name -> type, in a profile with one run of every layer."""
    records = layer_records(text)
    return {node.name: node.op_type for node in node_times([[(name, 1.0) for name in records]], records)}


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
