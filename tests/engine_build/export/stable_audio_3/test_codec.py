"""The codec's halves against diffusers' autoencoder and the rule of SAME-S; windows equal to the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.graph_engine import GraphEngine
from helpers.tiny_stable_audio_3 import CHANNELS, HOP_SAMPLES, chunked, small_decode
from numpy.typing import NDArray

from engine_build.graphs.graph_file import read_graph
from engine_build.precision.error import AUDIBLE_DB, codec_snr_db
from runtime.audio.codec import Codec
from runtime.config.bundle import load_bundle
from runtime.engines.value_shapes import value_shapes

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((1, frames, CHANNELS)).astype(np.float32)


def audio(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (1, 2, frames * HOP_SAMPLES)).astype(np.float32)


def run(bundle: Path, half: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    name = "latents" if half == "decode" else "audio"
    found: NDArray[np.float32] = onnxruntime.InferenceSession(str(bundle / f"codec_{half}.onnx")).run(
        None, {name: values}
    )[0]
    return found


def small_encode(vae: Any, values: Any) -> Any:
    block, frames = vae.encoder.blocks[0], values.shape[2] // HOP_SAMPLES
    patches = vae.patch_embed.encode(values)
    patches = torch.cat((patches, torch.zeros(1, patches.shape[1], frames % 2 * 16)), dim=2)
    mapped = block.mapping(patches).transpose(1, 2)
    segments = mapped.reshape(-1, 16, mapped.shape[2])
    tokens = torch.cat((segments, block.new_tokens.expand(len(segments), 1, -1)), dim=1)
    tokens = chunked(block, tokens.reshape(1, -1, mapped.shape[2])).reshape(-1, 17, mapped.shape[2])
    found = vae.encoder.proj(tokens[None, :frames, -1])
    return vae.bottleneck.encode(found.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("frames", [1, 2, 13, 48])
def test_halves_are_those_of_the_autoencoder(bundle: Path, parts: dict[str, Any], size: str, frames: int) -> None:
    """medium: diffusers' own. small: diffusers cannot, the authors' rule on its blocks."""
    vae = parts["vae"]
    with torch.no_grad():
        given, heard = torch.from_numpy(latents(frames)), torch.from_numpy(audio(frames))
        if size == "small":
            wanted = small_decode(vae, given), small_encode(vae, heard)
        else:
            wanted = vae.decode(given.transpose(1, 2)).sample, vae.encode(heard).latents.transpose(1, 2)
    found = run(bundle, "decode", latents(frames)), run(bundle, "encode", audio(frames))
    assert np.abs(wanted[0].numpy()).max() > 0.1
    assert np.abs(found[0] - wanted[0].numpy()).max() < 1e-4
    assert np.abs(found[1] - wanted[1].numpy()).max() < 1e-5


@pytest.mark.parametrize("start", [12, 13])
def test_a_window_with_its_margins_is_a_part_of_the_whole(bundle: Path, size: str, start: int) -> None:
    """small: from even frames on, where chunks begin; an odd start has other chunks."""
    spec = load_bundle(bundle).codec
    assert spec is not None
    margin, frames = spec.decode.margin_frames, 9
    assert spec.encode is not None
    assert (margin, spec.decode.align_frames) == (spec.encode.margin_frames, spec.encode.align_frames)
    assert (margin, spec.decode.align_frames) == ((2, 2) if size == "small" else (4, 1))
    whole, window = latents(40), slice(start - margin, start + frames + margin)
    decoded = run(bundle, "decode", whole[:, window])[..., margin * HOP_SAMPLES :][..., : frames * HOP_SAMPLES]
    error = np.abs(decoded - run(bundle, "decode", whole)[..., start * HOP_SAMPLES :][..., : frames * HOP_SAMPLES])
    heard = audio(40)
    part = heard.reshape(1, 2, 40, HOP_SAMPLES)[:, :, window].reshape(1, 2, -1)
    encoded = run(bundle, "encode", part)[:, margin : margin + frames]
    errors = error.max(), np.abs(encoded - run(bundle, "encode", heard)[:, start : start + frames]).max()
    if size == "small" and start % 2:
        assert min(errors) > 1e-3
    else:
        assert max(errors) < 1e-6


def test_a_smaller_margin_is_heard(bundle: Path, size: str) -> None:
    whole, start, margin = latents(40), 12, 0 if size == "small" else 1
    part = run(bundle, "decode", whole[:, start - margin : start + 8 + margin])[..., margin * HOP_SAMPLES :]
    wanted = run(bundle, "decode", whole)[..., start * HOP_SAMPLES :]
    assert np.abs(part[..., : 8 * HOP_SAMPLES] - wanted[..., : 8 * HOP_SAMPLES]).max() > 1e-5


@pytest.mark.parametrize("window_frames", [10, 128])
def test_the_codec_joins_windows_to_the_whole(bundle: Path, window_frames: int) -> None:
    loaded = load_bundle(bundle)
    assert loaded.codec is not None
    halves = {
        name: half.model_copy(update={"window_frames": window_frames}) for name, half in loaded.codec.halves.items()
    }
    cut = loaded.model_copy(update={"codec": loaded.codec.model_copy(update=halves)})
    codec = Codec(cut, *(GraphEngine(onnx.load(bundle / f"codec_{half}.onnx")) for half in ("decode", "encode")))
    values = latents(62, seed=2)
    wanted = run(bundle, "decode", values)[0].T
    assert np.abs(codec.decode(values[0]) - wanted).max() < 1e-6
    heard = audio(62, seed=3)
    assert np.abs(codec.encode(heard[0].T) - run(bundle, "encode", heard)[0]).max() < 1e-6


@pytest.mark.parametrize("window_frames", [1, 2])
def test_groups_of_queries_are_the_band_mask(window_frames: int) -> None:
    """diffusers' attention with its mask of all tokens, and the groups, for any width of the window."""
    from diffusers.models.autoencoders.autoencoder_same import SAMEAttention, _band_mask

    from engine_build.export.stable_audio_3.codec import WindowAttention
    from engine_build.export.stable_audio_3.sources import randomise

    attention = randomise(SAMEAttention(32, dim_heads=16), seed=3)
    x = torch.randn(2, 9, 17, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mask = _band_mask(9 * 17, window_frames * 17, x.device, x.dtype)
        wanted = attention(x.reshape(2, -1, 32), attn_mask=mask).reshape(x.shape)
        groups = WindowAttention(window_frames)
        attention.set_processor(groups)
        found = attention(x, attn_mask=groups.mask(9, 17))
    assert wanted.abs().max() > 0.1
    assert (found - wanted).abs().max() < 1e-6


def test_no_graph_has_a_product_of_all_tokens_with_all_tokens(bundle: Path) -> None:
    """Twice the frames are twice the elements of every tensor."""
    for half, name in (("decode", "latents"), ("encode", "audio")):
        model = onnx.load(bundle / f"codec_{half}.onnx")
        largest = []
        for frames in (64, 128):
            shape = (1, frames, CHANNELS) if half == "decode" else (1, 2, frames * HOP_SAMPLES)
            largest.append(max(np.prod(found) for found, _ in value_shapes(model, {name: shape}).values()))
        assert largest[1] <= 2.1 * largest[0]


def test_silence_repeats_with_the_chunks(bundle: Path, size: str) -> None:
    loaded = load_bundle(bundle)
    frames = loaded.latents.canvas_frames
    silent = run(bundle, "encode", np.zeros((1, 2, frames * HOP_SAMPLES), np.float32))[0]
    margin = 2 if size == "small" else 4
    assert np.abs(loaded.silence(frames)[: frames - margin] - silent[: frames - margin]).max() < 1e-6


def test_the_noise_of_same_is_heard_in_bf16_and_not_in_fp16(bundle: Path) -> None:
    graph, feed = read_graph(bundle / "codec_decode.onnx"), {"latents": latents(16)}
    fp16, bf16 = (codec_snr_db(graph, recipe, feed, HOP_SAMPLES, threads=1) for recipe in ("fp16", "bf16"))
    assert fp16 > AUDIBLE_DB + 5
    assert bf16 < AUDIBLE_DB
