"""Profiles of ONNX Runtime's CUDA provider, simulated: layers add up, and times are called what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.build.builder import build_deployment
from profiling.layers.ceilings import measure_ceilings
from profiling.layers.measure import measure, sizes_of
from profiling.layers.rollups import by_kind
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment
from runtime.devices.machine import open_device


def test_a_profile_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    path = tiny_deployment(tmp_path, more='[build]\nstep_variants = ["plain"]\n', codec=False, text_encoder=False)
    deployment = load_deployment(path).model_copy(update={"target": "cuda"})
    sizes = sizes_of(load_bundle(deployment.bundle), rows=2, frames=16, tokens=4)
    with simulated() as machine, simulated_provider(machine):
        build_deployment(deployment, target="cuda")
        device = open_device("cuda")
        profile = measure(deployment, device, "decoder", sizes, runs=3)
        device.close()
    assert sum(row.ms for row in by_kind(profile)) == pytest.approx(profile.layer_sum_ms)
    assert all(layer.work is not None for layer in profile.layers)
    assert len(profile.wall.times_ms) == 3
    assert "those of launches" in profile.notes[0]


def test_the_provider_measures_ceilings_for_tensorrt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiling.layers.ceilings.GEMM_SIZE", {"cuda": 32})
    monkeypatch.setattr("profiling.layers.ceilings.COPY_BYTES", {"cuda": 1 << 16})
    with simulated() as machine, simulated_provider(machine):
        device = open_device("tensorrt")
        top = measure_ceilings("tensorrt", device, half=True, threads=1)
        device.close()
    assert top.flops_per_s > 0
    assert "32 x 32" in top.source
