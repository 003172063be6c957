"""Adapters merged into the decoder's weights: the same latents as with adapters in every row, on every target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.adapters import random_factors, write_peft
from helpers.backends import FEW_VARIANTS
from helpers.building import build_engine
from helpers.engine_behaviour import Bench, written
from helpers.factories import tiny_deployment
from helpers.generations import Inbox, make, run_all
from onnx import TensorProto, helper, load, load_model_from_string, numpy_helper, save
from simulator.fixture import Machine, simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.compile.worker import Worker
from engine_build.config import ALL_STEP_FEATURES
from engine_build.request import request_of
from runtime.base.errors import ConfigError, EngineMismatchError, RequestError
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.adapters import ADAPTED_DECODER, Adapter, AdapterUse
from runtime.engines.loading import open_engines
from runtime.engines.merging import MergedWeights
from runtime.requests.request import StepParameters
from runtime.tick.loop.tick_loop import TickLoop

STRENGTHS = {"soft": 0.7, "hard": -0.5}
TARGETS = ("cpu", "cuda", "tensorrt")
# Of the tiny decoder; the last one is none of the matrices that take adapters.
STORED_TOGETHER = ("w_in", "w_out", "w_context")


def write_deployment(folder: Path, *, more: str = FEW_VARIANTS, target: str = "cpu", head: str = "") -> Deployment:
    """A tiny decoder with two adapters of rank 4, one for all matrices, one for the first; a tick takes both."""
    path = tiny_deployment(folder, adapters=True, codec=False, text_encoder=False, more=more)
    text = path.read_text().replace('target = "cpu"', f'target = "{target}"\nadapters = "adapters"\n{head}')
    path.write_text(text.replace("queue = 8", "queue = 8\nadapter_rank = 8"))
    spec = spec_of(load_deployment(path))
    for seed, (name, modules) in enumerate((("soft", ()), ("hard", tuple(spec.matrices)[:1]))):
        write_peft(folder / "adapters" / name, random_factors(spec, 4, seed, modules))
    return load_deployment(path)


def spec_of(deployment: Deployment) -> AdapterSpec:
    found = load_bundle(deployment.bundle).adapters
    assert found is not None
    return found


@contextmanager
def on_target(target: str, **faults: Any) -> Iterator[Machine | None]:
    with ExitStack() as stack:
        machine = None if target == "cpu" else stack.enter_context(simulated(faults=faults))
        if machine is not None and target == "cuda":
            stack.enter_context(simulated_provider(machine))
        yield machine


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployment]:
    """A built deployment for each target; that of tensorrt with refit."""
    found = {}
    for target in TARGETS:
        more = FEW_VARIANTS + "refit = true\n" if target == "tensorrt" else FEW_VARIANTS
        found[target] = write_deployment(tmp_path_factory.mktemp(target), target=target, more=more)
        with on_target(target):
            build_some(found[target])
    return found


def build_some(deployment: Deployment) -> None:
    """Build the engines of a tick without guidance."""
    request, target = request_of(deployment), deployment.target
    folder, environment = deployment.engine_folder(), build_environment(target, request.options)
    folder.mkdir(parents=True)
    needed = (
        "decoder",
        ADAPTED_DECODER,
        "rows.plain",
        "rows.ring",
        "rows.context+ring",
        "step.plain",
        f"step.{ALL_STEP_FEATURES}",
    )
    with Worker() as worker:  # to start one takes longer than a build
        for decision in check_rebuilds(request, target, environment=environment):
            if decision.spec.name in needed:
                build_engine(decision, request, folder, environment, worker=worker)


def latents(deployment: Deployment, merged: dict[str, float], rows: dict[str, float]) -> np.ndarray:
    """Latents of one generation with adapters in the weights, and with adapters of its own."""
    device = open_device(deployment.target)
    engines = open_engines(deployment, device, merged=merged)
    assert engines.merged == {name: strength for name, strength in merged.items() if strength}
    loop = TickLoop(engines, load_bundle(deployment.bundle), deployment, device)
    found = run_all(loop, make("a", parameters=StepParameters(adapters=rows))).latents("a").copy()
    loop.close()
    device.close()
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_merged_adapters_give_what_adapters_of_every_row_give(folders: dict[str, Deployment], target: str) -> None:
    deployment = folders[target]
    with on_target(target):
        plain = latents(deployment, {}, {})
        for merged in (STRENGTHS, {"soft": 0.0, "hard": 1.0}):
            found = latents(deployment, merged, {})
            np.testing.assert_allclose(found, latents(deployment, {}, merged), atol=1e-4)
            assert np.abs(found - plain).max() > 0.01
        both = latents(deployment, {"soft": 0.7}, {"hard": -0.5})
        np.testing.assert_allclose(both, latents(deployment, STRENGTHS, {}), atol=1e-4)
        np.testing.assert_array_equal(latents(deployment, {"soft": 0.0}, {}), plain)


def test_generations_in_flight_keep_their_adapters_when_engines_are_replaced(folders: dict[str, Deployment]) -> None:
    deployment, both = folders["cpu"], {"soft": 1.0, "hard": 1.0}
    expected = latents(deployment, {}, both)
    with closing(open_device("cpu")) as device:
        loop = TickLoop(open_engines(deployment, device), load_bundle(deployment.bundle), deployment, device)
        inbox = Inbox()
        loop.submit(make("a", parameters=StepParameters(adapters=both), session="s"), inbox)
        loop.tick()
        replaced = loop.swap(open_engines(deployment, device))
        loop.tick()
        assert replaced.done()
        loop.update("s", {"adapters": both})  # as read again, the same adapters: their ranks count once
        while loop.tick() is not None:
            pass
        np.testing.assert_allclose(inbox.latents("a"), expected, atol=1e-6)
        loop.close()


def test_the_deployment_says_what_its_engines_begin_with(folders: dict[str, Deployment], tmp_path: Path) -> None:
    deployment = write_deployment(tmp_path, head="merged_adapters = { soft = 0.7 }")
    assert deployment.merged_adapters == {"soft": 0.7}
    with closing(open_device("cpu")) as device:
        begun = folders["cpu"].model_copy(update={"merged_adapters": deployment.merged_adapters})
        engines = open_engines(begun, device)
        assert engines.merged == {"soft": 0.7}
        engines.close()
    deployment.path.write_text(deployment.path.read_text().replace("soft = 0.7", "soft = 5.0"))
    with pytest.raises(ConfigError, match=r"merged_adapters: expected at most 4"):
        load_deployment(deployment.path)


def test_an_unknown_adapter_is_refused(folders: dict[str, Deployment]) -> None:
    with pytest.raises(RequestError, match=r"(?s)no adapter 'sof'.*did you mean soft"):
        latents(folders["cpu"], {"sof": 1.0}, {})


def test_weights_that_tensorrt_stores_together_are_replaced_together(folders: dict[str, Deployment]) -> None:
    with on_target("tensorrt"):
        expected = latents(folders["tensorrt"], {"hard": 1.0}, {})
    with on_target("tensorrt", stored_together=STORED_TOGETHER):
        np.testing.assert_array_equal(latents(folders["tensorrt"], {"hard": 1.0}, {}), expected)


def test_a_plan_without_refit_is_refused(tmp_path: Path) -> None:
    with simulated():
        written(tmp_path)
        bench = Bench(tmp_path)
        with pytest.raises(EngineMismatchError, match=r"(?s)takes no other weights.*refit = true in \[build\]"):
            bench.open(in_tick=False, weights=weights_of(tmp_path))
        bench.close()


SPEC = AdapterSpec(
    matrices={
        "wide": AdapterMatrix(weight="w", inputs=3, outputs=5),
        "square": AdapterMatrix(weight="s", inputs=5, outputs=5),
    }
)


def weights_of(folder: Path, spec: AdapterSpec = SPEC) -> MergedWeights:
    """y = Gemm(x w, s transposed), with one adapter in both, at strength 2."""
    random = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Gemm", ["h", "s"], ["y"], transB=1)]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["R", size]) for name, size in (("x", 3), ("y", 5))]
    values = {"w": random.standard_normal((3, 5)), "s": random.standard_normal((5, 5))}
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in values.items()]
    graph = helper.make_graph(nodes, "decoder", sides[:1], sides[1:], weights)
    save(helper.make_model(graph), folder / "graph.onnx")
    a, b = random.standard_normal((2, 8)).astype(np.float32), random.standard_normal((2, 10)).astype(np.float32)
    return MergedWeights(folder / "graph.onnx", spec, [AdapterUse(Adapter("one", a, b, tuple(spec.matrices)), 2.0)])


def test_a_weight_is_read_in_the_layout_of_its_graph(tmp_path: Path) -> None:
    weights = weights_of(tmp_path)
    ((adapter, _),) = weights._uses
    base = {tensor.name: numpy_helper.to_array(tensor) for tensor in load(tmp_path / "graph.onnx").graph.initializer}
    np.testing.assert_allclose(weights.read("w"), base["w"] + 2 * adapter.a[:, :3].T @ adapter.b[:, :5], rtol=1e-5)
    np.testing.assert_allclose(weights.read("s"), base["s"] + 2 * adapter.b[:, 5:].T @ adapter.a[:, 3:], rtol=1e-5)


@pytest.mark.parametrize(("suffix", "kind"), [("", "FLOAT"), (".fp16", "FLOAT16"), (".bf16", "BFLOAT16")])
def test_an_engines_weights_are_rounded_to_what_it_stores(suffix: str, kind: str, tmp_path: Path) -> None:
    weights, number = weights_of(tmp_path), TensorProto.DataType.Value(kind)
    model = load(tmp_path / "graph.onnx")
    for tensor in model.graph.initializer:
        dtype = helper.tensor_dtype_to_np_dtype(number)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name + suffix))
    save(model, tmp_path / "engine.onnx", save_as_external_data=True, location="data", size_threshold=0)
    found = weights.graph(tmp_path / "engine.onnx")
    assert {name: at for name, (_, at) in found.weights.items()} == {f"w{suffix}": number, f"s{suffix}": number}
    for name, (values, _) in found.weights.items():
        exact = weights.read(name)
        wide = (values.astype(np.uint32) << 16).view(np.float32) if kind == "BFLOAT16" else values
        np.testing.assert_allclose(wide, exact, rtol=2.0 ** {"FLOAT": -20, "FLOAT16": -10, "BFLOAT16": -8}[kind])
    assert not any(tensor.raw_data for tensor in load_model_from_string(found.model).graph.initializer)


def test_an_engine_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    weights = weights_of(tmp_path)
    with pytest.raises(EngineMismatchError, match=r"(?s)the plan has no weight 's'.*optimization"):
        weights.changed(["w", "bias"], "the plan")
    with pytest.raises(EngineMismatchError, match="no initializer 'folded'"):
        weights.read("folded")
    other = AdapterSpec(matrices={"wide": AdapterMatrix(weight="v", inputs=3, outputs=5)})
    with pytest.raises(EngineMismatchError, match="no initializer 'v'"):
        weights_of(tmp_path, other)
