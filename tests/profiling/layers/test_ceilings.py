"""Ceilings: given and measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import TensorProto
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from profiling.layers import ceilings
from profiling.layers.ceilings import best_of, busy_text, measure_ceilings, parse_peaks
from profiling.layers.roofline import Ceilings, Work
from profiling.layers.timings import LayerTiming, Profile, Wall
from runtime.base.errors import ConfigError
from runtime.devices.device import HostDevice
from runtime.devices.machine import open_device


def test_given_ceilings() -> None:
    top = parse_peaks("989000,4800")
    assert (top.flops_per_s, top.bytes_per_s) == (989e12, 4.8e12)
    assert top.source == "given"


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", "0,1", "1,-1", "nan,1", "1,inf"])
def test_other_than_two_positive_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--peaks is[\s\S]*fix: --peaks"):
        parse_peaks(text)


def test_the_best_of_all_measurements() -> None:
    first, second = Ceilings(2.0, 30.0, "measured", 0.5), Ceilings(3.0, 20.0, "measured", 0.9)
    assert best_of([first, second]) == Ceilings(3.0, 30.0, "measured", 0.7)
    assert best_of([first]) == first


def profile_of(*runs_ms: float, target: str = "cpu", precision: str = "fp32") -> Profile:
    """Of one layer with 2e8 operations on few bytes: 200 GFLOP/s in 1 ms."""
    layer = LayerTiming("up", "MatMul", "gemm", runs_ms, 1.0, work=Work(200_000_000, 1000))
    about = {"target": target, "precision": precision}
    return Profile("decoder", len(runs_ms), (layer,), Wall(runs_ms), about)


def test_a_busy_machine_is_called_busy() -> None:
    quiet, slowed = Ceilings(220e9, 20e9, "measured", 0.97), Ceilings(69e9, 20e9, "measured", 0.9)
    profile = profile_of(1.0, 1.1, 1.2)
    assert busy_text(profile, [quiet] * 6) == ""
    assert busy_text(profile, [quiet] * 4 + [slowed] * 2) == "", "the best ones count"
    assert "69 to 220 GFLOP/s" in busy_text(profile, [slowed] * 4 + [quiet] * 2)
    always = busy_text(profile, [slowed] * 6)
    assert always.startswith("machine busy: a layer computes at 290%"), "equally slow measurements, and faster layers"
    assert "45% of the cores' time" in busy_text(profile, [Ceilings(220e9, 20e9, "measured", 0.45)] * 6)


def test_only_float32_on_a_cpu_cannot_compute_faster_than_its_ceiling() -> None:
    measured = [Ceilings(69e9, 20e9, "measured")]
    assert busy_text(profile_of(1.0), measured)
    assert busy_text(profile_of(1.0, precision="int8"), measured) == ""
    assert busy_text(profile_of(1.0, target="cuda"), measured) == ""


def test_a_layer_that_was_interrupted_is_judged_by_its_fastest_execute() -> None:
    roof = profile_of(9.0, 1.0, 8.0).layers[0].roof(Ceilings(250e9, 20e9))
    assert roof is not None
    assert roof.reached == pytest.approx(0.8)


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

    def best(kind: str, device: Any, op_type: str, shapes: Any, element: int, threads: int) -> tuple[float, float]:
        asked.append((kind, op_type, shapes, element, threads))
        return {"MatMul": (0.5, 0.9), "Neg": (0.25, 0.1)}[op_type]

    monkeypatch.setattr(ceilings, "_best", best)
    kind = "cpu" if target == "cpu" else "cuda"
    monkeypatch.setitem(ceilings.GEMM_SIZE, kind, 100)
    monkeypatch.setitem(ceilings.COPY_BYTES, kind, 4 << 20)
    found = measure_ceilings(target, HostDevice(), half=True, threads=3)
    source = "measured: 100 x 100 matrix product, 4 MiB negated"
    assert found == Ceilings(4e6, 32 * 2**20, source, 0.9), "a product is 2 N^3 operations, a copy reads and writes"
    assert asked == [
        (kind, "MatMul", {"a": (100, 100), "b": (100, 100)}, element, 3),
        (kind, "Neg", {"a": (1 << 20,)}, TensorProto.FLOAT, 3),
    ]


@pytest.mark.parametrize(("threads", "best"), [(1, (2.0, 0.75)), (2, (3.0, 0.375))])
def test_the_best_time_is_of_the_executes_behind_the_warm_up(
    threads: int, best: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clock by which the two that warm up are the fastest ones; one thread is measured in CPU time."""
    walls_s, cpus_s = [0.1, 0.2, 5.0, 3.0, *[4.0] * 6], [0.1, 0.2, 2.0, 2.5, *[3.25] * 6]
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=clock(walls_s), process_time=clock(cpus_s)))
    found = ceilings._best("cpu", HostDevice(), "Neg", {"a": (8,)}, TensorProto.FLOAT, threads)
    assert found == pytest.approx(best)


def clock(took_s: list[float]) -> Callable[[], float]:
    """Read before and after each of several executes that take so long."""
    ends_s = list(accumulate(took_s))
    return chain.from_iterable((end - took, end) for end, took in zip(ends_s, took_s, strict=True)).__next__
