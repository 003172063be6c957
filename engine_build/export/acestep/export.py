"""The steps of an export of ACE-Step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine_build.export.acestep.bundle_text import (
    LYRIC_ENCODER,
    STRUCTURE_DECODE,
    STRUCTURE_ENCODE,
    TIMBRE_ENCODER,
    AceStepFacts,
    is_turbo,
    knows_tracks,
)
from engine_build.export.acestep.graphs import (
    MaskedDecoder,
    OobleckDecoder,
    OobleckEncoder,
    export_codes,
    export_hints,
    oobleck_layout,
)
from engine_build.export.acestep.layouts import AUDIO_DETOKENIZER, AUDIO_TOKENIZER, CONDITION_ENCODER, DRAFT, PLANNER
from engine_build.export.bundle_export import BundleExport, CheckpointSource, ExportStep, Facts, checked
from engine_build.export.bundle_tables import INPUTS, NULL_CONDITION, SILENCE
from engine_build.export.bundle_tables import TEXT_ENCODER as TEXT_GRAPH
from engine_build.export.bundle_tables import TOKENIZER as TOKENIZER_FILE
from engine_build.export.checkpoint import NULL, TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from engine_build.export.codec_graphs import canvas_silence, codec_facts, without_weight_norm
from engine_build.export.decoder_graph import DecoderShape, adapter_matrices, decoder_facts
from runtime.base.errors import BuildError


def acestep_export(source: CheckpointSource, *, with_text: bool = True) -> BundleExport[AceStepFacts]:
    """What is exported of a source."""
    return BundleExport(source, STEPS, AceStepFacts, () if with_text else (TEXT_ENCODER,))


def _export_decoder(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    transformer: Any = source.load(TRANSFORMER)
    config = transformer.config
    channels = int(config.audio_acoustic_hidden_dim)
    if config.in_channels != 3 * channels:
        context = config.in_channels - channels
        raise BuildError(f"the transformer has {channels} channels, a context of {context}: expected 2C")
    width = transformer.condition_embedder.in_features
    shape = DecoderShape(channels, width, int(config.patch_size), inputs=INPUTS)
    decoder = MaskedDecoder(transformer).eval()
    facts = decoder_facts(decoder, folder, shape, layers=int(config.num_hidden_layers))
    kind = {"is_turbo": is_turbo(config), "knows_tracks": knows_tracks(config, source.name)}
    return {**facts, **kind, "adapters": adapter_matrices(folder)}


def _export_codec(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    vae: Any = source.load(VAE)
    layout = oobleck_layout(vae)
    without_weight_norm(vae)
    return codec_facts(layout, OobleckDecoder(vae.decoder), OobleckEncoder(vae.encoder), folder, facts["channels"])


def _export_constants(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    """Silence and the null condition: the condition encoder's; without one the codec's silence."""
    if source.has(CONDITION_ENCODER):
        encoder: Any = source.load(CONDITION_ENCODER)
        silence, null = encoder.silence_latent[0].float().numpy(), encoder.null_condition_emb[0].detach()
    else:
        silence = canvas_silence(folder, facts)
        null = source.load(NULL) if source.has(NULL) else None
    if null is not None:
        np.save(folder / NULL_CONDITION, null.float().numpy())
    return {"silence": _save_silence(silence, folder / SILENCE), "has_null_condition": null is not None}


def _export_text(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    from engine_build.export.acestep.text_encoder import export_text_encoder

    encoder, text, tokenizer = (source.load(part) for part in (CONDITION_ENCODER, TEXT_ENCODER, TOKENIZER))
    files = (folder / TEXT_GRAPH, folder / TOKENIZER_FILE)
    return {"text_encoder": export_text_encoder(encoder, text, tokenizer, *files)}


def _export_lyrics(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    from engine_build.export.acestep.text_encoder import export_lyric_encoder

    encoder = source.load(CONDITION_ENCODER)
    return {"lyrics": export_lyric_encoder(encoder, folder / TEXT_GRAPH, folder / LYRIC_ENCODER)}


def _export_timbre(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    from engine_build.export.acestep.text_encoder import export_timbre_encoder

    encoder = source.load(CONDITION_ENCODER)
    return {"timbre": export_timbre_encoder(encoder, facts["frame_rate_hz"], folder / TIMBRE_ENCODER)}


def _export_structure(source: CheckpointSource, folder: Path, _: Facts) -> Facts:
    tokenizer: Any = source.load(AUDIO_TOKENIZER)
    layout, quantizer = export_codes(tokenizer, folder / STRUCTURE_ENCODE), tokenizer.quantizer
    del tokenizer
    checked(STRUCTURE_DECODE, export_hints(quantizer, source.load(AUDIO_DETOKENIZER), folder / STRUCTURE_DECODE))
    return {"structure": layout}


def _export_planner(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    from engine_build.export.acestep.planner import export_planner

    structure = facts.get("structure")
    return {"planner": export_planner(source.load(PLANNER), folder, structure and structure["num_codes"])}


def _export_draft(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    from engine_build.export.acestep.planner import export_draft

    capacity = facts["planner"]["planner"]["capacity"]
    return {"planner": {**facts["planner"], **export_draft(source.load(DRAFT), folder, capacity)}}


STEPS: Final = (
    ExportStep("decoder", (TRANSFORMER,), _export_decoder),
    ExportStep("codec", (VAE,), _export_codec),
    ExportStep("silence", (), _export_constants),
    ExportStep("text encoder", (CONDITION_ENCODER, TEXT_ENCODER), _export_text),
    ExportStep("lyric encoder", (CONDITION_ENCODER, TEXT_ENCODER), _export_lyrics),
    ExportStep("timbre encoder", (CONDITION_ENCODER, TEXT_ENCODER), _export_timbre),
    ExportStep("structure", (AUDIO_TOKENIZER, AUDIO_DETOKENIZER), _export_structure),
    ExportStep("planner", (PLANNER,), _export_planner),
    ExportStep("planner draft", (DRAFT,), _export_draft),
)


def _save_silence(silence: NDArray[np.float32], file: Path) -> tuple[float, ...] | None:
    """One frame where all frames are equal; else None, and the sequence is written to its file."""
    if (silence == silence[:1]).all():
        return tuple(float(value) for value in silence[0])
    np.save(file, np.ascontiguousarray(silence))
    return None
