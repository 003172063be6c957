"""LoRA adapters in an exported decoder against diffusers' loader. Run with the environment of `make export-test`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.adapters import random_factors, write_peft
from helpers.graph_engine import GraphEngine
from helpers.tiny_acestep import tiny_transformer

from engine_build.export.acestep.bundle_text import ALIASES
from engine_build.graphs.adapter_graph import adapter_graph, linear_matrices
from runtime.config.decoder import AdapterSpec
from runtime.engines.adapter_files import read_adapter
from runtime.engines.adapters import AdapterUse
from runtime.engines.merging import MergedWeights

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("peft", reason="peft is not installed: make test-export installs it")

STRENGTHS = [(0.0, 0.0), (0.7, 0.0), (0.0, 1.0), (1.0, -0.5), (0.7, 1.0)]
ALPHA, RANKS = 6, (4, 8)
R, T, L = len(STRENGTHS), 10, 5


def feeds() -> dict[str, Any]:
    random = np.random.default_rng(0)
    sizes = {"hidden_states": (R, T, 8), "encoder_hidden_states": (R, L, 16), "context_latents": (R, T, 16)}
    values = {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    return {**values, "timestep": np.linspace(0.2, 1.0, R, dtype=np.float32)}


def published(factors: Mapping[str, Any]) -> dict[str, Any]:
    """As ACE-Step's own trainer names them."""
    names = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out.0": "o_proj"}
    return {
        next((name.replace(f".{ours}.", f".{theirs}.") for ours, theirs in names.items() if f".{ours}." in name), name):
        values for name, values in factors.items()
    }  # fmt: skip


def of_diffusers(transformer: Any, folders: list[Path], inputs: Mapping[str, Any]) -> Any:
    """The velocity of each row, with the strengths set for that row."""
    from diffusers import AceStepPipeline
    from safetensors.torch import load_file

    for folder, rank in zip(folders, RANKS, strict=True):
        state = AceStepPipeline.lora_state_dict(load_file(folder / "adapter_model.safetensors"))
        config = {"r": rank, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none"}
        metadata = {
            f"transformer.{name}": value for name, value in {**config, "target_modules": _modules(state)}.items()
        }
        AceStepPipeline.load_lora_into_transformer(state, transformer, adapter_name=folder.name, metadata=metadata)
    rows = []
    for row, strengths in enumerate(STRENGTHS):
        transformer.set_adapters([folder.name for folder in folders], list(strengths))
        one = {name: torch.from_numpy(values[row : row + 1]) for name, values in inputs.items()}
        with torch.no_grad():
            found = transformer(**one, timestep_r=one["timestep"], return_dict=False)[0]
        rows.append(found[0].numpy())
    return np.stack(rows)


def _modules(state: Mapping[str, Any]) -> list[str]:
    return sorted({name.removeprefix("transformer.").partition(".lora_")[0] for name in state})


def with_weights(model: onnx.ModelProto, weights: MergedWeights) -> GraphEngine:
    """The decoder with adapters in its weights."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    tensors = {tensor.name: tensor for tensor in changed.graph.initializer}
    for name in weights.changed(tensors, "the decoder"):
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(weights.read(name), name))
    return GraphEngine(changed)


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")
def test_each_row_is_what_diffusers_gives_with_its_strengths(tmp_path: Path) -> None:
    from engine_build.export.acestep.graphs import MaskedDecoder
    from engine_build.export.bundle_tables import INPUTS
    from engine_build.export.decoder_graph import DecoderShape, export_decoder

    torch.manual_seed(0)
    transformer = tiny_transformer(turbo=False)
    exported = copy.deepcopy(transformer)  # MaskedDecoder replaces its condition embedder
    export_decoder(MaskedDecoder(exported).eval(), DecoderShape(8, 16, 2, inputs=INPUTS), tmp_path / "decoder.onnx")
    model = onnx.load(tmp_path / "decoder.onnx")
    spec = AdapterSpec(aliases=ALIASES, matrices=linear_matrices(model))
    attention = tuple(path for path in spec.matrices if "_attn." in path)
    blocks = tuple(path for path in spec.matrices if path.startswith("layers."))
    folders = []
    for seed, (name, rank, modules) in enumerate(zip("ab", RANKS, (attention, blocks), strict=True)):
        factors = published(random_factors(spec, rank, seed, modules))
        folders.append(write_peft(tmp_path / name, factors, r=rank, lora_alpha=ALPHA))
    inputs = feeds()
    adapters = [read_adapter(folder, spec) for folder in folders]
    factors = {f"adapter_{side}": np.concatenate([getattr(one, side) for one in adapters]) for side in "ab"}
    weights = np.array([np.repeat(strengths, RANKS) for strengths in STRENGTHS], np.float32)
    rows = {"condition_mask": np.ones((R, L), np.float32), "adapter_weights": weights}
    graph = GraphEngine(adapter_graph(model, spec, "hidden_states"))
    found = graph.run({**inputs, **rows, **factors})["velocity"]
    expected = of_diffusers(transformer, folders, inputs)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for row, strengths in enumerate(STRENGTHS):
        uses = [AdapterUse(adapter, strength) for adapter, strength in zip(adapters, strengths, strict=True)]
        merged = with_weights(model, MergedWeights(tmp_path / "decoder.onnx", spec, uses))
        feed = {
            name: values[row : row + 1] for name, values in {**inputs, "condition_mask": rows["condition_mask"]}.items()
        }
        np.testing.assert_allclose(merged.run(feed)["velocity"][0], expected[row], atol=1e-4)
    assert min(np.abs(expected[row] - expected[0]).max() for row in range(1, R)) > 1e-2
