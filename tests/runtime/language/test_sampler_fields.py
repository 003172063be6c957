from __future__ import annotations

import onnx
from onnx import helper

from engine_build.graphs.planner_graph import sampler_graph
from runtime.language.sampler_fields import SAMPLER_INPUTS, SAMPLER_OUTPUTS


def test_the_graph_has_these_tensors_and_no_others() -> None:
    graph = sampler_graph(50, 8).graph
    for declared, found in ((SAMPLER_INPUTS, graph.input), (SAMPLER_OUTPUTS, graph.output)):
        assert {value.name for value in found} == declared.keys()
        for value in found:
            kind, letters = value.type.tensor_type, declared[value.name].letters
            assert helper.tensor_dtype_to_np_dtype(kind.elem_type).name == declared[value.name].dtype
            expected = [50 if letter == "V" else letter for letter in letters]
            assert [dim.dim_param or dim.dim_value for dim in kind.shape.dim] == expected
    onnx.checker.check_model(sampler_graph(50, 8), full_check=True)
