"""LoRA adapters in an exported decoder against diffusers' loader. Run with the environment of `make export-test`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.adapters import random_factors, write_peft
from helpers.tiny_acestep import diffusers_pipeline

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("peft")

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


def of_diffusers(base: Path, folders: list[Path], inputs: Mapping[str, Any]) -> Any:
    """The velocity of each row, with the strengths set for that row."""
    pipeline = diffusers_pipeline(base)
    for folder, rank in zip(folders, RANKS, strict=True):
        state, metadata = pipeline.lora_state_dict(
            str(folder), weight_name="adapter_model.safetensors", return_lora_metadata=True
        )
        assert metadata is None
        config = {
            "r": rank,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": _modules(state),
        }
        metadata = {f"transformer.{name}": value for name, value in config.items()}
        pipeline.load_lora_into_transformer(state, pipeline.transformer, adapter_name=folder.name, metadata=metadata)
    rows = []
    for row, strengths in enumerate(STRENGTHS):
        pipeline.set_adapters([folder.name for folder in folders], list(strengths))
        one = {name: torch.from_numpy(values[row : row + 1]) for name, values in inputs.items()}
        with torch.no_grad():
            found = pipeline.transformer(**one, timestep_r=one["timestep"], return_dict=False)[0]
        rows.append(found[0].numpy())
    return np.stack(rows)


def _modules(state: Mapping[str, Any]) -> list[str]:
    return sorted({name.removeprefix("transformer.").partition(".lora_")[0] for name in state})


def test_each_row_is_what_diffusers_gives_with_its_strengths(base: Path, bundle: Path, tmp_path: Path) -> None:
    import onnx
    from helpers.graph_engine import GraphEngine

    from engine_build.graphs.adapter_graph import adapter_graph
    from runtime.config.bundle import load_bundle
    from runtime.engines.adapters import read_adapter

    spec = load_bundle(bundle).adapters
    assert spec is not None
    attention = tuple(path for path in spec.matrices if "_attn." in path)
    everything = tuple(path for path in spec.matrices if path.startswith("layers."))
    folders = [
        write_peft(
            tmp_path / name, published(random_factors(spec, rank, seed, modules)), r=rank, lora_alpha=ALPHA
        )
        for seed, (name, rank, modules) in enumerate(zip("ab", RANKS, (attention, everything), strict=True))
    ]  # fmt: skip
    inputs = feeds()
    expected = of_diffusers(base, folders, inputs)
    adapters = [read_adapter(folder, spec) for folder in folders]
    graph = adapter_graph(onnx.load(bundle / "decoder.onnx"), spec, "hidden_states")
    factors = {
        side: np.concatenate([getattr(one, side[-1]) for one in adapters]) for side in ("adapter_a", "adapter_b")
    }
    weights = np.array([np.repeat(strengths, RANKS) for strengths in STRENGTHS], np.float32)
    mask = {"condition_mask": np.ones((R, L), np.float32)}
    found = GraphEngine(graph).run({**inputs, **mask, **factors, "adapter_weights": weights})["velocity"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert min(np.abs(expected[row] - expected[0]).max() for row in range(1, R)) > 1e-2
