"""Chrome traces: as long as the executes, without overlap within a thread."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.recorded_profiles import RUNS, VERSIONS, recorded

from profiling.layers.rollups import UNKNOWN_MODULE, WHOLE_MODEL
from profiling.reports.chrome_trace import BLOCKS, EXECUTES, LAYERS, trace


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("thread", [LAYERS, BLOCKS, EXECUTES])
def test_every_thread_is_as_long_as_all_executes(version: str, thread: int, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path)
    events = [event for event in trace(profile)["traceEvents"] if event["ph"] == "X" and event["tid"] == thread]
    assert sum(event["dur"] for event in events) == pytest.approx(profile.layer_sum_ms * RUNS * 1e3, rel=1e-4)
    for before, after in pairwise(events):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.1)


def test_threads_and_layers_are_named(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    found = json.loads(json.dumps(trace(profile)))
    threads = {event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert threads == {"executes", "blocks", "layers"}
    layers = [event for event in found["traceEvents"] if event["tid"] == LAYERS and event["ph"] == "X"]
    assert [event["name"] for event in layers] == [layer.name for layer in profile.layers] * RUNS
    assert layers[2]["args"]["flops"] > 0
    blocks = [event["name"] for event in found["traceEvents"] if event["tid"] == BLOCKS and event["ph"] == "X"]
    assert {"decoder.layers.0", "decoder.layers.1", "(not attributable)"} <= set(blocks)


def test_blocks_are_numbered_ones_or_the_names_of_modules(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    modules = ("decoder.layers.3.mlp.up", "decoder.norm", "", None)
    layers = tuple(replace(profile.layers[0], module=module) for module in modules)
    events = trace(replace(profile, layers=layers))["traceEvents"]
    blocks = [event["name"] for event in events if event["tid"] == BLOCKS and event["ph"] == "X"]
    assert blocks == ["decoder.layers.3", "norm", WHOLE_MODEL, UNKNOWN_MODULE] * RUNS
