"""Ceilings: given and measured."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import TensorProto
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
    assert higher(first, None) == higher(None, first) == first


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


@pytest.mark.parametrize(("target", "element"), [("cpu", TensorProto.FLOAT), ("tensorrt", TensorProto.FLOAT16)])
def test_ceilings_are_operations_and_bytes_over_the_best_times(
    target: Any, element: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def best_s(kind: str, device: Any, op_type: str, shapes: Any, element: int, threads: int) -> float:
        asked.append((kind, op_type, shapes, element, threads))
        return {"MatMul": 0.5, "Neg": 0.25}[op_type]

    monkeypatch.setattr(ceilings, "_best_s", best_s)
    kind = "cpu" if target == "cpu" else "cuda"
    monkeypatch.setitem(ceilings.GEMM_SIZE, kind, 100)
    monkeypatch.setitem(ceilings.COPY_BYTES, kind, 4 << 20)
    found = measure_ceilings(target, HostDevice(), half=True, threads=3)
    source = "measured: 100 x 100 matrix product, 4 MiB negated"
    assert found == Ceilings(4e6, 32 * 2**20, source), "a product is 2 N^3 operations, a copy reads and writes"
    assert asked == [
        (kind, "MatMul", {"a": (100, 100), "b": (100, 100)}, element, 3),
        (kind, "Neg", {"a": (1 << 20,)}, TensorProto.FLOAT, 3),
    ]


def test_the_best_time_is_of_the_executes_behind_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clock by which the two that warm up are the fastest ones."""
    took_s = chain([0.1, 0.2], [5.0, 3.0], repeat(4.0))
    times_s = chain.from_iterable((10.0, 10.0 + each) for each in took_s)
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=times_s.__next__))
    assert ceilings._best_s("cpu", HostDevice(), "Neg", {"a": (8,)}, TensorProto.FLOAT, 1) == 3.0
