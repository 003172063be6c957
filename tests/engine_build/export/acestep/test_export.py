"""Checkpoints that diffusers saved become bundles; the decoder computes what diffusers' own forward does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.paths import ROOT
from helpers.tiny_acestep import CHANNELS, CONDITION_WIDTH, HOP_SAMPLES, SMALLEST_TRANSFORMER, VAE, save_checkpoint
from helpers.tiny_exports import TinyExports, export_bundle

from engine_build.compile.environment import probe_environment
from engine_build.compile.rebuild_check import EXACT_KINDS, RebuildDecision, check_graphs, check_rebuilds
from engine_build.graphs.cpu_graph import cpu_graph
from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.tensorrt_preparation import prepare_model
from engine_build.graphs.tensorrt_rules import problems
from engine_build.precision.error import recipe_error
from engine_build.precision.recipe import node_precisions, write_recipe
from engine_build.precision.sample_states import decoder_sample_states
from engine_build.request import load_request
from runtime.base.errors import BuildError
from runtime.config.bundle import load_bundle
from runtime.engines.value_shapes import value_shapes

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from engine_build.export.acestep.sources import AceStepCheckpoint, RandomAceStep  # noqa: E402

ROUNDING_LIMITS = {"bf16": 0.03, "fp16": 0.004}


@pytest.fixture(scope="module")
def transformer(base: Path) -> Any:
    from diffusers import AceStepTransformer1DModel

    return AceStepTransformer1DModel.from_pretrained(base / "transformer").eval()


@pytest.fixture(scope="module")
def session(bundle: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(bundle / "decoder.onnx"))


def inputs(rows: int, frames: int, tokens: int, padding: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows * 1000 + frames)
    mask = np.ones((rows, tokens + padding), np.float32)
    mask[:, tokens:] = 0.0
    return {
        "hidden_states": random.standard_normal((rows, frames, CHANNELS)).astype(np.float32),
        "timestep": random.random(rows).astype(np.float32),
        "encoder_hidden_states": random.standard_normal((rows, tokens + padding, CONDITION_WIDTH)).astype(np.float32),
        "condition_mask": mask,
        "context_latents": random.standard_normal((rows, frames, 2 * CHANNELS)).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("rows", "frames", "tokens", "padding"), [(1, 2, 1, 0), (1, 60, 17, 9), (4, 34, 5, 0), (2, 250, 80, 9)]
)
def test_the_decoder_is_diffusers_own_forward(
    session: Any, transformer: Any, rows: int, frames: int, tokens: int, padding: int
) -> None:
    feeds = inputs(rows, frames, tokens, padding)
    tensors = {name: torch.from_numpy(value) for name, value in feeds.items()}
    with torch.no_grad():
        wanted = transformer(
            hidden_states=tensors["hidden_states"],
            timestep=tensors["timestep"],
            timestep_r=tensors["timestep"],
            encoder_hidden_states=tensors["encoder_hidden_states"][:, :tokens],
            context_latents=tensors["context_latents"],
        ).sample.numpy()
    (found,) = session.run(None, feeds)
    assert np.abs(wanted).max() > 0.1
    assert np.abs(found - wanted).max() < 1e-4


def test_the_bundle_says_what_the_checkpoint_is(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    assert loaded.name == "tiny-base"
    assert (loaded.latents.channels, loaded.latents.frame_rate_hz, loaded.latents.frame_multiple) == (CHANNELS, 25.0, 2)
    assert loaded.latents.canvas_frames == 60
    assert (loaded.sampler.steps, loaded.sampler.shift, loaded.sampler.guidance) == (50, 1.0, 7.0)
    assert loaded.codec is not None
    assert (loaded.codec.sample_rate_hz, loaded.codec.hop_samples, loaded.codec.channels) == (8000, 320, 2)
    assert loaded.text_encoder is not None
    assert loaded.text_encoder.template.startswith("# Instruction\n{instruction}\n\n# Caption\n{prompt}")
    assert "- duration: {seconds} seconds\n<|endoftext|>" in loaded.text_encoder.template
    assert list(loaded.condition_graphs) == ["text_encoder", "lyric_encoder", "timbre_encoder"]
    assert loaded.timbre is not None
    assert loaded.timbre.frames == 750
    # Phases of the time embedding reach 1000: the last bit of a frequency is 6e-5 of a phase there. Measured: 1.5e-5
    # at time .999, 1.5e-6 at .1, both against float64.
    assert loaded.training["decoder_max_error"] < 5e-5


def test_silence_is_the_pipeline_s_sequence(bundle: Path, base: Path) -> None:
    encoder = AceStepCheckpoint(base).load("condition_encoder")
    assert np.array_equal(load_bundle(bundle).silence(60), encoder.silence_latent[0, :60].numpy())


def test_decoder_and_codec_are_enough(tmp_path: Path) -> None:
    source = AceStepCheckpoint(save_checkpoint(tmp_path / "c", turbo=True, text=False, encoder=False))
    facts = export_bundle(source, tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle")
    assert (loaded.text_encoder, facts.text_encoder, loaded.null_condition()) == (None, None, None)
    assert loaded.sampler.guidance == 1.0
    assert loaded.silence(10).shape == (10, CHANNELS)
    assert np.abs(loaded.silence(10)).max() > 0.0


def test_random_weights_are_a_bundle_with_its_weights_beside_the_graphs(tiny: TinyExports) -> None:
    folder = tiny.acestep_random()
    loaded = load_bundle(folder)
    assert (loaded.training["layers"], loaded.sampler.guidance) == (2, 1.0)
    null = loaded.null_condition()
    assert null is not None
    assert null.shape == (1, 12)
    for name in ("decoder", "codec_decode", "codec_encode"):
        assert (folder / f"{name}.onnx.data").stat().st_size > 1000
        onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))


def test_the_published_deployment_fits_tensorrt_at_its_largest_sizes(tmp_path: Path) -> None:
    """With ACE-Step's 16 heads at a width of 8."""
    heads = SMALLEST_TRANSFORMER | {"num_attention_heads": 16, "num_key_value_heads": 8}
    source = RandomAceStep(transformer_changes=heads, vae_changes=VAE)
    export_bundle(source, tmp_path / "acestep-v15-turbo", canvas_s=60.0)
    path = tmp_path / "acestep-v15-turbo.toml"
    path.write_text((ROOT / "configs" / path.name).read_text())
    check_graphs(decisions_of(path))
    more = """[[shapes]]
rows = { min = 9, opt = 16, max = 16 }
frames = { min = 6000, opt = 6000, max = 6000 }
tokens = { min = 1, opt = 1, max = 9 }
"""
    path.write_text(path.read_text().replace("[runtime]", f"{more}\n[runtime]"))
    with pytest.raises(BuildError, match=r"decoder is too large for TensorRT at rows 16, frames 6000.*16 x 16 x 3000"):
        check_graphs(decisions_of(path))


def decisions_of(path: Path) -> list[RebuildDecision]:
    request = load_request(path)
    return check_rebuilds(request, "tensorrt", environment=probe_environment("tensorrt", request.options))


def test_the_decoder_for_the_cpu_is_the_same_function(bundle: Path, session: onnxruntime.InferenceSession) -> None:
    """Self attention with and without a window, cross attention with padding: two in each of three layers."""
    rewritten = cpu_graph(onnx.load(bundle / "decoder.onnx"))
    kinds = Counter(node.op_type for node in rewritten.graph.node)
    assert (kinds["Attention"], kinds["RotaryEmbedding"], kinds["Softmax"], kinds["Conv"]) == (6, 6, 0, 0)
    feeds = inputs(rows=2, frames=30, tokens=5, padding=2)
    expected = session.run(None, feeds)[0]
    found = onnxruntime.InferenceSession(rewritten.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_a_recipe_changes_the_decoder_by_rounding_only(bundle: Path, recipe: str) -> None:
    found = load_bundle(bundle)
    graph = read_graph(bundle / found.decoder.graph)
    error = recipe_error(graph, recipe, list(decoder_sample_states(found, graph, steps=3)))
    assert 1e-5 < max(error.max_rel) < ROUNDING_LIMITS[recipe]
    full = {node.rule for node in error.nodes if node.name in error.flops and node.precision == "fp32"}
    assert full <= {"time", "output", "no kernel"}


def test_every_norm_and_softmax_matches_its_rule(bundle: Path) -> None:
    """Three layers: self and cross attention, each with two norms inside, three norms around, one before the output."""
    rules = Counter(node.rule for node in node_precisions(onnx.load(bundle / "decoder.onnx"), "bf16"))
    assert rules["norm"] == 6 * (3 * 7 + 1)
    assert rules["softmax"] == 3 * 2
    assert rules["unknown"] == 0


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16"])
def test_tensorrt_supports_every_graph_in_every_precision(bundle: Path, tmp_path: Path, recipe: str) -> None:
    found = {}
    for path in sorted(bundle.glob("*.onnx")):
        precision = "fp32" if path.stem in EXACT_KINDS else recipe
        write_recipe(read_graph(path), tmp_path / path.name, precision)  # type: ignore[arg-type]
        onnx.checker.check_model(str(tmp_path / path.name), full_check=True)
        model, sizes = onnx.load(tmp_path / path.name), {"tokens": 7, "samples": 20 * HOP_SAMPLES}
        shapes = {
            item.name: tuple(dim.dim_value or sizes.get(dim.dim_param, 20) for dim in item.type.tensor_type.shape.dim)
            for item in model.graph.input
        }
        found[path.stem] = list(problems(prepare_model(model, [shapes]), value_shapes(model, shapes)))
    assert {"lyric_encoder", "timbre_encoder", "text_encoder", "decoder"} < found.keys()
    assert {name for name, problem in found.items() if problem} == set()
