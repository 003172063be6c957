"""Exports a source of modules as a bundle; every graph is compared with its module, one module in memory at a time."""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from engine_build.export.acestep.bundle_text import (
    DECODE,
    DECODER,
    ENCODE,
    NULL_CONDITION,
    SILENCE,
    TEXT_ENCODER,
    TOKENIZER,
    BundleFacts,
    bundle_text,
)
from engine_build.export.acestep.codec import (
    AudioToLatents,
    CodecLayout,
    LatentsToAudio,
    decode_margin,
    encode_margin,
    encode_silence,
    export_codec,
    layout_of,
)
from engine_build.export.acestep.sources import Source
from engine_build.export.masked_decoder import DecoderShape, MaskedDecoder, export_decoder, max_error
from engine_build.export.torch_export import output_error
from runtime.config.bundle import BUNDLE_FILE
from runtime.errors import BuildError, ConfigError

ERROR_LIMIT: Final = 1e-3
_CHECKED_SIZES: Final = ((1, 2, 1), (2, 34, 7))
_CHECKED_FRAMES: Final = 3

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Options beside the source. `canvas_s`: length of a full generation; `with_text`: export the text encoder."""

    name: str
    canvas_s: float = 60.0
    with_text: bool = True
    description: str = ""


@dataclass(frozen=True)
class _Decoder:
    shape: DecoderShape
    is_turbo: bool
    figures: dict[str, Any]


@dataclass(frozen=True)
class _Codec:
    layout: CodecLayout
    decode_margin: int
    encode_margin: int


@dataclass(frozen=True)
class _Text:
    silence: NDArray[np.float32] | None
    null_condition: NDArray[np.float32] | None
    text_encoder: dict[str, Any] | None


def export_bundle(source: Source, folder: Path, options: Options, on_progress: OnProgress = print) -> BundleFacts:
    """Write the bundle into a temporary folder and rename it when it is complete; an older bundle is replaced.

    Raises BuildError where a graph differs from its module, ConfigError where the source lacks a part or the folder is
    not a bundle.
    """
    _check_replaceable(folder)
    with _atomic_folder(folder) as partial:
        on_progress("decoder ...")
        decoder = _export_decoder(source, partial)
        on_progress("codec ...")
        codec = _export_codec(source, partial, decoder.shape)
        on_progress("text ...")
        text = _export_text(source, partial, codec.layout.frame_rate_hz, with_text=options.with_text)
        facts = _facts(options, decoder, codec, text, partial)
        (partial / BUNDLE_FILE).write_text(bundle_text(facts), encoding="utf-8")
    return facts


def bundle_name(name: str) -> str:
    """A name reduced to the characters that bundle names may have."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "acestep"


def _export_decoder(source: Source, folder: Path) -> _Decoder:
    transformer: Any = source.transformer()
    config = transformer.config
    channels = int(config.audio_acoustic_hidden_dim)
    width = transformer.condition_embedder.in_features
    shape = DecoderShape(channels, int(config.in_channels) - channels, width, int(config.patch_size))
    is_turbo = bool(config.is_turbo or config.model_version == "turbo")
    parameters = sum(parameter.numel() for parameter in transformer.parameters())
    decoder = MaskedDecoder(transformer).eval()
    export_decoder(decoder, shape, folder / DECODER)
    error = max_error(decoder, folder / DECODER, shape, _CHECKED_SIZES)
    _check(DECODER, error)
    figures = {"parameters": parameters, "layers": int(config.num_hidden_layers), "decoder_max_error": error}
    return _Decoder(shape, is_turbo, figures)


def _export_codec(source: Source, folder: Path, shape: DecoderShape) -> _Codec:
    vae: Any = source.vae()
    layout = layout_of(vae)
    _check_channels(shape, layout)
    decode, encode = folder / DECODE, folder / ENCODE
    export_codec(vae, decode, encode)
    random = torch.Generator().manual_seed(0)
    latents = torch.randn(1, _CHECKED_FRAMES, layout.latent_channels, generator=random)
    audio = torch.rand(1, layout.channels, _CHECKED_FRAMES * layout.hop_samples, generator=random) - 0.5
    _check(DECODE, output_error(LatentsToAudio(vae.decoder), decode, {"latents": latents}))
    _check(ENCODE, output_error(AudioToLatents(vae.encoder), encode, {"audio": audio}))
    del vae
    return _Codec(layout, decode_margin(decode, layout), encode_margin(encode, layout))


def _export_text(source: Source, folder: Path, frame_rate_hz: float, *, with_text: bool) -> _Text:
    encoder: Any = source.condition_encoder()
    if encoder is None:
        null = source.null_condition()
        return _Text(None, None if null is None else null.numpy(), None)
    silence, null = encoder.silence_latent[0].float().numpy(), encoder.null_condition_emb[0].detach().float().numpy()
    text = source.text_encoder() if with_text else None
    if text is None:
        return _Text(silence, null, None)
    from engine_build.export.acestep.text_encoder import export_text_encoder

    layout = export_text_encoder(encoder, *text, frame_rate_hz, folder / TEXT_ENCODER, folder / TOKENIZER)
    return _Text(silence, null, vars(layout))


def _facts(options: Options, decoder: _Decoder, codec: _Codec, text: _Text, folder: Path) -> BundleFacts:
    layout, multiple = codec.layout, decoder.shape.frame_multiple
    canvas = max(round(options.canvas_s * layout.frame_rate_hz) // multiple, 1) * multiple
    if text.null_condition is not None:
        np.save(folder / NULL_CONDITION, text.null_condition)
    silence = text.silence
    if silence is None:
        silence = encode_silence(folder / ENCODE, layout, codec.encode_margin, canvas)
    return BundleFacts(
        name=options.name,
        description=options.description,
        channels=layout.latent_channels,
        frame_rate_hz=layout.frame_rate_hz,
        frame_multiple=multiple,
        canvas_frames=canvas,
        is_turbo=decoder.is_turbo,
        sample_rate_hz=layout.sample_rate_hz,
        audio_channels=layout.channels,
        hop_samples=layout.hop_samples,
        decode_margin_frames=codec.decode_margin,
        encode_margin_frames=codec.encode_margin,
        silence=_save_silence(silence, folder / SILENCE),
        has_null_condition=text.null_condition is not None,
        text_encoder=text.text_encoder,
        figures=decoder.figures,
    )


def _save_silence(silence: NDArray[np.float32], file: Path) -> tuple[float, ...] | None:
    """One frame where all frames are equal; else None, and the sequence is written to its file."""
    if (silence == silence[:1]).all():
        return tuple(float(value) for value in silence[0])
    np.save(file, np.ascontiguousarray(silence))
    return None


def _check_channels(shape: DecoderShape, layout: CodecLayout) -> None:
    if shape.channels != layout.latent_channels or shape.context_channels != 2 * shape.channels:
        raise BuildError(
            f"the transformer takes latents of {shape.channels} channels and a context of {shape.context_channels}, "
            f"the vae has {layout.latent_channels} channels: expected C, 2C and C",
            fix="export a transformer and a vae that belong together",
        )


def _check(name: str, error: float) -> None:
    if not error <= ERROR_LIMIT:
        raise BuildError(f"{name} differs from its module by {error:.1e}, expected at most {ERROR_LIMIT:.0e}")
    gc.collect()


def _check_replaceable(folder: Path) -> None:
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / BUNDLE_FILE).is_file():
        raise ConfigError(f"{folder} exists and is not a bundle: it is not replaced", fix="--out another folder")


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, renamed to it at the end, or removed."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        yield partial
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
