"""LoRA adapters of the authors' trainer: names, scale, order of queries and keys, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.graph_engine import GraphEngine
from helpers.tiny_stable_audio_3 import CHANNELS, CONDITION_WIDTH, MAX_TOKENS, save_adapter

from engine_build.graphs.adapter_graph import adapter_graph
from runtime.base.errors import AdapterError
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterSpec
from runtime.engines.adapter_files import read_adapter

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

STRENGTHS = (0.0, 0.7, -0.4)
FRAMES = 12


@pytest.fixture
def spec(bundle: Path) -> AdapterSpec:
    found = load_bundle(bundle).adapters
    assert found is not None
    return found


def of_diffusers(transformer: Any, feeds: dict[str, Any]) -> Any:
    """The velocity, with no frame known."""
    latents, time, condition = (torch.from_numpy(feeds[name]) for name in list(feeds)[:3])
    local = torch.zeros(len(latents), 1 + CHANNELS, FRAMES)
    with torch.no_grad():
        found = transformer(latents.transpose(1, 2), time, condition, condition[:, 0], local_add_cond=local)
    return found.sample.transpose(1, 2).numpy()


def test_each_row_has_the_weights_that_its_strength_gives(
    bundle: Path, spec: AdapterSpec, parts: dict[str, Any], tmp_path: Path
) -> None:
    """All linear layers and both convolutions; the trainer keeps queries and keys in its own order."""
    transformer = parts["transformer"]
    changes = save_adapter(tmp_path / "style.safetensors", transformer)
    adapter = read_adapter(tmp_path / "style.safetensors", spec)
    assert set(adapter.modules) == set(spec.matrices) == {name.removesuffix(".weight") for name in changes}
    random, rows = np.random.default_rng(0), len(STRENGTHS)
    sizes = {"hidden_states": (FRAMES, CHANNELS), "encoder_hidden_states": (1 + MAX_TOKENS, CONDITION_WIDTH)}
    values = {name: random.standard_normal((rows, *size)).astype(np.float32) for name, size in sizes.items()}
    feeds = {
        "hidden_states": values["hidden_states"],
        "timestep": np.linspace(0.2, 1.0, rows, dtype=np.float32),
        "encoder_hidden_states": values["encoder_hidden_states"],
        "condition_mask": np.ones((rows, 1 + MAX_TOKENS), np.float32),
    }
    context = np.zeros((rows, FRAMES, 2 * CHANNELS), np.float32)
    context[..., CHANNELS:] = 1.0
    factors = {"adapter_a": adapter.a, "adapter_b": adapter.b}
    weights = np.repeat(np.array(STRENGTHS, np.float32)[:, None], adapter.rank, axis=1)
    graph = GraphEngine(adapter_graph(onnx.load(bundle / "decoder.onnx"), spec, "hidden_states"))
    found = graph.run({**feeds, "context_latents": context, **factors, "adapter_weights": weights})["velocity"]
    for row, strength in enumerate(STRENGTHS):
        changed = copy.deepcopy(transformer)
        for name, change in changes.items():
            changed.get_parameter(name).data += strength * change
        one = {name: values[row : row + 1] for name, values in feeds.items()}
        wanted = of_diffusers(changed, one)[0]
        assert np.abs(found[row] - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
        assert strength == 0 or np.abs(wanted - of_diffusers(transformer, one)[0]).max() > 1e-2


@pytest.mark.parametrize("kind", ["dora-rows", "lora-xs"])
def test_other_kinds_are_refused_with_the_trainer_s_option(
    kind: str, spec: AdapterSpec, parts: dict[str, Any], tmp_path: Path
) -> None:
    save_adapter(tmp_path / "style.safetensors", parts["transformer"], adapter_type=kind)
    with pytest.raises(AdapterError, match=rf"(?s){kind}.*--adapter_type lora"):
        read_adapter(tmp_path / "style.safetensors", spec)


def test_an_adapter_of_the_duration_too_is_refused_with_the_trainer_s_option(
    spec: AdapterSpec, parts: dict[str, Any], tmp_path: Path
) -> None:
    more = ("conditioners.seconds_total.embedder.embedding.1",)
    save_adapter(tmp_path / "style.safetensors", parts["transformer"], more=more)
    with pytest.raises(AdapterError, match=r"(?s)conditioners\.seconds_total.*--exclude seconds_total"):
        read_adapter(tmp_path / "style.safetensors", spec)
