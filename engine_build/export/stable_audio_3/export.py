"""The steps of an export of Stable Audio 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import torch

from engine_build.export.bundle_export import (
    BundleExport,
    CheckpointSource,
    ExportOptions,
    ExportStep,
    Facts,
    OnProgress,
    checked,
    write_bundle,
)
from engine_build.export.bundle_tables import DECODER, ENCODE, NULL_CONDITION, SILENCE, canvas_frames
from engine_build.export.bundle_tables import TEXT_ENCODER as TEXT_GRAPH
from engine_build.export.bundle_tables import TOKENIZER as TOKENIZER_FILE
from engine_build.export.codec_graphs import CodecLayout, codec_facts, encode_silence
from engine_build.export.decoder_graph import DecoderShape, decoder_facts
from engine_build.export.stable_audio_3.bundle_text import INPUTS, BundleFacts, bundle_text, deployment_text
from engine_build.export.stable_audio_3.codec import (
    AudioToLatents,
    LatentsToAudio,
    attention_of,
    layout_of,
    without_weight_norm,
)
from engine_build.export.stable_audio_3.decoder import OPSET, ContextDecoder
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
from engine_build.export.torch_export import graph_error, quiet, release
from engine_build.graphs.adapter_graph import linear_matrices
from runtime.base.errors import BuildError

_CHECKED_TEXTS: Final = ((1, 1), (3, 9))


def bundle_export(source: StableAudioSource, *, with_text: bool = True) -> BundleExport[BundleFacts]:
    """What is exported of a source."""
    without = frozenset[str]() if with_text else frozenset({TEXT_ENCODER})
    return BundleExport(source, STEPS, BundleFacts, bundle_text, deployment_text, without)


def export_bundle(
    source: StableAudioSource, folder: Path, options: ExportOptions, on_progress: OnProgress = print
) -> BundleFacts:
    """Write the bundle, as `write_bundle` does; returns what it says."""
    return write_bundle(bundle_export(source, with_text=options.with_text), folder, options, on_progress)


def _export_decoder(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    traits = cast(StableAudioSource, source).traits
    transformer: Any = source.load(TRANSFORMER)
    config = transformer.config
    if config.local_add_cond_dim != 1 + config.io_channels or config.cond_token_dim != config.global_cond_dim:
        raise BuildError("the transformer is none for inpainting, or its duration is no token: its graph has neither")
    tokens, multiple = (1, 1 + traits.max_tokens), max(traits.chunk_frames, 1)
    shape = DecoderShape(config.io_channels, config.cond_token_dim, multiple, tokens, INPUTS)
    facts = decoder_facts(ContextDecoder(transformer).eval(), folder, shape, OPSET, layers=int(config.depth))
    matrices = linear_matrices(onnx.load(folder / DECODER, load_external_data=False))
    return {
        **facts,
        "tokens": tokens,
        "is_distilled": traits.distilled,
        "logsnr": traits.logsnr,
        "license": traits.license,
        "adapters": {path: matrix.model_dump() for path, matrix in matrices.items()},
        "adapter_orders": {DIFFERENTIAL_MODULE: DIFFERENTIAL} if config.use_differential_attention else {},
    }


def _export_codec(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    vae: Any = source.load(VAE)
    layout, rule = layout_of(vae), attention_of(vae, cast(StableAudioSource, source).traits.chunk_frames)
    without_weight_norm(vae)
    return codec_facts(
        layout,
        LatentsToAudio(vae, rule),
        AudioToLatents(vae, rule),
        folder,
        facts["channels"],
        margin_frames=rule.margin_frames,
        align_frames=rule.align_frames,
        opset=OPSET,
    )


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
