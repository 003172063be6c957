"""The steps of an export of Stable Audio 3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import torch

from engine_build.export.bundle_export import (
    CheckpointSource,
    ExportOptions,
    ExportStep,
    Facts,
    OnProgress,
    checked,
    steps_with,
    write_bundle,
)
from engine_build.export.bundle_tables import (
    DECODE,
    DECODER,
    ENCODE,
    NULL_CONDITION,
    SILENCE,
    canvas_frames,
)
from engine_build.export.bundle_tables import TEXT_ENCODER as TEXT_GRAPH
from engine_build.export.bundle_tables import TOKENIZER as TOKENIZER_FILE
from engine_build.export.codec_graphs import CodecLayout, encode_silence, export_halves
from engine_build.export.stable_audio_3.bundle_text import BundleFacts, bundle_text
from engine_build.export.stable_audio_3.codec import (
    AudioToLatents,
    LatentsToAudio,
    attention_of,
    layout_of,
    without_weight_norm,
)
from engine_build.export.stable_audio_3.decoder import (
    OPSET,
    ContextDecoder,
    DecoderShape,
    decoder_inputs,
    export_decoder,
)
from engine_build.export.stable_audio_3.layouts import (
    DIFFERENTIAL,
    DIFFERENTIAL_MODULE,
    DURATION,
    PADDING,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
)
from engine_build.export.stable_audio_3.sources import NULL, StableAudioSource
from engine_build.export.stable_audio_3.text_encoder import TextEncoderModule, export_text_encoder, text_inputs
from engine_build.export.torch_export import graph_error, module_outputs, quiet, release
from engine_build.graphs.adapter_graph import linear_matrices
from runtime.errors import BuildError

_CHECKED_SIZES: Final = ((1, 1), (2, 17))
_CHECKED_FRAMES: Final = 3
_CHECKED_TEXTS: Final = ((1, 1), (3, 9))


def export_bundle(
    source: StableAudioSource, folder: Path, options: ExportOptions, on_progress: OnProgress = print
) -> BundleFacts:
    """Write the bundle, as `write_bundle` does; returns what it says."""
    steps = steps_with(source, STEPS, frozenset() if options.with_text else frozenset({TEXT_ENCODER}))
    facts: list[BundleFacts] = []

    def text(found: Mapping[str, Any]) -> str:
        facts.append(BundleFacts(**found))
        return bundle_text(facts[0])

    write_bundle(source, folder, options, steps, text, on_progress)
    return facts[0]


def _export_decoder(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    traits = cast(StableAudioSource, source).traits
    transformer: Any = source.load(TRANSFORMER)
    config, parameters = transformer.config, sum(parameter.numel() for parameter in transformer.parameters())
    if config.local_add_cond_dim != 1 + config.io_channels or config.cond_token_dim != config.global_cond_dim:
        raise BuildError("the transformer is none for inpainting, or its duration is no token: its graph has neither")
    shape = DecoderShape(config.io_channels, 1 + traits.max_tokens, config.cond_token_dim, max(traits.chunk_frames, 1))
    decoder = ContextDecoder(transformer).eval()
    frames = shape.frame_multiple
    examples = [decoder_inputs(shape, rows, frames * size, seed=size) for rows, size in _CHECKED_SIZES]
    expected = module_outputs(decoder, examples)
    export_decoder(decoder, shape, folder / DECODER)
    release(decoder)
    error = checked(DECODER, graph_error(folder / DECODER, examples, expected))
    matrices = linear_matrices(onnx.load(folder / DECODER, load_external_data=False))
    return {
        "channels": shape.channels,
        "frame_multiple": shape.frame_multiple,
        "tokens": shape.tokens,
        "is_distilled": traits.distilled,
        "logsnr": traits.logsnr,
        "license": traits.license,
        "adapters": {path: matrix.model_dump() for path, matrix in matrices.items()},
        "adapter_orders": {DIFFERENTIAL_MODULE: DIFFERENTIAL} if config.use_differential_attention else {},
        "figures": {"parameters": parameters, "layers": int(config.depth), "decoder_max_error": error},
    }


def _export_codec(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    vae: Any = source.load(VAE)
    layout, rule = layout_of(vae), attention_of(vae, cast(StableAudioSource, source).traits.chunk_frames)
    if layout.latent_channels != facts["channels"]:
        raise BuildError(
            f"the transformer takes latents of {facts['channels']} channels, the vae has {layout.latent_channels}",
            fix="export a transformer and a vae that belong together",
        )
    random = torch.Generator().manual_seed(0)
    latents = [{"latents": torch.randn(1, _CHECKED_FRAMES, layout.latent_channels, generator=random)}]
    audio = [{"audio": torch.rand(1, layout.channels, _CHECKED_FRAMES * layout.hop_samples, generator=random) - 0.5}]
    without_weight_norm(vae)
    decode, encode = LatentsToAudio(vae, rule).eval(), AudioToLatents(vae, rule).eval()
    expected = module_outputs(decode, latents), module_outputs(encode, audio)
    export_halves(decode, encode, layout, folder / DECODE, folder / ENCODE, OPSET)
    release(vae)
    checked(DECODE, graph_error(folder / DECODE, latents, expected[0]))
    checked(ENCODE, graph_error(folder / ENCODE, audio, expected[1]))
    return {
        "sample_rate_hz": layout.sample_rate_hz,
        "audio_channels": layout.channels,
        "hop_samples": layout.hop_samples,
        "frame_rate_hz": layout.frame_rate_hz,
        "decode_margin_frames": rule.margin_frames,
        "encode_margin_frames": rule.margin_frames,
        "align_frames": rule.align_frames,
    }


def _export_constants(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    """The codec's silence, and the null condition of random weights."""
    layout = CodecLayout(facts["sample_rate_hz"], facts["audio_channels"], facts["hop_samples"], facts["channels"])
    frames = canvas_frames(facts["canvas_s"], facts["frame_rate_hz"], facts["frame_multiple"])
    margin, period = facts["encode_margin_frames"], facts["align_frames"]
    np.save(folder / SILENCE, encode_silence(folder / ENCODE, layout, margin, frames, period))
    if source.has(NULL):
        np.save(folder / NULL_CONDITION, source.load(NULL).numpy())
    return {"has_null_condition": source.has(NULL)}


def _export_text(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    max_tokens = cast(StableAudioSource, source).traits.max_tokens
    parts = source.load(TEXT_ENCODER), source.load(DURATION), source.load(PADDING)
    module = TextEncoderModule(*parts, max_tokens).eval()
    examples = [text_inputs(texts, tokens) for texts, tokens in _CHECKED_TEXTS]
    with quiet(), torch.no_grad():
        expected = [module(*example.values())[0].numpy() for example in examples]
    export_text_encoder(module, folder / TEXT_GRAPH)
    release(module)
    checked(TEXT_GRAPH, graph_error(folder / TEXT_GRAPH, examples, expected))
    source.load(TOKENIZER).backend_tokenizer.save(str(folder / TOKENIZER_FILE))
    return {"text_encoder": {"max_tokens": max_tokens}}


STEPS: Final = (
    ExportStep("decoder", (TRANSFORMER,), _export_decoder),
    ExportStep("codec", (VAE,), _export_codec),
    ExportStep("silence", (), _export_constants),
    ExportStep("text encoder", (TEXT_ENCODER, TOKENIZER, DURATION), _export_text),
)
