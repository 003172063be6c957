"""The decoder's graph is diffusers' own forward, with and without known frames, for both kinds of attention."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.tiny_stable_audio_3 import CHANNELS, CONDITION_WIDTH, MAX_TOKENS

from engine_build.graphs.cpu_graph import cpu_graph
from runtime.engines.value_shapes import value_shapes

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")


def inputs(rows: int, frames: int, known_frames: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows * 1000 + frames)
    mask = np.ones((rows, frames, CHANNELS), np.float32)
    mask[:, :known_frames] = 0.0
    known = random.standard_normal((rows, frames, CHANNELS))
    return {
        "hidden_states": random.standard_normal((rows, frames, CHANNELS)).astype(np.float32),
        "timestep": np.linspace(1.0, 0.2739, rows).astype(np.float32),
        "encoder_hidden_states": random.standard_normal((rows, 1 + MAX_TOKENS, CONDITION_WIDTH)).astype(np.float32),
        "context_latents": np.concatenate((known, mask), axis=-1).astype(np.float32),
    }


def diffusers_velocity(transformer: Any, feeds: dict[str, np.ndarray], local: Any) -> np.ndarray:
    latents, time, condition = (torch.from_numpy(feeds[name]) for name in list(feeds)[:3])
    with torch.no_grad():
        found = transformer(
            latents.transpose(1, 2),
            time,
            encoder_hidden_states=condition,
            global_hidden_states=condition[:, 0],
            local_add_cond=local,
        ).sample
    velocity: np.ndarray = found.transpose(1, 2).numpy()
    return velocity


@pytest.mark.parametrize(("rows", "frames", "known_frames"), [(1, 2, 0), (3, 98, 0), (4, 34, 12), (2, 20, 20)])
def test_the_decoder_is_diffusers_own_forward(
    bundle: Path, parts: dict[str, Any], rows: int, frames: int, known_frames: int
) -> None:
    feeds = inputs(rows, frames, known_frames)
    known, mask = np.split(feeds["context_latents"], 2, axis=-1)
    keep = 1.0 - mask[..., :1]
    local = torch.from_numpy(np.concatenate((keep, known * keep), axis=-1)).transpose(1, 2)
    wanted = diffusers_velocity(parts["transformer"], feeds, local)
    (found,) = onnxruntime.InferenceSession(str(bundle / "decoder.onnx")).run(None, feeds)
    assert np.abs(wanted).max() > 0.5
    assert np.abs(found - wanted).max() < 1e-5


def test_a_local_condition_of_zeros_is_not_none(bundle: Path, parts: dict[str, Any]) -> None:
    """It goes through biases: what diffusers' pipeline leaves out."""
    feeds = inputs(2, 20, 0)
    (found,) = onnxruntime.InferenceSession(str(bundle / "decoder.onnx")).run(None, feeds)
    assert np.abs(found - diffusers_velocity(parts["transformer"], feeds, None)).max() > 1e-2


def test_the_duration_is_token_0_and_the_order_of_the_others_is_free(bundle: Path) -> None:
    session = onnxruntime.InferenceSession(str(bundle / "decoder.onnx"))
    feeds = inputs(2, 20, 0)
    (found,) = session.run(None, feeds)
    tokens = feeds["encoder_hidden_states"]
    turned = {**feeds, "encoder_hidden_states": np.concatenate((tokens[:, :1], tokens[:, :0:-1]), axis=1)}
    assert np.abs(session.run(None, turned)[0] - found).max() < 1e-5
    swapped = {**feeds, "encoder_hidden_states": tokens[:, ::-1].copy()}
    assert np.abs(session.run(None, swapped)[0] - found).max() > 1e-3


def test_time_features_are_exact_up_to_the_highest_frequency(parts: dict[str, Any]) -> None:
    """Their frequencies are data with torch's own bits; 6e-8 more or less turn the highest by 4e-3 rad."""
    from engine_build.export.stable_audio_3.decoder import FourierFeatures

    features = parts["transformer"].timestep_features
    time = torch.linspace(0.0, 1.0, 1001)[:, None]
    wanted = features(time)
    ramp = torch.linspace(0.0, 1.0, features.dim // 2)
    low, high = np.log(features.min_freq), np.log(features.max_freq)
    assert torch.equal(FourierFeatures(torch.exp(ramp * (high - low) + low))(time), wanted)


def test_tensorrt_sees_small_tensors_of_known_operators(bundle: Path) -> None:
    from engine_build.graphs.tensorrt_preparation import prepare
    from engine_build.graphs.tensorrt_rules import problems

    for name in ("decoder", "codec_decode", "codec_encode", "text_encoder"):
        model = onnx.load(bundle / f"{name}.onnx")
        assert model.opset_import[0].version >= 22
        sizes = {"tokens": 9, "samples": 128 * 1024}
        shapes = {
            item.name: tuple(dim.dim_value or sizes.get(dim.dim_param, 128) for dim in item.type.tensor_type.shape.dim)
            for item in model.graph.input
        }
        assert list(problems(prepare(model, [shapes]), value_shapes(model, shapes))) == [], name


def test_the_decoder_for_the_cpu_is_the_same_function(bundle: Path, size: str) -> None:
    """Self and cross attention in each of three layers; medium's are differences of two."""
    model = onnx.load(bundle / "decoder.onnx")
    rewritten = cpu_graph(model)
    kinds = Counter(node.op_type for node in rewritten.graph.node)
    count = 6 if size == "small" else 12
    assert (kinds["Attention"], kinds["RotaryEmbedding"]) == (count, count)
    assert not {"Softmax", "Neg", "Conv"} & kinds.keys()
    feeds = inputs(3, 34, 12)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    session = onnxruntime.InferenceSession(rewritten.SerializeToString())
    (found,) = session.run(None, feeds)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    for row in range(3):
        (alone,) = session.run(None, {name: values[row : row + 1] for name, values in feeds.items()})
        np.testing.assert_array_equal(alone[0], found[row])
