"""Building on a real GPU: plans with a real TensorRT, and ONNX Runtime's CUDA provider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from typer.testing import CliRunner, Result

from engine_build.cli import app
from engine_build.compile.builder import build_deployment
from engine_build.compile.environment import probe_environment
from engine_build.request import load_request, read_options
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.engine import run_once
from runtime.engines.loading import open_engine
from runtime.engines.manifest import manifest_path, read_manifest
from runtime.engines.tensorrt.engine_file import read_engine_header

pytestmark = pytest.mark.gpu

FEW = '[build]\nstep_variants = ["plain", "guidance"]\n'


def need(target: str, path: Path) -> None:
    """Skip with what is missing."""
    missing = probe_environment(target, read_options(load_deployment(path))).missing  # type: ignore[arg-type]
    if missing is not None:
        pytest.skip(str(missing))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(params=["tensorrt", "cuda"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, target: str) -> Path:
    path = tiny_deployment(tmp_path, more=FEW)
    need(target, path)
    return path


def deployment_of(path: Path, target: str) -> Deployment:
    return load_deployment(path).model_copy(update={"target": target})


def test_a_deployment_is_built_reused_listed_and_cleaned(path: Path, target: str) -> None:
    first = invoke(path, "--target", target)
    assert first.exit_code == 0, first.stderr
    assert invoke(path, "--target", target).stdout.splitlines()[-1].startswith("13 reused")
    assert "no (1)" not in invoke("list", path, "--target", target).stdout
    for file in deployment_of(path, target).engine_folder().glob("*.plan"):
        manifest = read_manifest(manifest_path(file.parent, file.stem))
        assert read_engine_header(file).version_text == manifest.tool_versions["tensorrt"]
        assert manifest.facts["memory_bytes"] > 0
    assert invoke("clean", path, "--yes").exit_code == 0
    assert not deployment_of(path, target).engine_folder().exists()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_demo_decoder_keeps_its_tolerance(tmp_path: Path, target: str, precision: str) -> None:
    path = tmp_path / "demo.toml"
    text = (ROOT / "configs" / "demo.toml").read_text(encoding="utf-8")
    bundle = f'bundle = "{ROOT / "configs" / "demo"}"'
    text = text.replace('bundle = "demo"', bundle)
    path.write_text(f'{text}\n{FEW}precision = "{precision}"\n', encoding="utf-8")
    need(target, path)
    manifests = {manifest.name: manifest for manifest in build_deployment(deployment_of(path, target))}
    decoder = manifests["decoder"]
    assert decoder.build["precision"] == precision
    assert decoder.error["max_rel"] <= decoder.build["tolerance"]
    assert manifests["step.guidance"].error["max_rel"] <= 1e-5


def test_an_engine_gives_the_same_on_the_gpu_and_on_the_cpu(path: Path, target: str) -> None:
    found = {}
    for name in ("cpu", target):
        deployment = deployment_of(path, name)
        build_deployment(deployment)
        device = open_device(name)
        engine = open_engine(deployment.engine_folder(), "codec_decode", device)
        latents = np.random.default_rng(0).standard_normal((1, 12, 8)).astype(np.float32)
        found[name] = run_once(engine, {"latents": latents, "start_frame": np.zeros(1, np.int64)})["audio"]
        engine.close()
        device.close()
    np.testing.assert_allclose(found[target], found["cpu"], atol=1e-4)


def test_every_variant_is_taken(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    need("tensorrt", path)
    manifests = build_deployment(deployment_of(path, "tensorrt"))
    assert len(manifests) == 8 + len(load_request(path).options.step_variants)
