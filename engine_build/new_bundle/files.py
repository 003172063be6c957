"""bundle.toml and deployment.toml of a model whose tensors have their roles."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_build.export.toml_text import table_text
from engine_build.new_bundle.probe import CodecFacts, FrameCounts
from engine_build.new_bundle.roles import AssignedRole

CANVAS_S = 10.0
DEPTH = 4
FREE_TOKENS = {"min": 1, "opt": 16, "max": 64}


@dataclass(frozen=True)
class ModelFacts:
    """What the two files say. `codec_roles` and `codec` go together; graphs are where the user has them."""

    graph: Path
    roles: Mapping[str, AssignedRole]
    counts: FrameCounts
    frame_rate_hz: float
    codec_graph: Path | None = None
    codec_roles: Mapping[str, AssignedRole] | None = None
    codec: CodecFacts | None = None

    @property
    def name(self) -> str:
        """The graph's file name as a bundle's name."""
        return re.sub(r"[^a-z0-9.-]+", "-", self.graph.stem.lower()).strip("-.") or "model"

    @property
    def channels(self) -> int:
        """C."""
        return int(self.roles["velocity"].tensor.shape[2])

    @property
    def frame_multiple(self) -> int:
        """What T is a multiple of."""
        return self.counts.multiple

    @property
    def least_frames(self) -> int:
        """The smallest T."""
        return -(-self.counts.shortest // self.frame_multiple) * self.frame_multiple

    @property
    def canvas_frames(self) -> int:
        """T where the graph fixes it, else about CANVAS_S."""
        fixed = self.roles["latents"].tensor.shape[1]
        if isinstance(fixed, int):
            return fixed
        usual = round(CANVAS_S * self.frame_rate_hz / self.frame_multiple) * self.frame_multiple
        return max(usual, self.least_frames)


def bundle_text(facts: ModelFacts, folder: Path) -> str:
    """bundle.toml in `folder`."""
    names = {role: choice.tensor.name for role, choice in facts.roles.items()}
    tables: dict[str, Mapping[str, Any]] = {
        "": {"schema_version": 1, "name": facts.name, "family": "flow"},
        "latents": {
            "channels": facts.channels,
            "frame_rate_hz": facts.frame_rate_hz,
            "frame_multiple": facts.frame_multiple,
            "canvas_frames": facts.canvas_frames,
        },
        "decoder": {"graph": _relative(facts.graph, folder)},
        "decoder.inputs": {role: name for role, name in names.items() if role != "velocity"},
        "decoder.outputs": {"velocity": names["velocity"]},
        "guidance": {"rule": "plain"},
    }
    if "context" in names:
        overlap = max(facts.canvas_frames // 4 // facts.frame_multiple, 1) * facts.frame_multiple
        tables["context"] = {"silence": [0.0] * facts.channels, "overlap_frames": overlap}
    if facts.codec is not None and facts.codec_roles is not None and facts.codec_graph is not None:
        tables |= _codec_tables(
            facts.codec, facts.codec_roles, facts.frame_rate_hz, _relative(facts.codec_graph, folder)
        )
    return "\n".join(table_text(name, values) for name, values in tables.items())


def deployment_text(facts: ModelFacts) -> str:
    """deployment.toml beside the bundle: on the CPU, DEPTH generations at a time, each with room for guidance."""
    rows = facts.roles["latents"].tensor.shape[0]
    frames, canvas = facts.roles["latents"].tensor.shape[1], facts.canvas_frames
    least = canvas if isinstance(frames, int) else facts.least_frames
    most = DEPTH if "condition" not in facts.roles else 2 * DEPTH
    shapes = {
        "rows": _fixed(rows) if isinstance(rows, int) else {"min": 1, "opt": DEPTH, "max": most},
        "frames": {"min": least, "opt": canvas, "max": canvas},
    }
    if "condition" in facts.roles and len(facts.roles["condition"].tensor.shape) == 3:
        tokens = facts.roles["condition"].tensor.shape[1]
        shapes["tokens"] = _fixed(tokens) if isinstance(tokens, int) else FREE_TOKENS
    tables: dict[str, Mapping[str, Any]] = {
        "deployment": {"bundle": ".", "target": "cpu"},
        "[shapes]": shapes,
        "runtime": {"depth": DEPTH},
    }
    return "\n".join(table_text(name, values) for name, values in tables.items())


def _codec_tables(
    codec: CodecFacts, roles: Mapping[str, AssignedRole], frame_rate_hz: float, graph: str
) -> dict[str, Mapping[str, Any]]:
    inputs = {role: choice.tensor.name for role, choice in roles.items() if role != "audio"}
    return {
        "codec": {
            "sample_rate_hz": round(frame_rate_hz * codec.hop_samples),
            "channels": codec.channels,
            "hop_samples": codec.hop_samples,
        },
        "codec.decode": {
            "graph": graph,
            "margin_frames": codec.margin_frames,
            **({"align_frames": codec.align_frames} if codec.align_frames > 1 else {}),
            **({"shortest_frames": codec.shortest_frames} if codec.shortest_frames > 1 else {}),
            "inputs": inputs,
            "outputs": {"audio": roles["audio"].tensor.name},
        },
    }


def _fixed(size: int) -> dict[str, int]:
    return {"min": size, "opt": size, "max": size}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
