"""The codec's halves against diffusers' autoencoder; margins that are exactly the receptive field; joined windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.graph_engine import GraphEngine
from helpers.tiny_acestep import CHANNELS, HOP_SAMPLES, VAE
from numpy.typing import NDArray

from engine_build.graphs.graph_file import read_graph
from engine_build.precision.error import AUDIBLE_DB, codec_snr_db
from runtime.audio.codec import Codec
from runtime.base.errors import BuildError
from runtime.config.bundle import load_bundle

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

FULL_SCALE_ERROR = 1e-3


@pytest.fixture(scope="module")
def vae(base: Path) -> Any:
    from diffusers import AutoencoderOobleck

    return AutoencoderOobleck.from_pretrained(base / "vae").eval()


def open_codec(bundle: Path, window_frames: int = 128) -> tuple[Codec, GraphEngine, GraphEngine]:
    opened = load_bundle(bundle)
    assert opened.codec is not None
    halves = {
        name: getattr(opened.codec, name).model_copy(update={"window_frames": window_frames})
        for name in ("decode", "encode")
    }
    bounded = opened.model_copy(update={"codec": opened.codec.model_copy(update=halves)})
    decode, encode = (GraphEngine(onnx.load(bundle / f"codec_{name}.onnx")) for name in ("decode", "encode"))
    return Codec(bounded, decode, encode), decode, encode


def latents(frames: int, batch: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(frames).standard_normal((batch, frames, CHANNELS)).astype(np.float32)


def decoded(vae: Any, values: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        return np.asarray(vae.decode(torch.from_numpy(values).transpose(1, 2)).sample)


def run(bundle: Path, name: str, feeds: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.asarray(onnxruntime.InferenceSession(str(bundle / name)).run(None, feeds)[0])


@pytest.mark.parametrize(("batch", "frames"), [(1, 1), (1, 2), (3, 17), (2, 60)])
def test_decoding_equals_the_autoencoder(vae: Any, bundle: Path, batch: int, frames: int) -> None:
    values = latents(frames, batch)
    wanted = decoded(vae, values)
    found = run(bundle, "codec_decode.onnx", {"latents": values})
    assert found.shape == wanted.shape == (batch, 2, frames * HOP_SAMPLES)
    assert np.abs(wanted).max() > 0.01
    assert np.abs(found - wanted).max() < 1e-4


@pytest.mark.parametrize(("batch", "frames"), [(1, 1), (2, 9), (1, 40)])
def test_encoding_is_the_mode_of_the_posterior(vae: Any, bundle: Path, batch: int, frames: int) -> None:
    audio = np.random.default_rng(0).uniform(-1, 1, (batch, 2, frames * HOP_SAMPLES)).astype(np.float32)
    with torch.no_grad():
        wanted = vae.encode(torch.from_numpy(audio)).latent_dist.mode().transpose(1, 2).numpy()
    found = run(bundle, "codec_encode.onnx", {"audio": audio})
    assert found.shape == wanted.shape == (batch, frames, CHANNELS)
    assert np.abs(found - wanted).max() < 1e-4
    assert np.array_equal(found, run(bundle, "codec_encode.onnx", {"audio": audio}))


def test_the_margin_is_the_receptive_field_and_no_more(vae: Any, bundle: Path) -> None:
    from engine_build.export.acestep.graphs import oobleck_layout
    from engine_build.export.codec_graphs import decode_margin, encode_margin, encode_silence

    layout = oobleck_layout(vae)
    margin = decode_margin(bundle / "codec_decode.onnx", layout)
    field = torch.from_numpy(latents(6 * margin)).transpose(1, 2).requires_grad_()
    middle = 3 * margin
    audio = vae.decode(field).sample[..., middle * HOP_SAMPLES : (middle + 1) * HOP_SAMPLES]
    audio.abs().sum().backward()
    touched = np.flatnonzero(field.grad.abs().amax(dim=(0, 1)).numpy())
    assert touched[0] == middle - margin
    assert touched[-1] == middle + margin
    assert load_bundle(bundle).codec.decode.margin_frames == margin + margin % 2
    encode = encode_margin(bundle / "codec_encode.onnx", layout)
    assert 0 < encode <= load_bundle(bundle).codec.encode.margin_frames <= encode + 1
    silence = encode_silence(bundle / "codec_encode.onnx", layout, encode, 50)
    wanted = run(bundle, "codec_encode.onnx", {"audio": np.zeros((1, 2, 60 * HOP_SAMPLES), np.float32)})[0, :50]
    assert silence.shape == (50, CHANNELS)
    assert np.abs(silence - wanted).max() < 1e-5
    assert len(encode_silence(bundle / "codec_encode.onnx", layout, encode, 3)) == 3


def streamed(codec: Codec, field: np.ndarray, splits: list[int], window_frames: int) -> np.ndarray:
    """PCM of latents `[T, C]` that arrive in parts, decoded in windows."""
    cutter = codec.window_cutter(window_frames, total_frames=len(field))
    parts = np.split(field, splits)
    return np.concatenate([codec.decode_window(window) for part in parts for window in cutter.cut(part)])


@pytest.mark.parametrize(("window", "splits"), [(2, [40]), (7, [20, 60]), (16, []), (500, [60])])
def test_windows_of_parts_equal_the_full_decode(vae: Any, bundle: Path, window: int, splits: list[int]) -> None:
    (codec, *_), field = open_codec(bundle), latents(96)
    whole = decoded(vae, field)[0].T
    error = np.abs(streamed(codec, field[0], splits, window) - whole).max()
    assert error < FULL_SCALE_ERROR * max(1.0, np.abs(whole).max())


def test_long_latents_are_decoded_in_bounded_executes(vae: Any, bundle: Path) -> None:
    (codec, decode, _), field = open_codec(bundle, window_frames=16), latents(250)
    whole = decoded(vae, field)[0].T
    assert np.abs(codec.decode(field[0]) - whole).max() < FULL_SCALE_ERROR * np.abs(whole).max()
    assert (
        np.abs(streamed(codec, field[0], [3, 90, 91, 200], 100) - whole).max() < FULL_SCALE_ERROR * np.abs(whole).max()
    )
    lengths = {feeds["latents"].shape[1] for feeds in decode.feeds}
    assert max(lengths) == 16 + 2 * codec.margin_frames


def test_long_audio_is_encoded_in_bounded_executes(vae: Any, bundle: Path) -> None:
    codec, _, encode = open_codec(bundle, window_frames=16)
    audio = np.random.default_rng(2).uniform(-1, 1, (100 * HOP_SAMPLES, 2)).astype(np.float32)
    with torch.no_grad():
        wanted = vae.encode(torch.from_numpy(audio.T[None].copy())).latent_dist.mode()[0].T.numpy()
    assert np.abs(codec.encode(audio) - wanted).max() < 1e-4
    most = max(feeds["audio"].shape[2] for feeds in encode.feeds)
    assert most == (16 + 2 * codec.spec.encode.margin_frames) * HOP_SAMPLES


def test_odd_strides_are_refused() -> None:
    from diffusers import AutoencoderOobleck

    from engine_build.export.acestep.graphs import oobleck_layout

    with pytest.raises(BuildError, match=r"downsampling_ratios \[4, 8, 5\], expected even ones"):
        oobleck_layout(AutoencoderOobleck(**{**VAE, "downsampling_ratios": [4, 8, 5]}))


def test_the_noise_of_oobleck_is_heard_in_bf16_and_not_in_fp16(tmp_path: Path) -> None:
    """At the published strides with random weights; the snakes' exponents are spread as in trained ones."""
    from diffusers import AutoencoderOobleck

    from engine_build.export.acestep.graphs import OobleckDecoder, oobleck_layout
    from engine_build.export.acestep.sources import VAE_CONFIG
    from engine_build.export.codec_graphs import export_decode, without_weight_norm

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        vae = without_weight_norm(AutoencoderOobleck(**VAE_CONFIG, encoder_hidden_size=16, decoder_channels=8).eval())
        for name, parameter in vae.named_parameters():
            if "alpha" in name or "beta" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
    layout = oobleck_layout(vae)
    export_decode(OobleckDecoder(vae.decoder), layout, tmp_path / "codec_decode.onnx")
    values = np.random.default_rng(0).standard_normal((1, 16, layout.latent_channels)).astype(np.float32)
    graph, window = read_graph(tmp_path / "codec_decode.onnx"), layout.sample_rate_hz // 10
    fp16, bf16 = (codec_snr_db(graph, recipe, {"latents": values}, window, threads=1) for recipe in ("fp16", "bf16"))
    assert fp16 > AUDIBLE_DB > bf16 + 10
