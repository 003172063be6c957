"""The decoder for adapters against the decoder with merged weights, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.adapters import deltas, merged, random_factors
from helpers.factories import tiny_bundle
from helpers.graph_engine import GraphEngine
from helpers.paths import ROOT

from engine_build.graphs.adapter_graph import adapter_graph, linear_matrices
from runtime.base.errors import ConfigError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec

R, T, L, RANK = 3, 6, 4, 8


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path / "tiny", adapters=True))


def feeds(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    shapes = {"hidden_states": (R, T, 8), "encoder_hidden_states": (R, L, 12), "context_latents": (R, T, 16)}
    values = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**values, "timestep": np.linspace(0.1, 0.9, R, dtype=np.float32), "condition_mask": np.ones((R, L), "f4")}


def packed(spec: AdapterSpec, factors: list[dict[str, Any]]) -> dict[str, Any]:
    """The factors of adapters, each of rank 4, below each other."""
    a = [np.concatenate([one[f"{path}.lora_A.weight"] for path in spec.matrices], 1) for one in factors]
    b = [np.concatenate([one[f"{path}.lora_B.weight"].T for path in spec.matrices], 1) for one in factors]
    return {"adapter_a": np.concatenate(a), "adapter_b": np.concatenate(b)}


def run(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    return GraphEngine(model).run(inputs)["velocity"]


def test_each_row_has_the_velocity_of_its_own_merged_weights(bundle: Bundle) -> None:
    spec = bundle.adapters
    assert spec is not None
    factors = [random_factors(spec, 4, seed=seed) for seed in (1, 2)]
    strengths = [(0.0, 0.0), (0.7, 0.0), (1.0, -0.5)]
    weights = np.repeat(np.array(strengths, np.float32), 4, axis=1)
    model = adapter_graph(onnx.load(bundle.graph_path("decoder.onnx")), spec, "hidden_states")
    onnx.checker.check_model(model, full_check=True)
    found = run(model, {**feeds(), **packed(spec, factors), "adapter_weights": weights})
    for row, pair in enumerate(strengths):
        changes = [(strength, deltas(one, 1.0)) for strength, one in zip(pair, factors, strict=True)]
        np.testing.assert_allclose(found[row], run(merged(bundle.folder, changes), feeds())[row], atol=1e-5)
    assert np.abs(found[1] - found[0]).max() > 0.05


def test_the_graph_itself_and_its_tensors_stay_as_they_are(bundle: Bundle) -> None:
    assert bundle.adapters is not None
    model = onnx.load(bundle.graph_path("decoder.onnx"))
    before = model.SerializeToString()
    changed = adapter_graph(model, bundle.adapters, "hidden_states")
    assert model.SerializeToString() == before
    assert [value.name for value in changed.graph.output] == [value.name for value in model.graph.output]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (AdapterMatrix(weight="nowhere", inputs=8, outputs=16), "no initializer 'nowhere'"),
        (AdapterMatrix(weight="w_in", inputs=8, outputs=17), r"is .*17.*the graph has .*16"),
    ],
)
def test_matrices_that_the_graph_does_not_have_are_refused(matrix: Any, message: str, bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=message):
        adapter_graph(
            onnx.load(bundle.graph_path("decoder.onnx")), AdapterSpec(matrices={"a": matrix}), "hidden_states"
        )


def test_the_matrices_of_an_exported_decoder_are_its_linear_layers() -> None:
    model = onnx.load(ROOT / "configs/demo/decoder.onnx")
    found = linear_matrices(model)
    names = ("to_q", "to_k", "to_v", "to_out.0")
    attention = [f"layers.{n}.{kind}_attn.{name}" for n in range(4) for kind in ("self", "cross") for name in names]
    mlp = [f"layers.{n}.mlp.{name}_proj" for n in range(4) for name in ("gate", "up", "down")]
    assert {*attention, *mlp, "condition_embedder", "time_embed.time_proj"} <= found.keys()
    assert found["layers.0.self_attn.to_k"].model_dump(exclude={"weight"}) == {"inputs": 256, "outputs": 128}
    adapter_graph(model, AdapterSpec(matrices=found), "hidden_states")


@pytest.mark.parametrize("rows", ["rows", 3])
def test_rows_have_weights_as_many_as_the_decoder_takes(rows: Any, bundle: Bundle) -> None:
    assert bundle.adapters is not None
    model = onnx.load(bundle.graph_path("decoder.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(rows, str) else "dim_value", rows)
    changed = adapter_graph(model, bundle.adapters, "hidden_states")
    (weights,) = (value for value in changed.graph.input if value.name == "adapter_weights")
    dim = weights.type.tensor_type.shape.dim[0]
    assert (dim.dim_param or dim.dim_value) == rows
