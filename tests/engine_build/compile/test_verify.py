"""Verification: seeded inputs, measured errors, refused engines."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Built
from helpers.building import build_engine
from helpers.factories import TinySpec, tiny_decoder, tiny_deployment
from onnx import helper, numpy_helper

from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.compile.tasks import RunRequest, _smaller, run_engine
from engine_build.compile.verify import (
    ThreadTime,
    choose_threads,
    sample_inputs,
    thread_facts,
    verify,
    verify_outputs,
    window_facts,
)
from engine_build.graphs.reference_session import graph_session
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec
from engine_build.specs.engine_specs import engine_specs
from runtime.audio.codec import window_ms
from runtime.base.errors import BuildError
from runtime.config.deployment import load_deployment
from runtime.devices.machine import num_cores, num_physical_cores
from runtime.engines.manifest import THREADS, WINDOW_TIMES, Manifest, manifest_path, read_manifest


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EngineSpec]:
    request = load_request(tiny_deployment(tmp_path_factory.mktemp("tiny")))
    return {spec.name: spec for spec in engine_specs(request)}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def decoder(change: Callable[[np.ndarray], np.ndarray] = lambda weight: weight) -> ort.InferenceSession:
    """The tiny decoder with its last weight changed."""
    model = tiny_decoder(TinySpec())
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w_out")
    weight.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(weight).copy()), "w_out"))
    return session(model)


def test_an_equal_engine_has_no_error(specs: dict[str, EngineSpec]) -> None:
    assert verify(specs["decoder"], decoder(), decoder(), 1e-9) == {"max_abs": 0.0, "max_rel": 0.0, "rms_rel": 0.0}


@pytest.mark.parametrize("factor", [1.001, 0.9])
def test_the_error_is_measured_against_the_largest_output(specs: dict[str, EngineSpec], factor: float) -> None:
    off = decoder(lambda weight: weight * np.float32(factor))
    error = verify(specs["decoder"], decoder(), off, 1.0)
    assert error["max_rel"] == pytest.approx(abs(factor - 1), rel=1e-2)
    assert error["rms_rel"] == pytest.approx(abs(factor - 1), rel=1e-2)
    assert error["max_abs"] > 0
    with pytest.raises(BuildError, match=r"'decoder' is off by .* expected at most 0\.0005"):
        verify(specs["decoder"], decoder(), off, 5e-4)


@pytest.mark.parametrize(("graph", "engine", "who"), [(np.nan, 1.0, "graph"), (1.0, np.inf, "engine")])
def test_values_that_are_not_finite_are_refused(
    specs: dict[str, EngineSpec], graph: float, engine: float, who: str
) -> None:
    sessions = [decoder(lambda weight, by=by: weight * np.float32(by)) for by in (graph, engine)]
    with pytest.raises(
        BuildError, match=rf"decoder: velocity at R=2, T=32.*the {who} gives values that are not finite"
    ):
        verify(specs["decoder"], *sessions, 1e-4)


def test_a_bundle_that_promises_another_size_is_refused(specs: dict[str, EngineSpec]) -> None:
    spec = specs["codec_decode"]
    wrong = replace(spec, samples=tuple({**sizes, "W": sizes["W"] + 1} for sizes in spec.samples))
    assert isinstance(spec.graph.source, Path)
    opened = ort.InferenceSession(str(spec.graph.source))
    verify(spec, opened, opened, 1e-6)
    with pytest.raises(BuildError, match=r"gives shape \[1, 2, 640\], bundle.toml implies \[1, 2, 641\]"):
        verify(wrong, opened, opened, 1e-6)


def test_samples_are_the_same_every_time_and_of_every_kind(specs: dict[str, EngineSpec]) -> None:
    for spec in specs.values():
        for first, second, sizes in zip(sample_inputs(spec), sample_inputs(spec), spec.samples, strict=True):
            for port in spec.inputs:
                values = first[port.name]
                np.testing.assert_array_equal(values, second[port.name])
                assert values.shape == tuple(sizes[letter] for letter in port.letters)
                assert values.dtype == port.dtype
                if port.values == "count":
                    assert values.min() >= 0
                    assert values.max() < sizes[port.limit]
    mask = list(sample_inputs(specs["decoder"]))[2]["condition_mask"]
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert (mask[:, 0] == 1).all()


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({2: ThreadTime(0.010, 0.020), 4: ThreadTime(0.010, 0.040)}, 2),
        ({2: ThreadTime(0.010, 0.020), 4: ThreadTime(0.0095, 0.036)}, 2),
        ({2: ThreadTime(0.010, 0.020), 4: ThreadTime(0.006, 0.024)}, 4),
        ({4: ThreadTime(0.010, 0.020), 2: ThreadTime(0.011, 0.020)}, 2),
    ],
)
def test_threads_beside_others_on_a_core_are_used_where_they_save_a_tenth(
    times: dict[int, ThreadTime], chosen: int
) -> None:
    facts = choose_threads(tuple(times), times.__getitem__)
    assert facts[THREADS] == chosen
    assert facts["thread_times_ms"][str(chosen)] == pytest.approx([1e3 * seconds for seconds in times[chosen]])


def test_a_busy_machine_slows_all_numbers_and_the_best_round_of_each_counts() -> None:
    asked = Counter[int]()

    def time_execute(count: int) -> ThreadTime:
        asked[count] += 1
        wall_s = 0.006 if count == 4 else 0.010
        return ThreadTime(wall_s if asked[count] == 3 else 0.2 + wall_s * count, 0.02)

    facts = choose_threads((2, 4), time_execute)
    assert facts[THREADS] == 4
    assert asked[2] == asked[4] >= 3


def test_a_decoder_is_measured_where_two_virtual_cores_are_one(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, more='[build]\nstep_variants = ["plain"]\n')
    request, environment = load_request(path), build_environment("cpu", load_request(path).options)
    folder = request.deployment.engine_folder("cpu")
    with locked(folder):
        decoder, rows, *_ = check_rebuilds(request, "cpu", environment=environment)
        facts = build_engine(decoder, request, folder, environment).facts
    assert (THREADS in facts) == (num_physical_cores() < num_cores())
    assert thread_facts(folder, decoder.spec, (2, 2)) == thread_facts(folder, rows.spec, (1, 2)) == {}
    facts = thread_facts(folder, decoder.spec, (1, 2))
    assert facts[THREADS] in (1, 2)
    assert sorted(facts["thread_times_ms"]) == ["1", "2"]
    assert all(milliseconds > 0 for times in facts["thread_times_ms"].values() for milliseconds in times)


def test_windows_of_a_codec_are_measured_each_twice_as_long_as_the_one_before(
    built: Built, specs: dict[str, EngineSpec]
) -> None:
    folder, spec = built().engine_folder("cpu"), specs["codec_decode"]
    shortest, _, longest = spec.ranges[0]["T"]
    lengths = [min(shortest << doubled, longest) for doubled in range(99)]
    for facts in (window_facts(folder, spec), read_manifest(manifest_path(folder, spec.name)).facts):
        times = facts[WINDOW_TIMES]  # on a busy machine not up to the longest
        assert list(map(int, times)) == sorted(set(lengths[: len(times)]))
        assert all(milliseconds > 0 for milliseconds in times.values())
    assert window_facts(folder, specs["decoder"]) == {}


def test_what_windows_take_is_between_those_that_were_measured(built: Built) -> None:
    manifest = read_manifest(manifest_path(built().engine_folder("cpu"), "codec_decode"))
    assert math.isinf(window_ms(manifest.model_copy(update={"facts": {}}), 1))
    manifest = manifest.model_copy(update={"facts": {WINDOW_TIMES: {"8": 2.0, "16": 3.0, "24": 5.0}}})
    assert [window_ms(manifest, frames) for frames in (1, 8, 12, 24, 25)] == [2.0, 2.0, 2.5, 5.0, math.inf]


Build = Callable[..., Manifest]


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
