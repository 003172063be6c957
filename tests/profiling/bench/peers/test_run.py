"""The comparison with other software: arithmetic, errors, and the real packages where they are installed."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.factories import tiny_deployment
from helpers.http_harness import Served
from rich.console import Console
from typer.testing import CliRunner

from profiling.bench.compare_runs import figures
from profiling.bench.peers import run
from profiling.bench.peers.run import (
    REST_S,
    TOLERANCE,
    Rested,
    check_same,
    comparison,
    fetch,
    generate,
    measure_peers,
    peer_workloads,
    print_peers,
    prompts,
    tolerance_of,
)
from profiling.bench.workload import Workload
from profiling.bench_cli import app
from runtime.base.errors import BuildError, ConfigError, EngineError
from runtime.config.deployment import load_deployment
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import parse_options

has_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="needs pip install 'tickrt[peers]'"
)
LOAD = Workload(depth=4, frames=32, steps=4)


def bench(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


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
    eight_bits = tolerance_of({"precision": "int8"})
    assert tolerance_of({}) == tolerance_of({"precision": "fp32"}) == TOLERANCE
    assert check_same("it", [one], [one + np.float32(0.5)], eight_bits) == pytest.approx(0.5)
    with pytest.raises(EngineError, match="it differs from us"):
        check_same("it", [one], [-one], eight_bits)


def test_a_rested_peer_is_timed_without_its_pauses() -> None:
    class Peer:
        def time_ms(self, times: int = 1) -> float:
            return 0.25 * times

    assert Rested(Peer()).time_ms(4) == 1.0
    assert REST_S > 0.0


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
        together = generate(pipeline, pool, options, "latents")
        alone = [generate(pipeline, pool, [each], "latents")[0] for each in options]
        (audio,) = generate(pipeline, pool, options[:1], "audio")
    assert [latents.shape for latents in together] == [(32, 8)] * 3
    assert max(np.abs(one - two).max() for one, two in zip(together, alone, strict=True)) < 1e-4
    assert np.abs(together[0] - together[1]).max() > 0.1
    assert audio.shape == (32 * 320, 2)


def test_a_missing_package_has_its_pip_line(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    missing = "openvino"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(BuildError, match="needs openvino") as caught:
        measure_peers(built(), [LOAD], 1, "")
    assert caught.value.fix == "pip install 'tickrt[peers]'"
    done = CliRunner().invoke(app, [str(built().path), "--peers"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "pip install 'tickrt[peers]'" in done.stderr
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "diffusers" else object())
    with pytest.raises(BuildError, match="needs diffusers") as caught:
        measure_peers(built(), [LOAD], 1, "checkpoint")
    assert caught.value.fix == "pip install 'tickrt[export]'"


def test_only_a_folder_and_the_cpu_are_compared(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "need_packages", lambda *names, extra="": None)
    with pytest.raises(ConfigError, match="published is no folder"):
        measure_peers(built(), [LOAD], 1, "published")
    with pytest.raises(ConfigError, match="compares on the CPU, the target is cuda"):
        measure_peers(built().model_copy(update={"target": "cuda"}), [LOAD], 1, "")


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
    assert figures(result) == {
        "tick, 4 requests, plain, OpenVINO": 2.0,
        "tick, 4 requests, plain, PyTorch": 3.0,
        "audio, 4 requests, plain, AceStepPipeline": 2.5,
    }


def test_prompts_are_different_with_equally_many_words() -> None:
    found = list(islice(prompts(), 120))
    assert len(set(found)) == 120
    assert len({len(prompt.split()) for prompt in found}) == 1


def test_what_a_server_refuses_is_told(served: Served) -> None:
    with pytest.raises(EngineError, match=r"the server answers 422: .*steps"):
        fetch(served.url, {"prompt": "", "steps": -1})
    with pytest.raises(EngineError, match=r"the server at http://127\.0\.0\.1:9 does not answer"):
        fetch("http://127.0.0.1:9", {"prompt": ""})


@has_openvino
def test_without_a_checkpoint_the_peers_are_openvino_and_onnx_runtime(built: Built, tmp_path: Path) -> None:
    result = bench(built(max_rows=16).path, "--peers", "--ticks", 3)
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
    (tmp_path / "base.json").write_text(json.dumps(result))
    again = bench(built(max_rows=16).path, "--peers", "--ticks", 2, "--compare", tmp_path / "base.json")
    assert "tick, 8 requests, guidance, OpenVINO" in again["changes"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny checkpoint, and the deployment file of its bundle, which is built."""
    for package in ("torch", "diffusers", "transformers", "openvino"):
        pytest.importorskip(package)
    from helpers.tiny_acestep import save_checkpoint

    from engine_build.compile.builder import build_deployment
    from engine_build.export.acestep.export import export_bundle
    from engine_build.export.acestep.sources import Checkpoint
    from engine_build.export.bundle_export import ExportOptions
    from profiling.bench.peers.example import DEPLOYMENT

    folder = tmp_path_factory.mktemp("peers")
    checkpoint = save_checkpoint(folder / "checkpoint")
    export_bundle(Checkpoint(checkpoint), folder / "bundle", ExportOptions("tiny", canvas_s=2.4), lambda text: None)
    (folder / "tiny.toml").write_text(DEPLOYMENT)
    build_deployment(load_deployment(folder / "tiny.toml"))
    return checkpoint, folder / "tiny.toml"


@pytest.mark.export
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_with_a_checkpoint_every_peer_gives_the_same(
    exported: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, config = exported
    monkeypatch.setattr(run, "REQUESTS", (2,))
    result = bench(config, "--peers", "--torch", checkpoint, "--ticks", 2, "--steps", 2)
    lines = {(line["work"], line["variant"]): line["peers"] for line in result["comparisons"]}
    guided = {(work, variant) for work in ("tick", "latents") for variant in ("plain", "guidance")}
    assert lines.keys() == guided | {("audio", "plain")}
    wanted = {"tick": ("OpenVINO", "PyTorch", "PyTorch compiled")}
    for (work, _), peers in lines.items():
        assert tuple(peers) == wanted.get(work, ("AceStepPipeline", "AceStepPipeline compiled"))
        assert all(peer["p50"] > 0 < peer["ratio"] for peer in peers.values())
        assert all((peer["largest_difference"] is None) == (work == "audio") for peer in peers.values())
    assert result["versions"].keys() >= {"openvino", "torch", "diffusers", "transformers"}


@pytest.mark.export
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_another_checkpoint_is_refused(exported: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from helpers.tiny_acestep import diffusers_pipeline

    checkpoint, config = exported
    monkeypatch.setattr(run, "REQUESTS", (1,))
    monkeypatch.setattr(run, "MODES", {"": False})
    other = diffusers_pipeline(checkpoint)
    with torch.no_grad():
        other.transformer.proj_out_conv.weight.mul_(1.1)
    other.save_pretrained(checkpoint.with_name("other"))
    done = CliRunner().invoke(app, [str(config), "--peers", "--torch", str(checkpoint.with_name("other"))])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "PyTorch differs from us by" in done.stderr
