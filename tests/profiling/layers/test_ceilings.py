"""Ceilings: given and measured."""

from __future__ import annotations

import pytest
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from profiling.layers import ceilings
from profiling.layers.ceilings import higher, measure_ceilings, parse_peaks
from profiling.layers.roofline import Ceilings
from runtime.devices.device import HostDevice
from runtime.devices.machine import open_device
from runtime.errors import ConfigError


def test_given_ceilings() -> None:
    top = parse_peaks("989000,4800")
    assert (top.flops_per_s, top.bytes_per_s) == (989e12, 4.8e12)
    assert top.source == "given"


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", "0,1", "1,-1", "nan,1", "1,inf"])
def test_other_than_two_positive_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--peaks is[\s\S]*fix: --peaks"):
        parse_peaks(text)


def test_the_higher_of_two_measurements() -> None:
    first, second = Ceilings(2.0, 30.0, "measured"), Ceilings(3.0, 20.0, "measured")
    assert higher(first, second) == Ceilings(3.0, 30.0, "measured")
    assert higher(None, None) is None
    assert higher(first, None) == first


def test_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.GEMM_SIZE, "cpu", 64)
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", 1 << 20)
    top = measure_ceilings("cpu", HostDevice(), half=True, threads=1)
    assert top.flops_per_s > 0
    assert top.bytes_per_s > 0
    assert "64 x 64" in top.source


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_unmeasurable_ceilings_can_be_given(target: str) -> None:
    """Without the CUDA provider, as where only TensorRT is installed."""
    with pytest.raises(ConfigError, match=r"the ceilings of target[\s\S]*fix: --peaks"):
        measure_ceilings(target, HostDevice(), half=False, threads=1)  # type: ignore[arg-type]


def test_the_cuda_provider_measures_for_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.GEMM_SIZE, "cuda", 32)
    monkeypatch.setitem(ceilings.COPY_BYTES, "cuda", 1 << 16)
    with simulated() as machine, simulated_provider(machine):
        device = open_device("tensorrt")
        top = measure_ceilings("tensorrt", device, half=True, threads=1)
        device.close()
    assert top.flops_per_s > 0
    assert "32 x 32" in top.source
