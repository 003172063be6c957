"""Text, lyrics and reference audio -> condition tokens, as ACE-Step's pipeline makes them; its texts as templates.

The pipeline packs the tokens of lyrics, timbre and text, in this order; each has a graph of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from diffusers import AceStepPipeline
from diffusers.pipelines.ace_step.pipeline_ace_step import TASK_INSTRUCTIONS, TASK_TYPES
from torch import Tensor, nn

from engine_build.export.acestep.bundle_text import MAX_LYRIC_TOKENS, MAX_TEXT_TOKENS
from engine_build.export.bundle_tables import TEXT_INPUTS, TEXT_OUTPUTS
from engine_build.export.codec_graphs import MAX_BATCH
from engine_build.export.torch_export import export_graph, free

INPUT_NAMES: Final = tuple(TEXT_INPUTS.values())
OUTPUT_NAMES: Final = tuple(TEXT_OUTPUTS.values())
EMBEDDINGS_NAME: Final = "embeddings"
REFERENCE_NAME: Final = "reference_latents"
# The pipeline's own limit of a reference.
REFERENCE_S: Final = 30
_ANY_LENGTH_S: Final = 987_654
_ANY_BPM: Final = 987_653


class ProjectedTextEncoder(nn.Module):
    """Text encoder and projection."""

    def __init__(self, text_encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self.projector = projector

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 `[B, L]` -> condition `[B, L, D]`, mask f32 `[B, L]`.

        The text encoder is causal: padding after the text does not change the text's tokens.
        """
        hidden = self.text_encoder(input_ids=input_ids, use_cache=False).last_hidden_state
        return self.projector(hidden), attention_mask.float()


class LyricEncoder(nn.Module):
    """The lyric encoder, on the text encoder's embeddings."""

    def __init__(self, lyric_encoder: nn.Module) -> None:
        super().__init__()
        self.lyric_encoder = lyric_encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 `[B, L]`, embeddings `[V, W]` -> condition `[B, L, D]`, mask f32 `[B, L]`."""
        embedded = nn.functional.embedding(input_ids, embeddings)
        return self.lyric_encoder(inputs_embeds=embedded, attention_mask=attention_mask.bool()), attention_mask.float()


class UnpackedTimbreEncoder(nn.Module):
    """The timbre encoder for references that are not packed: one token for each."""

    def __init__(self, timbre_encoder: Any) -> None:
        super().__init__()
        # What the pipeline does with references of several songs in one row depends on their number.
        timbre_encoder.unpack_timbre_embeddings = lambda tokens, order: (tokens[:, None], order)
        self.timbre_encoder = timbre_encoder

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, T, C]` -> condition `[B, 1, D]`."""
        condition: Tensor = self.timbre_encoder(latents, torch.zeros(latents.shape[0], dtype=torch.int64))[0]
        return condition


def export_text_encoder(
    condition_encoder: Any, text_encoder: Any, tokenizer: Any, file: Path, tokenizer_file: Path
) -> dict[str, Any]:
    """Write the text's graph and the tokenizer; returns the entries of [text_encoder]."""
    _export_ids(ProjectedTextEncoder(text_encoder, condition_encoder.text_projector), file)
    tokenizer.backend_tokenizer.save(str(tokenizer_file))
    no_lyrics = tokenizer(lyrics_template().replace("{language}", "en").replace("{lyrics}", "")).input_ids
    return {
        "template": text_template(),
        "missing": "N/A",
        "max_tokens": MAX_TEXT_TOKENS,
        "prefix_tokens": len(no_lyrics) + 1,
        "order": ["lyrics", "timbre", "text"],
        "instructions": instructions(),
        "instruction_end": ":",
    }


def export_lyric_encoder(condition_encoder: Any, text_file: Path, file: Path) -> dict[str, Any]:
    """Write the lyrics' graph; returns the entries of [text_encoder.lyrics].

    Its embeddings are those of the text's graph `text_file`, in the same folder: where that one has them in a file of
    external data, both graphs read that file.
    """
    embeddings = _embeddings(onnx.load(text_file, load_external_data=False).graph)
    _export_ids(LyricEncoder(condition_encoder.lyric_encoder), file, {EMBEDDINGS_NAME: torch.empty(*embeddings.dims)})
    model = onnx.load(file, load_external_data=False)
    del model.graph.input[len(INPUT_NAMES)]
    embeddings.name = EMBEDDINGS_NAME
    model.graph.initializer.append(embeddings)
    file.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(file), full_check=True)
    return {"template": lyrics_template(), "max_tokens": MAX_LYRIC_TOKENS}


def _embeddings(graph: onnx.GraphProto) -> onnx.TensorProto:
    """The initializer that a graph's ids index."""
    (name,) = {node.input[0] for node in graph.node if node.op_type == "Gather" and node.input[1] == INPUT_NAMES[0]}
    return next(tensor for tensor in graph.initializer if tensor.name == name)


def export_timbre_encoder(condition_encoder: Any, frame_rate_hz: float, file: Path) -> dict[str, Any]:
    """Write the graph of references of 30 s; returns the entries of [timbre]."""
    frames = math.ceil(REFERENCE_S * frame_rate_hz)
    export_graph(
        UnpackedTimbreEncoder(condition_encoder.timbre_encoder),
        file,
        (torch.zeros(2, frames, condition_encoder.silence_latent.shape[-1]),),
        inputs=[REFERENCE_NAME],
        outputs=OUTPUT_NAMES[:1],
        dynamic_shapes=({0: free("batch", MAX_BATCH)},),
    )
    return {"frames": frames}


def _export_ids(module: nn.Module, file: Path, constants: Mapping[str, Tensor] = {}) -> None:
    """constants: more inputs, of these shapes."""
    batch, tokens = free("batch", MAX_BATCH), free("tokens")
    ids = torch.zeros(2, 7, dtype=torch.int64)
    export_graph(
        module,
        file,
        (ids, torch.ones_like(ids), *constants.values()),
        inputs=[*INPUT_NAMES, *constants],
        outputs=OUTPUT_NAMES,
        dynamic_shapes=({0: batch, 1: tokens}, {0: batch, 1: tokens}, *({} for _ in constants)),
    )


def text_template() -> str:
    """The pipeline's text with placeholders."""
    text = AceStepPipeline._format_prompt(
        AceStepPipeline,
        "{prompt}",
        instruction="{instruction}:",
        audio_duration=float(_ANY_LENGTH_S),
        bpm=_ANY_BPM,
        keyscale="{key}",
        timesignature="{time_signature}",
    )[0]
    found = {"{instruction}:": "{instruction}", str(_ANY_LENGTH_S): "{seconds}", str(_ANY_BPM): "{bpm}"}
    for old, new in found.items():
        text = text.replace(old, new)
    return str(text)


def lyrics_template() -> str:
    """The pipeline's text of lyrics with placeholders."""
    texts = AceStepPipeline._format_prompt(AceStepPipeline, "", lyrics="{lyrics}", vocal_language="{language}")
    return str(texts[1])


def instructions() -> dict[str, list[str]]:
    """The pipeline's instructions by task: with tracks, and without."""
    names = {"{TRACK_NAME}": "{track}", "{TRACK_CLASSES}": "{track_classes}"}
    found = {task: [TASK_INSTRUCTIONS.get(key) for key in (task, f"{task}_default")] for task in TASK_TYPES}
    for old, new in names.items():
        found = {task: [text and text.replace(old, new) for text in texts] for task, texts in found.items()}
    return {task: [text for text in texts if text] for task, texts in found.items()}
