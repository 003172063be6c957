"""The graphs of the decoder, with adapters of the authors' trainer, and of texts and lengths, against diffusers'."""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.graph_engine import GraphEngine
from helpers.tiny_stable_audio_3 import (
    CHANNELS,
    CONDITION_WIDTH,
    MAX_TOKENS,
    bundled_parts,
    diffusers_condition,
    save_adapter,
    tiny_parts,
)

from engine_build.graphs.adapter_graph import adapter_graph
from engine_build.graphs.cpu_graph import cpu_graph
from engine_build.precision.recipe import node_precisions
from runtime.base.errors import AdapterError
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterSpec
from runtime.engines.adapter_files import read_adapter
from runtime.engines.value_shapes import value_shapes
from runtime.pipeline.text_encoder import TextEncoder
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


def local_condition(feeds: dict[str, np.ndarray]) -> Any:
    known, mask = np.split(feeds["context_latents"], 2, axis=-1)
    keep = 1.0 - mask[..., :1]
    return torch.from_numpy(np.concatenate((keep, known * keep), axis=-1)).transpose(1, 2)


@pytest.mark.parametrize(("rows", "frames", "known_frames"), [(1, 2, 0), (3, 98, 0), (4, 34, 12), (2, 20, 20)])
def test_the_decoder_is_diffusers_own_forward(
    bundle: Path, parts: dict[str, Any], rows: int, frames: int, known_frames: int
) -> None:
    feeds = inputs(rows, frames, known_frames)
    wanted = diffusers_velocity(parts["transformer"], feeds, local_condition(feeds))
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
    wanted = diffusers_velocity(parts["transformer"], feeds, local_condition(feeds))
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
    parts = bundled_parts(size)
    wanted = diffusers_velocity(parts["transformer"], feeds, local_condition(feeds))
    (found,) = onnxruntime.InferenceSession(str(bundle / "decoder.onnx")).run(None, feeds)
    assert 1e-6 < np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("graph", "name", "kinds", "last"),
    [
        ("decoder", "timestep", {"Mul", "Floor", "Sub", "Cos", "Sin"}, {"Cos", "Sin"}),
        ("text_encoder", "seconds", {"Clip", "Div", "Mul", "Cos", "Sin", "Gemm"}, {"Gemm"}),
    ],
)
def test_features_of_time_and_length_are_in_full_precision(
    bundle: Path, recipe: Any, graph: str, name: str, kinds: set[str], last: set[str]
) -> None:
    """Of the time to its features, of the length to their linear layer."""
    model = onnx.load(bundle / f"{graph}.onnx")
    precisions = {node.name: node.precision for node in node_precisions(model, recipe)}
    found, depending = set(), {name}
    for node in model.graph.node:
        if depending.intersection(node.input) and (node.op_type != "Gemm" or "Gemm" in last):
            assert precisions[node.name] == "fp32", node
            found.add(node.op_type)
            depending.update(() if node.op_type in last else node.output)
    assert kinds <= found


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


STRENGTHS = (0.0, 0.7, -0.4)
FRAMES = 12


@pytest.fixture
def spec(bundle: Path) -> AdapterSpec:
    found = load_bundle(bundle).adapters
    assert found is not None
    return found


def test_each_row_has_the_weights_that_its_strength_gives(
    bundle: Path, spec: AdapterSpec, parts: dict[str, Any], tmp_path: Path
) -> None:
    """All linear layers and both convolutions; the trainer keeps queries and keys in its own order."""
    transformer = parts["transformer"]
    changes = save_adapter(tmp_path / "style.safetensors", transformer)
    adapter = read_adapter(tmp_path / "style.safetensors", spec)
    assert set(adapter.modules) == set(spec.matrices) == {name.removesuffix(".weight") for name in changes}
    feeds = inputs(len(STRENGTHS), FRAMES, 0)
    feeds["context_latents"][..., :CHANNELS] = 0.0
    factors = {"adapter_a": adapter.a, "adapter_b": adapter.b}
    weights = np.repeat(np.array(STRENGTHS, np.float32)[:, None], adapter.rank, axis=1)
    graph = GraphEngine(adapter_graph(onnx.load(bundle / "decoder.onnx"), spec, "hidden_states"))
    found = graph.run({**feeds, **factors, "adapter_weights": weights})["velocity"]
    for row, strength in enumerate(STRENGTHS):
        changed = copy.deepcopy(transformer)
        for name, change in changes.items():
            changed.get_parameter(name).data += strength * change
        one = {name: values[row : row + 1] for name, values in feeds.items()}
        wanted = diffusers_velocity(changed, one, local_condition(one))[0]
        assert np.abs(found[row] - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
        plain = diffusers_velocity(transformer, one, local_condition(one))[0]
        assert strength == 0 or np.abs(wanted - plain).max() > 1e-2


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"adapter_type": "dora-rows"}, r"(?s)dora-rows.*--adapter_type lora"),
        ({"adapter_type": "lora-xs"}, r"(?s)lora-xs.*--adapter_type lora"),
        (
            {"more": ("conditioners.seconds_total.embedder.embedding.1",)},
            r"(?s)conditioners\.seconds_total.*--exclude seconds_total",
        ),
    ],
)
def test_other_adapters_are_refused_with_the_trainer_s_option(
    spec: AdapterSpec, parts: dict[str, Any], tmp_path: Path, config: Any, says: str
) -> None:
    save_adapter(tmp_path / "style.safetensors", parts["transformer"], **config)
    with pytest.raises(AdapterError, match=says):
        read_adapter(tmp_path / "style.safetensors", spec)
