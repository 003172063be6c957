"""Node times in ONNX Runtime's trace events: per execute, and each once, however deep its body lies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from helpers.bodies import SIZE, TIMES, with_bodies
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from runtime.base.errors import EngineError
from runtime.engines.node_times import BODY, FIX_EVENTS, RUN, trace_events, trace_node_times
from runtime.engines.onnxruntime import session_options


def trace_event(name: str, start_us: float, duration_us: float, op_type: str = "") -> dict[str, Any]:
    event = {"name": name, "ts": start_us, "dur": duration_us}
    return {**event, "cat": "Node", "args": {"op_name": op_type, "provider": "p", "other": 1}} if op_type else event


def test_node_times_are_per_run_without_the_warm_up() -> None:
    events = [trace_event(RUN, start_us, 50) for start_us in (0, 100, 200)]
    events += [trace_event("a_kernel_time", start_us, 10 + start_us, "MatMul") for start_us in (1, 101, 201)]
    events += [trace_event("a_kernel_time", 220, 2000, "MatMul"), trace_event("b_kernel_time", 230, 500, "Add")]
    events.append(trace_event("b_fence_before", 225, 900, "Add"))
    first, second = trace_node_times(events, warm_up=1, runs=2)
    assert (first.name, first.op_type, first.facts, first.calls) == ("a", "MatMul", {"provider": "p"}, 1.5)
    assert first.runs_ms == pytest.approx((0.111, 2.211))
    assert (second.name, second.runs_ms) == ("b", (0.0, 0.5))


def test_a_branch_has_its_own_time_without_its_nodes() -> None:
    events = [
        trace_event("before_kernel_time", 1, 10, "Mul"),
        trace_event("inside_kernel_time", 20, 12, "MatMul"),
        trace_event("inside_too_kernel_time", 35, 15, "Reshape"),
        trace_event(BODY, 20, 28),
        trace_event("sum_kernel_time", 20, 30, "If"),
        trace_event("behind_kernel_time", 51, 5, "Add"),
        trace_event(BODY, 1, 60),
        trace_event(RUN, 0, 100),
    ]
    found = {(*node.path, node.name): node.runs_ms for node in trace_node_times(events, 0, 1)}
    expected = {("before",): 10, ("sum",): 2, ("sum", "inside"): 12, ("sum", "inside_too"): 15, ("behind",): 5}
    assert {key: times for key, (times,) in found.items()} == pytest.approx({k: us / 1e3 for k, us in expected.items()})


def test_executes_that_the_profiler_has_not_kept_are_an_error() -> None:
    with pytest.raises(EngineError, match="kept 1 of 3 executes") as raised:
        trace_node_times([trace_event(RUN, 0, 1)], warm_up=1, runs=2)
    assert raised.value.fix == FIX_EVENTS


def as_1_23_writes(event: Mapping[str, Any]) -> str:
    """The text of an event in a trace of ONNX Runtime 1.23, which does not escape names."""
    head = json.dumps({key: event[key] for key in ("cat", "ts", "dur")}, separators=(",", " : "))
    return f'{head[:-1]},"ph" : "X","name" :"{event["name"]}","args" : {json.dumps(event["args"])}}}'


@given(st.lists(st.text() | st.sampled_from(['a"b', "x\ny", "\\", '","args" : {', "\x1b[1m", "},\n", "]", "[\n"])))
@settings(max_examples=60, deadline=None)
def test_names_in_a_trace_are_data(names: list[str]) -> None:
    shapes = [{"float": [2, 3]}]
    events = [
        {"cat": "Node", "ts": 1, "dur": 2, "name": name, "args": {"op_name": "Add", "input_type_shape": shapes}}
        for name in ("first", *names)
    ]
    assert trace_events(lines_of(map(json.dumps, events))) == events
    raw = map(as_1_23_writes, [*events, {**events[0], "name": 'a"b'}])
    assert trace_events(lines_of(raw)) == [
        {"cat": "Node", "ts": 1, "dur": 2, "ph": "X", "name": name, "args": events[0]["args"]}
        for name in ("first", *names, 'a"b')
    ]


def lines_of(records: Iterable[str]) -> list[str]:
    return re.split("(?<=\n)", "[\n" + ",\n".join(records) + "\n]\n")


def test_a_damaged_trace_is_an_error() -> None:
    with pytest.raises(EngineError, match="does not escape"):
        trace_events(["[\n", '{"cat" : "Node","name" :"a\n', '{"cat" : ","args" : {}}\n', "]\n"])


def traced(model: ModelProto, feeds: Mapping[str, Any], folder: Path, runs: int) -> list[dict[str, Any]]:
    """Trace events of the real library."""
    options = session_options(1)
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "trace")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, dict(feeds))
    with Path(session.end_profiling()).open(encoding="utf-8", newline="\n") as lines:
        return trace_events(lines)


@pytest.mark.parametrize("branch", [True, False])
def test_times_in_bodies_of_bodies_are_counted_once(branch: bool, tmp_path: Path) -> None:
    feeds = {"x": np.ones((SIZE, SIZE), np.float32), "chosen": np.array(branch)}
    events = traced(with_bodies(), feeds, tmp_path, runs=3)
    nodes = trace_node_times(events, warm_up=1, runs=2)
    runs_ms = [event["dur"] / 1e3 for event in events if event["name"] == RUN][1:]
    for index, run_ms in enumerate(runs_ms):
        whole_ms = sum(node.runs_ms[index] for node in nodes)
        assert 0.0 < whole_ms <= run_ms
    # The whole once: that of all nodes, less that of the bodies in them.
    start_us = sorted(event["ts"] for event in events if event["name"] == RUN)[1]
    later = [event for event in events if event["ts"] >= start_us]
    inner = [event for event, behind in pairwise(later) if event["name"] == BODY and behind["name"] != RUN]
    every = [event for event in later if event.get("cat") == "Node"]
    once_us = sum(event["dur"] for event in every) - sum(event["dur"] for event in inner)
    assert sum(sum(node.runs_ms) for node in nodes) == pytest.approx(once_us / 1e3, abs=0.02)
    calls = {(*node.path, node.name): node.calls for node in nodes}
    chosen = "in_then" if branch else "in_else"
    assert calls[("loop", "if", chosen)] == calls[("loop", "in_loop")] == TIMES
    assert calls[("scan", "in_scan")] == TIMES
    assert calls[("loop",)] == calls[("scan",)] == calls[("outside",)] == 1
    assert calls[("loop", "if", "inner_loop", "in_inner_loop")] == TIMES * TIMES if branch else True
