"""The worker's tasks on the simulated GPU: engines are run at every sample, and their outputs checked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_deployment
from onnx import helper, numpy_helper

from engine_build.compile.tasks import RunRequest, _smaller, run_engine
from engine_build.compile.verify import verify_outputs
from engine_build.graphs.reference_session import graph_session
from engine_build.request import load_request
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import Manifest

Build = Callable[..., Manifest]


def test_values_that_are_not_finite_are_refused(path: Path, build_one: Build) -> None:
    file = load_deployment(path).bundle / "decoder.onnx"
    model = onnx.load(file)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w_out")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * float("nan"), "w_out"))
    onnx.save(model, file)
    with pytest.raises(BuildError, match=r"decoder: velocity at .*: values that are not finite"):
        build_one(path)


def run_request(path: Path, num_results: int) -> RunRequest:
    """The decoder's engine, run at every sample of its spec."""
    spec = next(spec for spec in engine_specs(load_request(path)) if spec.name == "decoder")
    folder = load_deployment(path).engine_folder("tensorrt")
    return RunRequest(spec.name, folder, spec.inputs, spec.outputs, spec.samples, num_results)


def test_an_engine_runs_at_every_sample_and_returns_the_first_outputs(path: Path, build_one: Build) -> None:
    build_one(path)
    request = run_request(path, 2)
    outputs, memory_bytes = run_engine(request, threading.Event(), lambda severity, text: None)
    expected = [(sizes["R"], sizes["T"], TinySpec().channels) for sizes in request.samples[:2]]
    assert [arrays["velocity"].shape for arrays in outputs] == expected
    assert len(request.samples) > 2
    assert memory_bytes >= 0


def test_a_cancelled_run_ends_at_the_next_sample(path: Path, build_one: Build) -> None:
    build_one(path)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(BuildError, match="cancelled"):
        run_engine(run_request(path, 1), cancelled, lambda severity, text: None)


@pytest.mark.parametrize(("precision", "kind"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_caches_in_16_bits_are_compared_with_those_of_the_graph(
    tmp_path: Path, build_one: Build, precision: str, kind: str
) -> None:
    more = f'[build]\nstep_variants = ["plain"]\nprecision = "{precision}"\n'
    path = tiny_deployment(tmp_path, conditions=True, planner={}, more=more)
    manifest = build_one(path, "planner")
    assert {info.dtype for info in manifest.inputs if info.name.startswith("past_")} == {kind}
    assert 1e-4 < manifest.error["max_rel"] <= manifest.build["tolerance"]
    request = load_request(path)
    spec = next(spec for spec in engine_specs(request) if spec.name == "planner")
    folder, count = request.deployment.engine_folder("tensorrt"), len(spec.samples)
    asked = RunRequest(spec.name, folder, spec.inputs, spec.outputs, spec.samples, count)
    outputs, _ = run_engine(asked, threading.Event(), lambda severity, text: None)
    graph, tolerance = graph_session(spec.graph, request.options), manifest.build["tolerance"]
    assert verify_outputs(spec, graph, outputs, tolerance)["max_rel"] == pytest.approx(manifest.error["max_rel"])
    outputs[-1][spec.outputs[-1].name] *= 1.5
    with pytest.raises(BuildError, match=r"'planner' is off by 0\.5"):
        verify_outputs(spec, graph, outputs, tolerance)


def more_sizes(request: RunRequest, **sizes: int) -> RunRequest:
    return replace(request, production=[{**request.samples[0], **sizes}], padded="RLQ", tolerance=1e-4)


def test_more_rows_and_tokens_give_what_each_row_gave_before(path: Path, build_one: Build) -> None:
    build_one(path)
    run_engine(more_sizes(run_request(path, 1), R=8, L=32), threading.Event(), lambda severity, text: None)


def test_larger_inputs_are_compared_with_a_sample_that_differs_in_what_is_padded_only(
    path: Path, build_one: Build
) -> None:
    build_one(path)
    samples = [{"T": 8, "R": 2, "L": 4}, {"T": 4, "R": 2, "L": 9}, {"T": 4, "R": 1, "L": 6}]
    request = replace(run_request(path, 1), samples=samples, padded="RL")
    assert _smaller(request, {"T": 4, "R": 6, "L": 6}) == 2
    assert _smaller(request, {"T": 8, "R": 6, "L": 6}) == 0
    assert _smaller(request, {"T": 4, "R": 6, "L": 5}) is None
    assert _smaller(replace(request, padded=""), samples[0]) is None


def test_a_row_that_depends_on_its_batch_is_refused(path: Path, build_one: Build) -> None:
    """Every sample agrees with the graph on the CPU; only the large batch shows it."""
    file = load_deployment(path).bundle / "decoder.onnx"
    model = onnx.load(file)
    last = model.graph.node[-1]
    axes = numpy_helper.from_array(np.array([0]), "batch_axis")
    model.graph.initializer.append(axes)
    last.output[0] = "alone"
    model.graph.node.append(helper.make_node("ReduceSum", ["alone", "batch_axis"], ["shared"]))
    model.graph.node.append(helper.make_node("Add", ["alone", "shared"], ["velocity"]))
    onnx.save(model, file)
    with pytest.raises(BuildError, match=r"decoder: velocity at R=4, T=32, .* is off by .* in a smaller batch"):
        build_one(path)
