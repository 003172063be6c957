"""The steps of an export of ACE-Step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from engine_build.export.acestep.bundle_text import (
    INPUTS,
    LYRIC_ENCODER,
    STRUCTURE_DECODE,
    STRUCTURE_ENCODE,
    TIMBRE_ENCODER,
    BundleFacts,
    bundle_text,
    deployment_text,
    is_turbo,
    knows_tracks,
)
from engine_build.export.acestep.codec import AudioToLatents, LatentsToAudio, layout_of, without_weight_norm
from engine_build.export.acestep.layouts import (
    AUDIO_DETOKENIZER,
    AUDIO_TOKENIZER,
    CONDITION_ENCODER,
    DRAFT,
    PLANNER,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
)
from engine_build.export.acestep.sources import NULL
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
from engine_build.export.masked_decoder import MaskedDecoder
from engine_build.graphs.adapter_graph import linear_matrices
from runtime.base.errors import BuildError


def bundle_export(source: CheckpointSource, *, with_text: bool = True) -> BundleExport[BundleFacts]:
    """What is exported of a source."""
    without = frozenset[str]() if with_text else frozenset({TEXT_ENCODER})
    return BundleExport(source, STEPS, BundleFacts, bundle_text, deployment_text, without)


def export_bundle(
    source: CheckpointSource, folder: Path, options: ExportOptions, on_progress: OnProgress = print
) -> BundleFacts:
    """Write the bundle, as `write_bundle` does; returns what it says."""
    return write_bundle(bundle_export(source, with_text=options.with_text), folder, options, on_progress)


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
    return {**facts, **kind, "adapters": _adapters(folder / DECODER)}


def _adapters(decoder: Path) -> Facts:
    """Module path -> its matrix in the graph, of the linear layers."""
    matrices = linear_matrices(onnx.load(decoder, load_external_data=False))
    return {path: matrix.model_dump() for path, matrix in matrices.items()}


def _export_codec(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    vae: Any = source.load(VAE)
    layout = layout_of(vae)
    without_weight_norm(vae)
    return codec_facts(layout, LatentsToAudio(vae.decoder), AudioToLatents(vae.encoder), folder, facts["channels"])


def _export_constants(source: CheckpointSource, folder: Path, facts: Facts) -> Facts:
    """Silence and the null condition: the condition encoder's; without one the codec's silence."""
    null = None
    if source.has(CONDITION_ENCODER):
        encoder: Any = source.load(CONDITION_ENCODER)
        silence, null = encoder.silence_latent[0].float().numpy(), encoder.null_condition_emb[0].detach()
    else:
        layout = CodecLayout(facts["sample_rate_hz"], facts["audio_channels"], facts["hop_samples"], facts["channels"])
        frames = canvas_frames(facts["canvas_s"], facts["frame_rate_hz"], facts["frame_multiple"])
        silence = encode_silence(folder / ENCODE, layout, facts["encode_margin_frames"], frames)
        if source.has(NULL):
            null = source.load(NULL)
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
    from engine_build.export.acestep.structure import export_codes, export_hints

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
