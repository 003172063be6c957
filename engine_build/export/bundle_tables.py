"""What bundle.toml says of every family: its files, its latents, its codec. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtime.config.targets import Target

DECODER: Final = "decoder.onnx"
DECODE: Final = "codec_decode.onnx"
ENCODE: Final = "codec_encode.onnx"
TEXT_ENCODER: Final = "text_encoder.onnx"
TOKENIZER: Final = "tokenizer.json"
SILENCE: Final = "silence.npy"
NULL_CONDITION: Final = "null_condition.npy"

# Windows of 5 s halve the memory of Oobleck's decoder, for one sixth more work at the margins; of SAME's, 12 s.
WINDOW_FRAMES: Final = 128
OVERLAP_S: Final = 10.0
# Controls that are said in the caption.
SAID_CONTROLS: Final = {
    "density": {"words": ["sparse arrangement", "", "dense arrangement"]},
    "brightness": {"words": ["dark tone", "", "bright tone"]},
    "mute_bass": {"words": ["", "without bass"]},
    "mute_drums": {"words": ["", "without drums"]},
    "only_bass_and_drums": {"words": ["", "only bass and drums"]},
}


@dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """The content of bundle.toml that every family has. `canvas_s`: length of a full generation."""

    name: str
    description: str
    channels: int
    frame_rate_hz: float
    frame_multiple: int
    canvas_s: float
    sample_rate_hz: int
    audio_channels: int
    hop_samples: int
    decode_margin_frames: int
    encode_margin_frames: int
    align_frames: int = 1
    license: str = ""

    @property
    def canvas_frames(self) -> int:
        """Frames of a full generation, a multiple of frame_multiple."""
        return canvas_frames(self.canvas_s, self.frame_rate_hz, self.frame_multiple)

    @property
    def overlap_frames(self) -> int:
        """Frames that the next segment keeps: 10 s, at most a quarter of the canvas."""
        overlap = min(round(OVERLAP_S * self.frame_rate_hz), self.canvas_frames // 4)
        return max(overlap // self.frame_multiple, 1) * self.frame_multiple

    def even(self, frames: int) -> int:
        """`frames` rounded up to a multiple of frame_multiple."""
        return -(-frames // self.frame_multiple) * self.frame_multiple


def canvas_frames(canvas_s: float, frame_rate_hz: float, multiple: int) -> int:
    """Frames that hold `canvas_s` seconds: a multiple, at least one."""
    return max(math.ceil(canvas_s * frame_rate_hz / multiple - 1e-6), 1) * multiple


def model_tables(facts: FamilyFacts) -> dict[str, Mapping[str, Any]]:
    """The bundle's name, and [latents]."""
    license = {"license": facts.license} if facts.license else {}
    return {
        "": {
            "schema_version": 1,
            "name": facts.name,
            "family": "flow",
            **license,
            "description": facts.description,
        },
        "latents": {
            "channels": facts.channels,
            "frame_rate_hz": facts.frame_rate_hz,
            "frame_multiple": facts.frame_multiple,
            "canvas_frames": facts.canvas_frames,
        },
    }


def codec_tables(facts: FamilyFacts) -> dict[str, Mapping[str, Any]]:
    """[codec]. Margins are multiples, as windows are: a codec whose frames come in pairs sees whole pairs."""
    align = {"align_frames": facts.align_frames} if facts.align_frames > 1 else {}
    window = facts.even(WINDOW_FRAMES)
    return {
        "codec": {
            "sample_rate_hz": facts.sample_rate_hz,
            "channels": facts.audio_channels,
            "hop_samples": facts.hop_samples,
        },
        "codec.decode": {
            "graph": DECODE,
            "margin_frames": facts.even(facts.decode_margin_frames),
            "window_frames": window,
            **align,
            "inputs": {"latents": "latents"},
            "outputs": {"audio": "audio"},
        },
        "codec.encode": {
            "graph": ENCODE,
            "margin_frames": facts.even(facts.encode_margin_frames),
            "window_frames": window,
            **align,
            "inputs": {"audio": "audio"},
            "outputs": {"latents": "latents"},
        },
    }


def precision_text(target: Target) -> str:
    """The line of [build] for the precision on a target, with its end: the checkpoints' own on GPUs."""
    return "" if target == "cpu" else 'precision = "bf16"\n'
