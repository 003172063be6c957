"""The steps of an export of Stable Audio 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from engine_build.export.bundle_export import BundleExport, CheckpointSource, ExportStep, Facts, checked
from engine_build.export.bundle_tables import INPUTS, NULL_CONDITION, SILENCE, TEXT_INPUTS, TEXT_OUTPUTS
from engine_build.export.bundle_tables import TEXT_ENCODER as TEXT_GRAPH
from engine_build.export.bundle_tables import TOKENIZER as TOKENIZER_FILE
from engine_build.export.checkpoint import NULL, TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from engine_build.export.codec_graphs import MAX_BATCH, canvas_silence, codec_facts, without_weight_norm
from engine_build.export.decoder_graph import DecoderShape, adapter_matrices, decoder_facts
from engine_build.export.stable_audio_3.bundle_text import StableAudioFacts
from engine_build.export.stable_audio_3.codec import SameDecoder, SameEncoder, attention_of, same_layout
from engine_build.export.stable_audio_3.decoder import OPSET, ContextDecoder, PaddedTextEncoder
from engine_build.export.stable_audio_3.layouts import DIFFERENTIAL, DIFFERENTIAL_MODULE, DURATION, PADDING
from engine_build.export.stable_audio_3.sources import StableAudioSource
from engine_build.export.torch_export import export_graph, free, graph_error, quiet, release
from runtime.base.errors import BuildError

_CHECKED_TEXTS: Final = ((1, 1), (3, 9))


def stable_audio_export(source: StableAudioSource, *, with_text: bool = True) -> BundleExport[StableAudioFacts]:
    """What is exported of a source."""
    return BundleExport(source, STEPS, StableAudioFacts, () if with_text else (TEXT_ENCODER,))


def _export_decoder(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    traits = cast(StableAudioSource, source).traits
    transformer: Any = source.load(TRANSFORMER)
    config = transformer.config
    if config.local_add_cond_dim != 1 + config.io_channels or config.cond_token_dim != config.global_cond_dim:
        raise BuildError("the transformer is none for inpainting, or its duration is no token: its graph has neither")
    tokens, multiple = (1, 1 + traits.max_tokens), max(traits.chunk_frames, 1)
    shape = DecoderShape(config.io_channels, config.cond_token_dim, multiple, tokens, INPUTS)
    facts = decoder_facts(ContextDecoder(transformer).eval(), folder, shape, OPSET, layers=int(config.depth))
    return {
        **facts,
        "tokens": tokens,
        "is_distilled": traits.distilled,
        "logsnr": traits.logsnr,
        "license": traits.license,
        "adapters": adapter_matrices(folder),
        "adapter_orders": {DIFFERENTIAL_MODULE: DIFFERENTIAL} if config.use_differential_attention else {},
    }


def _export_codec(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    vae: Any = source.load(VAE)
    layout, rule = same_layout(vae), attention_of(vae, cast(StableAudioSource, source).traits.chunk_frames)
    without_weight_norm(vae)
    return codec_facts(
        layout,
        SameDecoder(vae, rule),
        SameEncoder(vae, rule),
        folder,
        facts["channels"],
        margin_frames=rule.margin_frames,
        align_frames=rule.align_frames,
        opset=OPSET,
    )


def _export_constants(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    """The codec's silence, and the null condition of random weights."""
    np.save(folder / SILENCE, canvas_silence(folder, facts))
    if source.has(NULL):
        np.save(folder / NULL_CONDITION, source.load(NULL).numpy())
    return {"has_null_condition": source.has(NULL)}


def _export_text(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    max_tokens = cast(StableAudioSource, source).traits.max_tokens
    parts = source.load(TEXT_ENCODER), source.load(DURATION), source.load(PADDING)
    module = PaddedTextEncoder(*parts, max_tokens).eval()
    examples = [_texts(texts, tokens) for texts, tokens in _CHECKED_TEXTS]
    with quiet(), torch.no_grad():
        expected = [module(*example.values())[0].numpy() for example in examples]
    batch, tokens = free("batch", MAX_BATCH), free("tokens")
    traced = _texts(2, 7)
    export_graph(
        module,
        folder / TEXT_GRAPH,
        tuple(traced.values()),
        inputs=list(traced),
        outputs=list(TEXT_OUTPUTS.values()),
        dynamic_shapes=({0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: batch}),
        opset=OPSET,
    )
    release(module)
    checked(TEXT_GRAPH, graph_error(folder / TEXT_GRAPH, examples, expected))
    source.load(TOKENIZER).backend_tokenizer.save(str(folder / TOKENIZER_FILE))
    return {"text_encoder": {"max_tokens": max_tokens}}


def _texts(texts: int, tokens: int) -> dict[str, Tensor]:
    """Ids below 30, texts of different lengths, and lengths in seconds, by name."""
    ids = torch.arange(texts * tokens).reshape(texts, tokens) * 7 % 30
    mask = (torch.arange(tokens) <= torch.arange(texts)[:, None] + tokens // 2).long()
    return {**dict(zip(TEXT_INPUTS.values(), (ids, mask), strict=True)), "seconds": torch.linspace(10.0, 100.0, texts)}


STEPS: Final = (
    ExportStep("decoder", (TRANSFORMER,), _export_decoder),
    ExportStep("codec", (VAE,), _export_codec),
    ExportStep("silence", (), _export_constants),
    ExportStep("text encoder", (TEXT_ENCODER, TOKENIZER, DURATION), _export_text),
)
