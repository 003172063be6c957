"""Texts and lengths -> condition tokens, as diffusers' pipeline has them; the duration in full precision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.graph_engine import GraphEngine
from helpers.tiny_stable_audio_3 import MAX_TOKENS, diffusers_condition

from engine_build.precision.recipe import node_precisions
from runtime.config.bundle import load_bundle
from runtime.pipeline.text_encoder import TextEncoder

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")


def texts(lengths: tuple[int, ...], tokens: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(tokens)
    ids = random.integers(1, 257, (len(lengths), tokens))
    mask = (np.arange(tokens) < np.array(lengths)[:, None]).astype(np.int64)
    seconds = np.linspace(0.5, 130.0, len(lengths)).astype(np.float32)
    return {"input_ids": ids * mask, "attention_mask": mask, "seconds": seconds}


@pytest.mark.parametrize(
    ("lengths", "tokens"), [((1,), 1), ((9, 4, 12), 12), ((256, 200), 256), ((0, 3), 5)], ids=lambda value: str(value)
)
def test_conditions_are_those_of_diffusers_pipeline(
    bundle: Path, parts: dict[str, Any], lengths: tuple[int, ...], tokens: int
) -> None:
    feeds = texts(lengths, tokens)
    wanted = diffusers_condition(parts, *(torch.from_numpy(value) for value in feeds.values())).numpy()
    found, mask = onnxruntime.InferenceSession(str(bundle / "text_encoder.onnx")).run(None, feeds)
    assert found.shape == (len(lengths), 1 + MAX_TOKENS, wanted.shape[2])
    assert mask.shape == found.shape[:2]
    assert (mask == 1.0).all()
    assert np.abs(found - wanted).max() < 1e-5


def test_padding_is_a_learned_vector_whatever_lies_below_the_mask(bundle: Path, parts: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(str(bundle / "text_encoder.onnx"))
    feeds = texts((4, 6), 8)
    found = session.run(None, feeds)[0]
    other = session.run(None, {**feeds, "input_ids": np.where(feeds["attention_mask"] > 0, feeds["input_ids"], 77)})[0]
    np.testing.assert_array_equal(found, other)
    padding = parts["transformer"].prompt_padding_embedding.numpy()
    assert np.abs(padding).max() > 0.05
    np.testing.assert_array_equal(found[0, 5:], np.broadcast_to(padding, found[0, 5:].shape))


def test_lengths_beyond_the_longest_are_the_longest(bundle: Path) -> None:
    session = onnxruntime.InferenceSession(str(bundle / "text_encoder.onnx"))
    feeds = texts((3, 3, 3), 3) | {"seconds": np.array([384.0, 400.0, 380.0], np.float32)}
    tokens = session.run(None, feeds)[0][:, 0]
    np.testing.assert_array_equal(tokens[0], tokens[1])
    assert np.abs(tokens[0] - tokens[2]).max() > 1e-3


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_the_duration_is_computed_in_full_precision(bundle: Path, recipe: Any) -> None:
    model = onnx.load(bundle / "text_encoder.onnx")
    precisions = {node.name: node.precision for node in node_precisions(model, recipe)}
    kinds, depending = set(), {"seconds"}
    for node in model.graph.node:
        if depending.intersection(node.input):
            assert precisions[node.name] == "fp32", node
            kinds.add(node.op_type)
            depending.update(() if node.op_type == "Gemm" else node.output)
    assert {"Clip", "Div", "Mul", "Cos", "Sin", "Gemm"} <= kinds


def test_the_empty_text_of_a_tokenizer_without_bos_is_all_padding(
    bundle: Path, parts: dict[str, Any], tmp_path: Path
) -> None:
    """As the authors' code pads it. It has no token."""
    folder = Path(shutil.copytree(bundle, tmp_path / "b"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    encoder = TextEncoder(load_bundle(folder), GraphEngine(onnx.load(folder / "text_encoder.onnx")))
    assert encoder.num_tokens("") == 0
    found = encoder.encode("", seconds=10.0)
    padding = parts["transformer"].prompt_padding_embedding.numpy()
    with torch.no_grad():
        duration = parts["duration_embedder"](torch.tensor([10.0])).numpy()
    assert found.shape == (1 + MAX_TOKENS, len(padding))
    assert np.abs(found[:1] - duration).max() < 1e-5
    np.testing.assert_array_equal(found[1:], np.broadcast_to(padding, found[1:].shape))
