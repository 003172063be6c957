"""What bundle.toml and a first deployment say of every family. Needs no torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_build.export.toml_text import table_text
from runtime.config.deployment import Target

DECODER: Final = "decoder.onnx"
DECODE: Final = "codec_decode.onnx"
ENCODE: Final = "codec_encode.onnx"
TEXT_ENCODER: Final = "text_encoder.onnx"
TOKENIZER: Final = "tokenizer.json"
SILENCE: Final = "silence.npy"
NULL_CONDITION: Final = "null_condition.npy"
VELOCITY: Final = "velocity"

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


Tables = dict[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """The content of bundle.toml that every family has.

    canvas_s: length of a full generation. inputs: the decoder's, by role. tokens: the fewest and the most of a
    condition; None: it has none, or is one vector. sample_rate_hz: of the codec, 0 without one. encode_margin_frames:
    None where the codec has no encoder. tables: further tables of bundle.toml, such as sampler.
    """

    name: str
    description: str
    channels: int
    frame_rate_hz: float
    canvas_s: float
    frame_multiple: int = 1
    inputs: Mapping[str, str] = field(default_factory=dict)
    tokens: Any = None
    has_null_condition: bool = False
    sample_rate_hz: int = 0
    audio_channels: int = 0
    hop_samples: int = 0
    decode_margin_frames: int = 0
    encode_margin_frames: int | None = None
    align_frames: int = 1
    license: str = ""
    text_encoder: Mapping[str, Any] | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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


def bundle_text(facts: FamilyFacts) -> str:
    """bundle.toml of a family that is not ours: what it says in `tables` is added, or replaces what is said here."""
    found = {**model_tables(facts), **decoder_tables(facts), **codec_tables(facts)}
    tables = {**found, "guidance": {"rule": "plain"}, "training": facts.figures}
    own = {name: {**tables.get(name, {}), **values} for name, values in facts.tables.items()}
    return toml({**tables, **own})


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A file of tables, those without a value left out."""
    return "\n".join(table_text(name, values) for name, values in tables.items() if values)


def model_tables(facts: FamilyFacts) -> Tables:
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


def decoder_tables(facts: FamilyFacts, silence: str | Sequence[float] | None = None) -> Tables:
    """[decoder], and [context] where it has one. silence: one frame or a file; default: zeros."""
    null = {"null_condition": NULL_CONDITION} if facts.has_null_condition else {}
    tables: Tables = {
        "decoder": {"graph": DECODER, **null},
        "decoder.inputs": facts.inputs,
        "decoder.outputs": {"velocity": VELOCITY},
    }
    if "context" in facts.inputs:
        zeros = [0.0] * facts.channels
        overlap = {"overlap_frames": facts.overlap_frames, "silence": zeros if silence is None else silence}
        tables["context"] = {"layout": "known+mask", **overlap}
    return tables


def codec_tables(facts: FamilyFacts) -> Tables:
    """[codec]. Margins are multiples, as windows are: a codec whose frames come in pairs sees whole pairs."""
    if not facts.sample_rate_hz:
        return {}
    tables: Tables = {
        "codec": {
            "sample_rate_hz": facts.sample_rate_hz,
            "channels": facts.audio_channels,
            "hop_samples": facts.hop_samples,
        },
        "codec.decode": _codec_half(facts, DECODE, facts.decode_margin_frames, "latents", "audio"),
    }
    if facts.encode_margin_frames is not None:
        tables["codec.encode"] = _codec_half(facts, ENCODE, facts.encode_margin_frames, "audio", "latents")
    return tables


def _codec_half(facts: FamilyFacts, graph: str, margin_frames: int, input: str, output: str) -> Mapping[str, Any]:
    align = {"align_frames": facts.align_frames} if facts.align_frames > 1 else {}
    return {
        "graph": graph,
        "margin_frames": facts.even(margin_frames),
        "window_frames": facts.even(WINDOW_FRAMES),
        **align,
        "inputs": {input: input},
        "outputs": {output: output},
    }


def shape_range(facts: FamilyFacts, first: int, last: int, tokens: Sequence[int] | None) -> Mapping[str, Any]:
    """One of [[shapes]]: at most four rows of `first` to `last` frames; tokens: the fewest and the most."""
    ranges = {"rows": (1, 2, 4), "frames": (first, last, last)}
    if tokens is not None:
        ranges["tokens"] = (tokens[0], max(min(tokens[1], 32), tokens[0]), tokens[1])
    return {name: dict(zip(("min", "opt", "max"), values, strict=True)) for name, values in ranges.items()}


def deployment_text(facts: FamilyFacts, bundle: Path, path: Path, target: Target = "cpu") -> str:
    """A small deployment of a family that is not ours, for canvases of all lengths."""
    shapes = [shape_range(facts, facts.frame_multiple, facts.canvas_frames, facts.tokens)]
    return small_deployment(facts, bundle, path, target, shapes)


def small_deployment(
    facts: FamilyFacts,
    bundle: Path,
    path: Path,
    target: Target,
    shapes: Iterable[Mapping[str, Any]],
    step_variants: Sequence[str] = (),
) -> str:
    """A deployment file at `path`, small, so that it runs where it was exported; on GPUs in bf16."""
    relative = Path(os.path.relpath(bundle, path.parent)).as_posix()
    precision = {} if target == "cpu" else {"precision": "bf16"}
    variants = {"step_variants": list(step_variants)} if step_variants else {}
    parts = [
        table_text("deployment", {"bundle": relative, "target": target}),
        *(table_text("[shapes]", each) for each in shapes),
        table_text("runtime", {"depth": 2, "queue": 8}),
        *([table_text("build", {**precision, **variants})] if precision or variants else []),
    ]
    head = f"# {facts.name} on {target}: to try the bundle. A server with a GPU has ranges for what it serves.\n"
    return "\n".join([head, *parts])
