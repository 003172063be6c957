"""Condition tokens: ours against the pipeline's own encoding of prompt, no lyrics and no reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.graph_engine import GraphEngine
from helpers.tiny_acestep import CONDITION_WIDTH, diffusers_pipeline
from numpy.typing import NDArray

from runtime.config.bundle import load_bundle
from runtime.errors import RequestError
from runtime.pipeline.text_encoder import TextEncoder

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

PROMPTS = ["calm piano", "x", "  Drum & bass, 174 bpm\n# Caption\nwith {braces}", "鋼琴 Klavier"]


@pytest.fixture(scope="module")
def pipeline(base: Path) -> Any:
    return diffusers_pipeline(base)


@pytest.fixture(scope="module")
def text_encoder(bundle: Path) -> TextEncoder:
    return TextEncoder(load_bundle(bundle), GraphEngine(onnx.load(bundle / "text_encoder.onnx")))


def expected(pipeline: Any, prompts: list[str], seconds: float) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Steps 1, 3 and 4 of the pipeline's call, without reference audio."""
    count = len(prompts)
    with torch.no_grad():
        text, text_mask, lyric, lyric_mask = pipeline.encode_prompt(
            prompts, [""] * count, torch.device("cpu"), audio_duration=seconds
        )
        reference = pipeline.condition_encoder.silence_latent[:, : math.ceil(30 * pipeline.latents_per_second)]
        tokens, mask = pipeline.condition_encoder(
            text_hidden_states=text,
            text_attention_mask=text_mask,
            lyric_hidden_states=lyric,
            lyric_attention_mask=lyric_mask,
            refer_audio_acoustic_hidden_states_packed=reference.expand(count, -1, -1).contiguous(),
            refer_audio_order_mask=torch.arange(count),
        )
    return tokens.numpy(), mask.numpy()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("seconds", [60.0, 2.4])
def test_a_prompt_becomes_the_pipeline_s_tokens(
    text_encoder: TextEncoder, pipeline: Any, prompt: str, seconds: float
) -> None:
    wanted, mask = expected(pipeline, [prompt], seconds)
    found = text_encoder.encode(prompt, seconds=seconds)
    assert mask.all()
    assert found.shape == wanted[0].shape
    assert np.abs(found - wanted[0]).max() < 1e-4


def test_padded_texts_keep_only_their_own_tokens(bundle: Path, pipeline: Any, text_encoder: TextEncoder) -> None:
    wanted, wanted_mask = expected(pipeline, PROMPTS, 60.0)
    spec = text_encoder.spec
    encoded = [text_encoder._tokenizer.encode(spec.text(prompt, 60.0)).ids for prompt in PROMPTS]
    longest = max(len(ids) for ids in encoded)
    ids = np.array([row + [0] * (longest - len(row)) for row in encoded], np.int64)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in encoded], np.int64)
    engine = GraphEngine(onnx.load(bundle / "text_encoder.onnx"))
    found = engine.run({"input_ids": ids, "attention_mask": mask})
    assert np.array_equal(found["condition_mask"] > 0.5, wanted_mask)
    assert np.abs((found["condition"] - wanted)[wanted_mask]).max() < 1e-4


def test_the_prefix_is_counted(text_encoder: TextEncoder) -> None:
    spec = text_encoder.spec
    assert spec.prefix_tokens > 1
    assert len(text_encoder.encode("ab")) == text_encoder.num_tokens("ab") + spec.prefix_tokens
    assert spec.max_tokens == 256


def test_texts_are_not_cut_as_the_pipeline_cuts_them(text_encoder: TextEncoder) -> None:
    with pytest.raises(RequestError, match="the model accepts 256"):
        text_encoder.encode("very long " * 40)


def test_the_null_condition_is_the_learned_one(text_encoder: TextEncoder, pipeline: Any) -> None:
    learned = pipeline.condition_encoder.null_condition_emb.detach()[0].numpy()
    assert text_encoder.encode("").shape == (1, CONDITION_WIDTH)
    assert np.array_equal(text_encoder.encode(""), learned)
