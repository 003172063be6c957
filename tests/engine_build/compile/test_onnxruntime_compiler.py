"""Graphs for ONNX Runtime's CUDA provider: an opset that it has kernels for, nothing through the host, recipes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import tiny_bundle, tiny_deployment
from helpers.paths import ROOT
from onnx import TensorProto
from simulator.fixture import Machine, simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.compile.builder import build_deployment
from engine_build.compile.onnxruntime_compiler import CUDA_OPSET, at_cuda_opset
from engine_build.config import STEP_VARIANTS, parse_variant
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.step_graph import step_graph
from engine_build.precision.recipe import apply_recipe, without_kernel
from runtime.base.errors import BuildError
from runtime.config.deployment import Deployment, load_deployment
from runtime.engines.manifest import manifest_path, read_manifest

FEW = '[build]\nstep_variants = ["plain"]\n'


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


def opset(model: onnx.ModelProto) -> int:
    return int(model.opset_import[0].version)


@pytest.mark.parametrize("name", ["decoder", "codec_decode", "codec_encode", "text_encoder"])
def test_every_graph_of_the_demo_can_be_lowered(name: str) -> None:
    model = onnx.load(ROOT / f"configs/demo/{name}.onnx")
    assert opset(model) > CUDA_OPSET
    assert opset(at_cuda_opset(model)) == CUDA_OPSET
    assert opset(model) > CUDA_OPSET, "the source was touched"
    for recipe in ("fp16", "bf16"):
        changed = apply_recipe(model, recipe, without=without_kernel("cuda", recipe))
        assert opset(at_cuda_opset(changed)) == CUDA_OPSET


@pytest.mark.parametrize("variant", STEP_VARIANTS)
def test_every_step_graph_can_be_lowered(variant: str) -> None:
    assert opset(at_cuda_opset(step_graph(8, parse_variant(variant)))) == CUDA_OPSET


def test_lowering_changes_no_result() -> None:
    model = onnx.load(ROOT / "tests/data/tick_parity/decoder.onnx")
    sizes = {"batch": 2, "rows": 2, "tokens": 5}
    random = np.random.default_rng(0)
    session = ort.InferenceSession(model.SerializeToString())
    feeds = {
        value.name: random.uniform(0.1, 1, [sizes.get(d, 16) if isinstance(d, str) else d for d in value.shape])
        for value in session.get_inputs()
    }
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    found = ort.InferenceSession(at_cuda_opset(model).SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(found[0], session.run(None, feeds)[0], atol=1e-6)


def test_a_graph_that_needs_a_later_opset_stays() -> None:
    graph = GraphWriter("late")
    x = graph.input("x", ("rows", 4))
    graph.output("y", graph.op("Gelu", x), ("rows", 4))
    model = graph.model()
    assert at_cuda_opset(model) == model


def built(folder: Path, more: str = FEW) -> Deployment:
    deployment = load_deployment(tiny_deployment(folder, more=more))
    build_deployment(deployment, target="cuda")
    return deployment


def test_engines_are_written_and_measured(tmp_path: Path, machine: Machine) -> None:
    with simulated_provider(machine):
        deployment = built(tmp_path)
    folder = deployment.engine_folder("cuda")
    manifest = read_manifest(manifest_path(folder, "decoder"))
    assert manifest.target == "cuda"
    assert manifest.error["max_rel"] < 1e-5
    assert "recipe_max_rel" not in manifest.error
    assert manifest.build["tf32"] is False
    assert opset(onnx.load(folder / manifest.engine_file)) == CUDA_OPSET


def test_a_recipe_is_applied_and_its_error_is_in_the_manifest(tmp_path: Path, machine: Machine) -> None:
    """Float16, as the CPU that stands in for the GPU has no bfloat16."""
    with simulated_provider(machine):
        deployment = built(tmp_path, FEW + 'precision = "fp16"\n')
    folder = deployment.engine_folder("cuda")
    manifest = read_manifest(manifest_path(folder, "decoder"))
    assert 0 < manifest.error["recipe_max_rel"] < 0.01
    assert manifest.error["recipe_low_work"] > 0.5
    kinds = {tensor.data_type for tensor in onnx.load(folder / manifest.engine_file).graph.initializer}
    assert TensorProto.FLOAT16 in kinds
    assert {info.dtype for info in manifest.inputs} == {"float32"}
    step = onnx.load(folder / read_manifest(manifest_path(folder, "step.plain")).engine_file)
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in step.graph.initializer}


@pytest.mark.parametrize("operator", ["Tanh", "MatMul", "Mul"])
def test_data_on_the_host_is_refused(tmp_path: Path, machine: Machine, operator: str) -> None:
    """Mul too, which may compute sizes there: this one reads data."""
    with (
        simulated_provider(machine, on_host=frozenset({operator})),
        pytest.raises(BuildError, match=rf"no CUDA kernel .*\({operator}\)") as raised,
    ):
        built(tmp_path)
    assert "precision" in raised.value.fix
    assert not list((tmp_path).rglob("*.onnx.manifest.json"))


def test_sizes_on_the_host_are_no_data(tmp_path: Path, machine: Machine) -> None:
    """The codec's Range and Concat make a table of a length and a shape; nothing that they read is data."""
    assert "Range" in {node.op_type for node in onnx.load(tiny_bundle(tmp_path / "b") / "codec_decode.onnx").graph.node}
    with simulated_provider(machine, on_host=frozenset({"Range"})):
        assert built(tmp_path)


def test_tf32_is_for_decoders_not_for_the_solver(tmp_path: Path, machine: Machine) -> None:
    with simulated_provider(machine) as provider:
        deployment = built(tmp_path, FEW + 'precision = "tf32"\n')
    options = {session.label: session.provider_options["use_tf32"] for session in provider.sessions}
    assert options["decoder"] == "1"
    assert options["step.plain"] == options["rows.plain"] == "0"
    decoder = read_manifest(manifest_path(deployment.engine_folder("cuda"), "decoder"))
    assert decoder.build["tf32"] is True
