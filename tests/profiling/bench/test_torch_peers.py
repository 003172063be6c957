"""PyTorch and diffusers as peers, and the example checkpoint. Needs the extra `export`."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import torch
from conftest import Built
from helpers.tiny_acestep import CHANNELS, HOP_SAMPLES, diffusers_pipeline, save_checkpoint
from helpers.tiny_exports import TinyExports
from typer.testing import CliRunner

from profiling.bench.peers import example
from profiling.bench.peers.example import DEPLOYMENT, END, save_example
from profiling.bench.peers.run import REQUESTS, measure_peers
from profiling.bench.peers.torch_peers import DiffusersPipeline, TorchDecoder
from profiling.bench.workload import Workload, workload_of
from profiling.bench_cli import app
from runtime.base.errors import ConfigError, EngineError
from runtime.config.deployment import Deployment, load_deployment

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_the_bench_times_it_in_turn_with_the_ticks(built: Built, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", text=False)
    command = [str(built().path), "--depth", "2", "--ticks", "3", "--torch", str(checkpoint), "--json", "-"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["competitors"]
    assert found.keys() == {"torch eager", "torch compiled"}
    assert all(each["p50"] > 0 < each["over_tick"] for each in found.values())


def test_it_computes_a_velocity_for_every_row(tmp_path: Path) -> None:
    checkpoint = str(save_checkpoint(tmp_path / "checkpoint", text=False))
    decoder = TorchDecoder(checkpoint, rows=3, frames=16, tokens=5, compiled=False)
    assert decoder.velocity().shape == (3, 16, 8)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ACE-Step transformer"):
        TorchDecoder(str(tmp_path), rows=1, frames=8, tokens=4, compiled=False)
    with pytest.raises(ConfigError, match="needs --torch published"):
        TorchDecoder(str(tmp_path), rows=1, frames=8, tokens=4, layers=2, compiled=False)


ASKED = {"seconds": 0.8, "steps": 2, "guidance": 1.0, "shift": 3.0}


def test_every_prompt_has_its_own_seed(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    peer = DiffusersPipeline(str(checkpoint), compiled=False)
    first, second = peer.generate(["take 1", "take 2"], "latent", **ASKED)
    assert first.shape == second.shape == (20, CHANNELS)
    start = torch.randn(1, 20, CHANNELS, generator=torch.Generator().manual_seed(1))
    wanted = diffusers_pipeline(checkpoint)(
        "take 2", audio_duration=0.8, num_inference_steps=2, guidance_scale=1.0, shift=3.0,
        latents=start, output_type="latent",
    ).audios[0].numpy()  # fmt: skip
    assert np.abs(second - wanted).max() < 1e-5 < np.abs(first - wanted).max()
    (audio,) = peer.generate(["take 1"], "np", **ASKED)
    assert audio.shape == (2, 20 * HOP_SAMPLES)


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AceStepPipeline does not open"):
        DiffusersPipeline(str(tmp_path), compiled=False)


def test_its_pipeline_opens_and_its_prompts_are_short(tmp_path: Path) -> None:
    save_example(tmp_path)
    pipeline = diffusers_pipeline(tmp_path / "checkpoint")
    assert (pipeline.sample_rate, pipeline.latents_per_second, pipeline.is_turbo) == (48_000, 25.0, False)
    assert pipeline.transformer.config.audio_acoustic_hidden_dim == example.CHANNELS
    text, _ = pipeline._format_prompt("warm piano, take 1", audio_duration=10.24)
    tokens = pipeline.tokenizer([text, text.replace("1\n", "8\n", 1)]).input_ids
    assert len(tokens[0]) == len(tokens[1]) < 128
    assert pipeline.tokenizer.convert_ids_to_tokens(tokens[0])[-1] == END
    deployment = tomllib.loads((tmp_path / "example.toml").read_text())
    assert (tmp_path / "example.toml").read_text() == DEPLOYMENT
    assert load_deployment(tmp_path / "demo.toml").loaded_bundle.name == "tickrt-demo"
    assert deployment["shapes"][0]["rows"]["max"] == 2 * max(REQUESTS) == 2 * deployment["runtime"]["depth"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Deployment]:
    """A tiny checkpoint, and the deployment of its bundle, which is built."""
    pytest.importorskip("openvino")
    from engine_build.compile.builder import build_deployment

    folder, made = tmp_path_factory.mktemp("peers"), TinyExports.of_this_code()
    shutil.copytree(made.acestep_bundle(), folder / "bundle")
    (folder / "tiny.toml").write_text(DEPLOYMENT)
    deployment = load_deployment(folder / "tiny.toml")
    build_deployment(deployment)
    return made.acestep(), deployment


def loads_of(deployment: Deployment, depth: int) -> list[Workload]:
    return [workload_of(deployment, depth, 0, 2, guidance=guidance) for guidance in (1.0, 3.0)]


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_with_a_checkpoint_every_peer_gives_the_same(exported: tuple[Path, Deployment]) -> None:
    checkpoint, deployment = exported
    result = measure_peers(deployment, loads_of(deployment, 2), 2, str(checkpoint))
    lines = {(line["work"], line["variant"]): line["peers"] for line in result["comparisons"]}
    guided = {(work, variant) for work in ("tick", "latents") for variant in ("plain", "guidance")}
    assert lines.keys() == guided | {("audio", "plain")}
    wanted = {"tick": ("OpenVINO", "PyTorch", "PyTorch compiled")}
    for (work, _), peers in lines.items():
        assert tuple(peers) == wanted.get(work, ("AceStepPipeline", "AceStepPipeline compiled"))
        assert all(peer["p50"] > 0 < peer["ratio"] for peer in peers.values())
        assert all((peer["largest_difference"] is None) == (work == "audio") for peer in peers.values())
    assert result["versions"].keys() >= {"openvino", "torch", "diffusers", "transformers"}


def test_another_checkpoint_is_refused(exported: tuple[Path, Deployment], tmp_path: Path) -> None:
    checkpoint, deployment = exported
    other = diffusers_pipeline(checkpoint)
    with torch.no_grad():
        other.transformer.proj_out_conv.weight.mul_(1.1)
    other.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="PyTorch differs from us by"):
        measure_peers(deployment, loads_of(deployment, 1), 2, str(tmp_path))
