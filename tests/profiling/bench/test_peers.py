"""The comparison with other software: arithmetic, errors, and the real packages where they are installed."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from conftest import Built
from helpers.factories import tiny_deployment
from helpers.http_harness import Served
from rich.console import Console
from typer.testing import CliRunner

from profiling.bench.compare_runs import result_figures
from profiling.bench.peers.plain_generation import OnnxRuntimeGraph, PlainGeneration, can_run_plainly
from profiling.bench.peers.run import (
    TOLERANCE,
    Rested,
    check_same,
    comparison,
    fetch,
    generate_all,
    measure_peers,
    peer_workloads,
    peers_tolerance,
    print_peers,
    prompts,
    torch_competitors,
)
from profiling.bench.session import open_bench
from profiling.bench.steady_stream import decoder_inputs
from profiling.bench.workload import Workload
from profiling.bench_cli import app
from runtime.base.errors import BuildError, ConfigError, EngineError, ShapeError
from runtime.config.deployment import load_deployment
from runtime.engines.engine import RunnableGraph, run_once
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import parse_options

has_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="needs pip install 'tickrt[peers]'"
)
LOAD = Workload(depth=4, frames=32, steps=4)


def test_a_ratio_is_the_peers_time_over_ours_in_the_same_run() -> None:
    speed = np.repeat(np.random.default_rng(0).uniform(1.0, 3.0, 21), 10)  # a machine that changes its speed
    line = comparison("tick", LOAD, list(10.0 * speed[:200]), {"other": list(25.0 * speed[:201])}, {"other": 1e-6})
    peer = line["peers"]["other"]
    assert (line["work"], line["requests"], line["variant"]) == ("tick", 4, "plain")
    assert peer["ratio"] == pytest.approx(2.5, abs=1e-4)
    assert peer["ratio_low"] <= peer["ratio"] <= peer["ratio_high"]
    assert not peer["is_noisy"]
    assert line["tickrt_ms"]["p50"] == pytest.approx(10.0 * np.median(speed[:200]), rel=1e-4)
    assert peer["largest_difference"] == 1e-6
    random = np.random.default_rng(1)
    noisy = comparison("tick", LOAD, list(random.uniform(1, 2, 50)), {"other": list(random.uniform(1, 2, 51))}, {})
    assert noisy["peers"]["other"]["is_noisy"]


def test_another_result_is_not_timed() -> None:
    one = np.full((2, 3), 5.0, np.float32)
    assert check_same("it", [one, one], [one, one + np.float32(2e-4)]) == pytest.approx(2e-4, rel=0.01)
    with pytest.raises(EngineError, match=r"it differs from us by 1\.0e-03, expected at most 5e-04"):
        check_same("it", [one], [one + np.float32(1e-3)])
    with pytest.raises(EngineError, match="differs from us by nan"):
        check_same("it", [one * np.nan], [one])
    with pytest.raises(EngineError, match=r"it gives \(1, 3\), we \(2, 3\)"):
        check_same("it", [one[:1]], [one])
    eight_bits = peers_tolerance({"precision": "int8"})
    assert peers_tolerance({}) == peers_tolerance({"precision": "fp32"}) == TOLERANCE
    assert check_same("it", [one], [one + np.float32(0.5)], eight_bits) == pytest.approx(0.5)
    with pytest.raises(EngineError, match="it differs from us"):
        check_same("it", [one], [-one], eight_bits)


def test_prompts_are_different_with_equally_many_words_and_a_rested_peer_is_timed_without_its_pauses() -> None:
    class Peer:
        def time_ms(self, times: int = 1) -> float:
            return 0.25 * times

    found = list(islice(prompts(), 120))
    assert len(set(found)) == 120
    assert len({len(prompt.split()) for prompt in found}) == 1
    assert Rested(Peer()).time_ms(4) == 1.0


def test_the_loads_are_guided_where_the_model_is(built: Built, tmp_path: Path) -> None:
    guided = [(load.depth, load.variant) for load in peer_workloads(built(), 0, 0)]
    assert guided == [(depth, name) for name in ("plain", "guidance") for depth in (1, 4, 8)]
    distilled = peer_workloads(load_deployment(tiny_deployment(tmp_path, guidance=1.0)), 16, 2)
    assert [(load.depth, load.variant, load.frames, load.steps) for load in distilled] == [
        (depth, "plain", 16, 2) for depth in (1, 4, 8)
    ]


def test_a_generation_in_flight_with_others_is_the_same_as_alone(built: Built) -> None:
    options = [parse_options({"prompt": f"take {index}", "seed": index, "noise": "torch"}) for index in range(3)]
    with open_pipeline(built()) as pipeline, ThreadPoolExecutor(3) as pool:
        together = generate_all(pipeline, pool, options, "latents")
        alone = [generate_all(pipeline, pool, [each], "latents")[0] for each in options]
        (audio,) = generate_all(pipeline, pool, options[:1], "audio")
    assert [latents.shape for latents in together] == [(32, 8)] * 3
    assert max(np.abs(one - two).max() for one, two in zip(together, alone, strict=True)) < 1e-4
    assert np.abs(together[0] - together[1]).max() > 0.1
    assert audio.shape == (32 * 320, 2)


def test_only_a_folder_and_the_cpu_are_compared_with_packages_that_are_there(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="published is no folder"):
        measure_peers(built(), [LOAD], 1, "published")
    with pytest.raises(ConfigError, match="compared on the CPU, the target is cuda"):
        measure_peers(built().model_copy(update={"target": "cuda"}), [LOAD], 1, "")
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = CliRunner().invoke(app, ["peers", str(built().path)])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "needs openvino" in done.stderr
    assert "pip install 'tickrt[peers]'" in done.stderr
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(BuildError, match="diffusers") as caught:
        torch_competitors("published", None, LOAD)
    assert caught.value.fix == "pip install 'tickrt[export]'"


def test_the_tables_have_every_line_and_peer() -> None:
    lines = [
        comparison("tick", LOAD, [10.0], {"OpenVINO": [20.0, 20.0], "PyTorch": [30.0, 30.0]}, {}),
        comparison("audio", LOAD, [100.0], {"AceStepPipeline": [250.0, 250.0]}, {}),
    ]
    result = {"bundle": "tiny", "precision": "fp32", "frames": 32, "steps": 4, "comparisons": lines}
    console = Console(file=StringIO(), width=120)
    print_peers(console, result)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "20.0  2.00 x" in text
    assert "30.0  3.00 x" in text
    assert "250.0  2.50 x" in text
    assert "text to audio" in text
    assert "text to latents" not in text
    assert result_figures(result) == {
        "tick, 4 requests, plain, OpenVINO": 2.0,
        "tick, 4 requests, plain, PyTorch": 3.0,
        "audio, 4 requests, plain, AceStepPipeline": 2.5,
    }


def test_what_a_server_refuses_is_told(served: Served) -> None:
    with pytest.raises(EngineError, match=r"the server answers 422: .*steps"):
        fetch(served.url, {"prompt": "", "steps": -1})
    with pytest.raises(EngineError, match=r"the server at http://127\.0\.0\.1:9 does not answer"):
        fetch("http://127.0.0.1:9", {"prompt": ""})


@has_openvino
def test_without_a_checkpoint_the_peers_are_openvino_and_onnx_runtime(built: Built) -> None:
    loads = peer_workloads(built(max_rows=16), 0, 0)
    result = measure_peers(built(max_rows=16), loads, 3, "")
    assert (result["kind"], result["precision"], result["frames"]) == ("peers", "fp32", 32)
    assert [(line["work"], line["requests"], line["variant"]) for line in result["comparisons"]] == [
        *(("tick", depth, variant) for variant in ("plain", "guidance") for depth in (1, 4, 8)),
        *(("request", 1, variant) for variant in ("plain", "guidance")),
    ]
    assert "openvino" in result["versions"]
    for line in result["comparisons"]:
        assert set(line["peers"]) == {"OpenVINO"} | ({"ONNX Runtime"} if line["work"] == "request" else set())
        assert line["peers"]["OpenVINO"]["largest_difference"] < 1e-5
        assert line["peers"]["OpenVINO"]["p50"] > 0 < line["tickrt_ms"]["p50"]


@pytest.mark.parametrize(
    ("guidance", "rule"),
    [
        (1.0, ""),
        (4.0, ""),
        (4.0, 'rule = "plain"\nrescale = 0.3'),
        (4.0, 'rescale = 0.7\nnorms = "all"\nparallel = 0.5\nnorm_limit = 0.0'),
    ],
)
def test_its_latents_and_audio_are_ours(built: Built, guidance: float, rule: str) -> None:
    with open_pipeline(built(**({"rule": rule} if rule else {}))) as pipeline, ThreadPoolExecutor(1) as pool:
        bundle = pipeline.bundle
        assert can_run_plainly(bundle)
        asked = {"prompt": "calm melody", "seed": 7, "steps": 5, "shift": 2.0, "guidance": guidance, "finish": False}
        options = parse_options(asked)
        (latents,) = generate_all(pipeline, pool, [options], "latents")
        (audio,) = generate_all(pipeline, pool, [options], "audio")
    plain = PlainGeneration(bundle, OnnxRuntimeGraph)
    found = plain.latents(options, len(latents))
    assert found.shape == latents.shape
    assert np.abs(found - latents).max() < 1e-4 < np.abs(latents).max()
    heard = plain.audio(options, len(latents))
    assert heard.shape == audio.shape
    assert np.abs(heard - audio).max() < 1e-4 < np.abs(audio).max()
    other = plain.latents(parse_options({**asked, "seed": 8}), len(latents))
    assert np.abs(other - latents).max() > 0.1


def dtypes(graph: RunnableGraph) -> dict[str, str]:
    return {name: info.dtype for name, info in graph.inputs.items()}


def test_it_takes_and_gives_what_the_engine_does(built: Built) -> None:
    with open_bench(built()) as session:
        inputs = decoder_inputs(session.engines, session.bundle, Workload(depth=2, frames=32, steps=4), rows=2)
        expected = run_once(session.engines.decoder, inputs)
        engine = session.engines.decoder
        graph = OnnxRuntimeGraph(session.bundle.graph_path(session.bundle.decoder.graph), threads=1)
    assert dtypes(graph) == dtypes(engine)
    found = run_once(graph, inputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() < 1e-5 < np.abs(values).max()
    with pytest.raises(ShapeError):
        run_once(graph, {name: array.astype(np.float64) for name, array in inputs.items()})


@has_openvino
def test_openvino_gives_the_engine_s_velocity_for_shapes_as_they_come(built: Built, tmp_path: Path) -> None:
    from profiling.bench.peers.openvino_decoder import OpenVinoDecoder, OpenVinoGraph

    with open_bench(built()) as session:
        graph = OpenVinoGraph(session.bundle.graph_path(session.bundle.decoder.graph), threads=1)
        engine, output = session.engines.decoder, session.bundle.decoder.outputs.velocity
        assert dtypes(graph) == dtypes(engine)
        for rows, frames, threads in ((1, 32, 0), (2, 16, 1), (1, 32, 0)):
            load = Workload(depth=rows, frames=frames, steps=4)
            inputs = decoder_inputs(session.engines, session.bundle, load, rows)
            expected, found = run_once(engine, inputs), run_once(graph, inputs)
            for name, values in expected.items():
                assert np.abs(found[name] - values).max() < 1e-5 < np.abs(values).max()
            path = session.bundle.folder / session.bundle.decoder.graph
            decoder = OpenVinoDecoder(path, inputs, output, threads)
            assert np.abs(decoder.velocity() - expected[output]).max() < 1e-5
            assert decoder.time_ms(2) > 0.0
    (tmp_path / "decoder.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match="does not take"):
        OpenVinoGraph(tmp_path / "decoder.onnx")
    with pytest.raises(EngineError, match="does not take"):
        OpenVinoDecoder(tmp_path / "decoder.onnx", {}, "velocity")
