"""What bundle.toml and a first deployment say of every family. Needs no torch."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime.config.deployment import HOST_TARGETS, Target

DECODER: Final = "decoder.onnx"
DECODE: Final = "codec_decode.onnx"
ENCODE: Final = "codec_encode.onnx"
TEXT_ENCODER: Final = "text_encoder.onnx"
TOKENIZER: Final = "tokenizer.json"
SILENCE: Final = "silence.npy"
NULL_CONDITION: Final = "null_condition.npy"
VELOCITY: Final = "velocity"
# Of diffusers' decoders, by role.
INPUTS: Final = {
    "latents": "hidden_states",
    "time": "timestep",
    "condition": "encoder_hidden_states",
    "condition_mask": "condition_mask",
    "context": "context_latents",
}
# Of decoders that jump, besides.
JUMP_INPUTS: Final = {"time_end": "timestep_r", "guidance": "guidance"}
# Of the graphs of texts and lyrics.
TEXT_INPUTS: Final = {"tokens": "input_ids", "mask": "attention_mask"}
TEXT_OUTPUTS: Final = {"condition": "condition", "mask": "condition_mask"}

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
    """The content of bundle.toml that every family has; a family of ours has a class of its own with more.

    canvas_s: length of a full generation. inputs: the decoder's, by role. tokens: the fewest and the most of a
    condition; None: it has none, or is one vector. sample_rate_hz: of the codec, 0 without one. encode_margin_frames:
    None where the codec has no encoder. adapters: the matrices of [adapters]. tables: further tables of bundle.toml,
    such as sampler.
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
    adapters: Mapping[str, Any] = field(default_factory=dict)
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

    def bundle_text(self) -> str:
        """bundle.toml: what a family says in `tables` is added, or replaces what is said elsewhere."""
        found = self._model_tables()
        for more in (self.family_tables(), self.tables):
            found |= {name: {**found.get(name, {}), **values} for name, values in more.items()}
        return "\n".join(table_text(name, values) for name, values in found.items() if values)

    def family_tables(self) -> Tables:
        """The tables behind those of the model, the decoder and the codec, and further keys of these."""
        return {"guidance": {"rule": "plain"}, "training": self.figures}

    def context_silence(self) -> str | Sequence[float]:
        """Of [context], one frame or a file."""
        return [0.0] * self.channels

    def shapes(self) -> list[Mapping[str, Any]]:
        """The ranges [[shapes]] of a first deployment: canvases of all lengths."""
        return [self.shape_range(self.frame_multiple, self.canvas_frames, self.tokens)]

    def step_variants(self) -> Sequence[str]:
        """Sets of step features that have graphs of their own in a first deployment."""
        return ()

    def deployment_text(self, bundle: Path, path: Path, target: Target = "cpu") -> str:
        """A deployment file at `path`, small, so that it runs where it was exported; on GPUs in bf16."""
        relative = Path(os.path.relpath(bundle, path.parent)).as_posix()
        precision = {} if target in HOST_TARGETS else {"precision": "bf16"}
        variants = {"step_variants": list(self.step_variants())} if self.step_variants() else {}
        parts = [
            table_text("deployment", {"bundle": relative, "target": target}),
            *(table_text("[shapes]", each) for each in self.shapes()),
            table_text("runtime", {"depth": 2, "queue": 8}),
            *([table_text("build", {**precision, **variants})] if precision or variants else []),
        ]
        head = f"# {self.name} on {target}: to try the bundle. A server with a GPU has ranges for what it serves.\n"
        return "\n".join([head, *parts])

    def shape_range(self, first: int, last: int, tokens: Sequence[int] | None) -> Mapping[str, Any]:
        """One of [[shapes]]: at most four rows of `first` to `last` frames; tokens: the fewest and the most."""
        ranges = {"rows": (1, 2, 4), "frames": (first, last, last)}
        if tokens is not None:
            ranges["tokens"] = (tokens[0], max(min(tokens[1], 32), tokens[0]), tokens[1])
        return {name: dict(zip(("min", "opt", "max"), values, strict=True)) for name, values in ranges.items()}

    def adapter_tables(self, **tables: Mapping[str, Any]) -> Tables:
        """[adapters]: these tables and the matrices, as far as they have something."""
        found = {**tables, "matrices": self.adapters} if self.adapters else {}
        return {f"adapters.{name}": values for name, values in found.items() if values}

    def _model_tables(self) -> Tables:
        """Name, [latents], [decoder], [context] where it has one, [codec]."""
        license = {"license": self.license} if self.license else {}
        null = {"null_condition": NULL_CONDITION} if self.has_null_condition else {}
        tables: Tables = {
            "": {
                "schema_version": 1,
                "name": self.name,
                "family": "flow",
                **license,
                "description": self.description,
            },
            "latents": {
                "channels": self.channels,
                "frame_rate_hz": self.frame_rate_hz,
                "frame_multiple": self.frame_multiple,
                "canvas_frames": self.canvas_frames,
            },
            "decoder": {"graph": DECODER, **null},
            "decoder.inputs": self.inputs,
            "decoder.outputs": {"velocity": VELOCITY},
        }
        if "context" in self.inputs:
            overlap = {"overlap_frames": self.overlap_frames, "silence": self.context_silence()}
            tables["context"] = {"layout": "known+mask", **overlap}
        if self.sample_rate_hz:
            tables["codec"] = {
                "sample_rate_hz": self.sample_rate_hz,
                "channels": self.audio_channels,
                "hop_samples": self.hop_samples,
            }
            tables["codec.decode"] = self._codec_half(DECODE, self.decode_margin_frames, "latents", "audio")
        if self.encode_margin_frames is not None:
            tables["codec.encode"] = self._codec_half(ENCODE, self.encode_margin_frames, "audio", "latents")
        return tables

    def _codec_half(self, graph: str, margin_frames: int, input: str, output: str) -> Mapping[str, Any]:
        """Margins are multiples, as windows are: a codec whose frames come in pairs sees whole pairs."""
        align = {"align_frames": self.align_frames} if self.align_frames > 1 else {}
        margin, window = (
            -(-frames // self.frame_multiple) * self.frame_multiple for frames in (margin_frames, WINDOW_FRAMES)
        )
        sizes = {"margin_frames": margin, "window_frames": window, **align}
        return {"graph": graph, **sizes, "inputs": {input: input}, "outputs": {output: output}}


def canvas_frames(canvas_s: float, frame_rate_hz: float, multiple: int) -> int:
    """Frames that hold `canvas_s` seconds: a multiple, at least one."""
    return max(math.ceil(canvas_s * frame_rate_hz / multiple - 1e-6), 1) * multiple


def table_text(name: str, values: Mapping[str, Any]) -> str:
    """One TOML table."""
    header = f"[{name}]\n" if name else ""
    return header + "".join(f"{_key(key)} = {value_text(value)}\n" for key, value in values.items())


def value_text(value: Any) -> str:
    """One TOML value, also of one of NumPy's; JSON's strings are TOML's basic strings."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {value_text(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(inner) for inner in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)
