"""Contexts of TensorRT-RTX: the settings that they are made with, their memory, and whether they can be captured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine_behaviour import Bench, expected, feeds_of, written
from simulator.fixture import Machine, provoked, simulated

from runtime.engines.manifest import manifest_path, read_manifest


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with simulated(rtx=True) as machine:
        yield machine


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Any]:
    from runtime.engines.tensorrt.rtx.kernel_cache import KernelCache
    from runtime.engines.tensorrt.rtx.loaded_engine import RtxLoadedEngine

    written(tmp_path / "engines")
    manifest = read_manifest(manifest_path(tmp_path / "engines", "decoder"))
    plan = RtxLoadedEngine(manifest, tmp_path / "engines", "", KernelCache(tmp_path / "engines"))
    yield plan
    plan.close()


def test_kernels_are_chosen_with_the_context(machine: Machine, plan: Any) -> None:
    from runtime.engines.tensorrt.rtx.loaded_engine import FALLBACK, LAZY, SPECIALIZED

    bench = Bench()
    memory = bench.device.zeros((plan.activation_bytes,), np.uint8)
    for kernels, compiled in ((FALLBACK, []), (LAZY, []), (SPECIALIZED, ["execute"])):
        context = plan.new_context(0, memory, kernels)
        tensors = bench.tensors()
        before = len(machine.compiled)
        context.launch(plan.settings(tensors), bench.stream)
        assert [when for when, _ in machine.compiled[before:]] == compiled
        np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
        context.close()
    bench.close()


def test_a_context_moves_to_other_memory(plan: Any) -> None:
    bench = Bench()
    context = plan.new_context(0, bench.device.zeros((plan.activation_bytes,), np.uint8))
    tensors = bench.tensors()
    context.launch(settings := plan.settings(tensors), bench.stream)
    bench.stream.record().wait()
    other = bench.device.zeros((plan.activation_bytes,), np.uint8)
    context.use_memory(other)
    context.launch(settings, bench.stream)
    assert context._context._activation == (other.address, other.size_bytes)
    np.testing.assert_allclose(bench.read(tensors["y"]), expected(feeds_of(2, 4)), rtol=1e-6)
    context.close()
    bench.close()


def test_a_capture_is_asked_for_first(machine: Machine, plan: Any) -> None:
    bench = Bench()
    context = plan.new_context(0, bench.device.zeros((plan.activation_bytes,), np.uint8), "EAGER")
    settings = plan.settings(bench.tensors())
    context.launch(settings, bench.stream)
    with provoked(machine, "a capture without is_stream_capturable"):
        bench.device.capture(bench.stream, lambda: context.launch(settings, bench.stream))
    gc.collect()  # the exception keeps the objects of its frames
    assert context.is_capturable(bench.stream)
    replay = bench.device.capture(bench.stream, lambda: context.launch(settings, bench.stream))
    replay.launch(bench.stream)
    bench.stream.record().wait()
    replay.close()
    context.close()
    bench.close()
