"""The decoder's graph is diffusers' own forward, with and without known frames, for both kinds of attention."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.tiny_stable_audio_3 import CHANNELS, CONDITION_WIDTH, MAX_TOKENS, tiny_parts

from engine_build.graphs.cpu_graph import cpu_graph
from engine_build.precision.recipe import node_precisions
from runtime.engines.value_shapes import value_shapes
from runtime.requests.request import Condition

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
        "condition_mask": np.ones((rows, 1 + MAX_TOKENS), np.float32),
        "context_latents": np.concatenate((known, mask), axis=-1).astype(np.float32),
    }


def diffusers_velocity(transformer: Any, feeds: dict[str, np.ndarray], local: Any) -> np.ndarray:
    names = ("hidden_states", "timestep", "encoder_hidden_states")
    latents, time, condition = (torch.from_numpy(feeds[name]) for name in names)
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


@pytest.mark.parametrize("texts", [(4,), (0, 40, 256)], ids=str)
def test_padding_is_one_token_that_counts_as_often(bundle: Path, parts: dict[str, Any], texts: tuple[int, ...]) -> None:
    """Against diffusers' own forward, which attends to all of it; also by the graph for the CPU, and by each alone."""
    feeds = inputs(len(texts), 34, 0)
    tokens = feeds["encoder_hidden_states"]
    for row, text in zip(tokens, texts, strict=True):
        row[1 + text :] = parts["transformer"].prompt_padding_embedding.numpy()
    known, mask = np.split(feeds["context_latents"], 2, axis=-1)
    keep = 1.0 - mask[..., :1]
    local = torch.from_numpy(np.concatenate((keep, known * keep), axis=-1)).transpose(1, 2)
    wanted = diffusers_velocity(parts["transformer"], feeds, local)
    merged = [Condition(row).merged() for row in tokens]
    length = max(len(row.tokens) for row in merged)
    assert length == min(max(texts) + 2, 1 + MAX_TOKENS)
    feeds["encoder_hidden_states"] = np.stack([np.pad(r.tokens, ((0, length - len(r.tokens)), (0, 0))) for r in merged])
    feeds["condition_mask"] = np.stack([np.pad(row.counts, (0, length - len(row.tokens))) for row in merged])
    model = onnx.load(bundle / "decoder.onnx")
    for graph in (model, cpu_graph(model)):
        session = onnxruntime.InferenceSession(graph.SerializeToString())
        (found,) = session.run(None, feeds)
        assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    uncounted = {**feeds, "condition_mask": np.minimum(feeds["condition_mask"], 1.0)}
    assert np.abs(session.run(None, uncounted)[0] - wanted)[0].max() > 1e-2, "padding has no effect"


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


def test_features_are_those_of_float64_but_for_the_rounding_of_an_angle_s_turns(size: str) -> None:
    """diffusers rounds three times, and takes sines of up to 62 832 rad: it is further off."""
    from engine_build.export.stable_audio_3.decoder import reduced_features

    module = type(tiny_parts(size)["transformer"].timestep_features)(256)
    ours, ramp = reduced_features(module), torch.linspace(0.0, 1.0, 128)
    frequencies = torch.exp(ramp * (np.log(module.max_freq) - np.log(module.min_freq)) + np.log(module.min_freq))
    assert torch.equal(ours.frequencies, frequencies), "6e-8 more or less turn the highest by 4e-3 rad"
    time = torch.linspace(0.0, 1.0, 20_001)[:, None]
    turns = time.double() * frequencies.double()
    angle = 2.0 * torch.pi * (turns - turns.floor())
    exact = torch.cat((angle.cos(), angle.sin()), dim=-1)
    off, diffusers_off = ((found(time).double() - exact).abs().max().item() for found in (ours, module))
    assert off < 3.1e-3 < 6e-3 < diffusers_off
    assert (ours(time) - module(time)).abs().max() < 3.8e-3
    last_bit = np.spacing(np.float32(module.max_freq))
    assert off < 1.01 * 2.0 * np.pi * last_bit / 2, "a product is rounded by half of it"


def test_the_length_s_features_are_the_same(size: str) -> None:
    from engine_build.export.stable_audio_3.decoder import DurationEmbedder, FourierFeatures

    theirs = tiny_parts(size)["duration_embedder"]
    ours, seconds = DurationEmbedder(theirs), torch.tensor([-1.0, 0.0, 0.5, 10.0, 47.6, 120.0, 383.0, 384.0, 400.0])
    with torch.no_grad():
        found, wanted = ours(seconds), theirs(seconds)
    assert isinstance(ours.features, FourierFeatures)
    assert (found[7] - found[8]).abs().max() < 1e-6, "no length is beyond the longest"
    most = 3.8e-3 * theirs.linear.weight.abs().sum(dim=1).max()
    assert (found - wanted).abs().max() < most


def test_diffusers_own_angles_cost_less_than_a_hundredth_of_a_velocity(bundle: Path, size: str) -> None:
    """Against diffusers as it is: all other tests give it our features."""
    feeds = inputs(4, 34, 12)
    parts = tiny_parts(size)
    if size == "small":
        for name, module in parts["transformer"].named_modules():
            if name.rpartition(".")[2] in ("pre_norm", "cross_attend_norm", "ff_norm"):
                module.eps = 1e-5
    known, mask = np.split(feeds["context_latents"], 2, axis=-1)
    keep = 1.0 - mask[..., :1]
    local = torch.from_numpy(np.concatenate((keep, known * keep), axis=-1)).transpose(1, 2)
    wanted = diffusers_velocity(parts["transformer"], feeds, local)
    (found,) = onnxruntime.InferenceSession(str(bundle / "decoder.onnx")).run(None, feeds)
    assert 1e-6 < np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_the_time_s_features_are_in_full_precision(bundle: Path, recipe: Any) -> None:
    model = onnx.load(bundle / "decoder.onnx")
    precisions = {node.name: node.precision for node in node_precisions(model, recipe)}
    kinds, depending = set(), {"timestep"}
    for node in model.graph.node:
        if depending.intersection(node.input) and node.op_type != "Gemm":
            assert precisions[node.name] == "fp32", node
            kinds.add(node.op_type)
            if node.op_type not in ("Cos", "Sin"):
                depending.update(node.output)
    assert {"Mul", "Floor", "Sub", "Cos", "Sin"} <= kinds


def test_tensorrt_sees_small_tensors_of_known_operators(bundle: Path) -> None:
    from engine_build.graphs.tensorrt_preparation import prepare_model
    from engine_build.graphs.tensorrt_rules import problems

    for name in ("decoder", "codec_decode", "codec_encode", "text_encoder"):
        model = onnx.load(bundle / f"{name}.onnx")
        assert model.opset_import[0].version >= 22
        sizes = {"tokens": 9, "samples": 128 * 1024}
        shapes = {
            item.name: tuple(dim.dim_value or sizes.get(dim.dim_param, 128) for dim in item.type.tensor_type.shape.dim)
            for item in model.graph.input
        }
        assert list(problems(prepare_model(model, [shapes]), value_shapes(model, shapes))) == [], name


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
