"""Concatenated caches are the same computation: equal logits, and a graph without updates in place."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.tiny_planner import save_planner

from profiling.bench.planner import in_place
from profiling.bench.planner.in_place import concatenate, measure_in_place
from profiling.bench.session import open_session
from runtime.base.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> onnx.ModelProto:
    save_planner(tmp_path)
    return onnx.load(tmp_path / "planner.onnx")


def test_a_decode_with_concatenated_caches_has_the_same_logits(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LENGTHS", (2, 96, 4096))
    tiny = {"capacity": 96, "thinking": False}
    with open_session(built(planner=tiny, more=FEW_VARIANTS, codec=False, text_encoder=False)) as session:
        points = measure_in_place(session, times=2)
    assert [point["length"] for point in points] == [2, 96]  # none that is longer than the cache
    for point in points:
        assert point["difference"] < 1e-4
        assert point["ratio"] > 0


def test_caches_become_inputs_and_outputs_of_any_length(model: onnx.ModelProto) -> None:
    counts = [sum(node.op_type == kind for node in model.graph.node) for kind in ("TensorScatter", "Slice")]
    concatenate(model)
    onnx.checker.check_model(model)
    assert counts == [4, 4]
    assert [node.op_type for node in model.graph.node if node.op_type in ("TensorScatter", "Slice")] == []
    values = {item.name: item.type.tensor_type.shape.dim[2].dim_param for item in model.graph.output[:-1]}
    assert values.keys() >= {"present_key_0", "present_value_1"}
    assert set(values.values()) == {"grown"}


def test_a_graph_without_such_caches_is_refused(model: onnx.ModelProto) -> None:
    concatenate(model)
    with pytest.raises(ConfigError, match="no caches"):
        concatenate(model)


def test_a_time_is_of_one_execute_until_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    event = SimpleNamespace(wait=lambda: done.append("waited"))
    decode = in_place._Decode.__new__(in_place._Decode)
    decode._stream = cast(Any, SimpleNamespace(record=lambda: event))
    decode._execution = cast(Any, SimpleNamespace(launch=lambda stream: done.append("launched")))
    monkeypatch.setattr(in_place, "time", SimpleNamespace(perf_counter=count(3.0, 0.004).__next__))
    assert decode.time_ms() == pytest.approx(4.0)
    assert done == ["launched", "waited"]


def test_the_figures_are_medians_and_how_much_longer_the_other_way_takes(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def timed(timer: Any, neighbours: Any, num_samples: int) -> Any:
        asked.append((len(neighbours), num_samples, timer.__self__ is not neighbours[0].__self__))
        return [5.0, 5.0, 6.0], [[2.0, 2.0, 2.0, 9.0]]

    monkeypatch.setattr(in_place, "LENGTHS", (8,))
    monkeypatch.setattr(in_place, "time_in_turn", timed)
    tiny = {"capacity": 96, "thinking": False}
    with open_session(built(planner=tiny, more=FEW_VARIANTS, codec=False, text_encoder=False)) as session:
        (point,) = measure_in_place(session, times=3)
    assert (point["ms"], point["concat_ms"], point["ratio"]) == (2.0, 5.0, 2.5)
    assert asked == [(1, 3, True)]
