"""tickrt-build init: guess, say what was guessed and why, write bundle.toml and deployment.toml."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from engine_build.export.bundle_tables import table_text
from engine_build.graphs.graph_file import read_graph
from engine_build.new_bundle.probe import LIMIT, CodecFacts, FrameCounts, frame_counts, measured_codec
from engine_build.new_bundle.roles import AssignedRole, codec_roles, decoder_roles, listed
from runtime.base.errors import ConfigError, FileError
from runtime.commands.terminal import print_line, shown_path
from runtime.config.bundle import BUNDLE_FILE
from runtime.engines.manifest import TensorInfo

DEPLOYMENT_FILE = "deployment.toml"
FRAME_RATE_HZ = 25.0
SAMPLE_RATE_HZ = 48_000
AUDIBLE = 1e-3  # of the peak: -60 dB
CONVENTIONS = (
    "assumed, because no graph says it: time runs from 1 (noise) to 0 (data), and velocity = noise - data; a model with"
    " another sign needs a Neg node before its output; guidance is plain, [guidance] of bundle.toml has other rules"
)


CANVAS_S = 10.0
DEPTH = 4
FREE_TOKENS = {"min": 1, "opt": 16, "max": 64}


@dataclass(frozen=True)
class InitOptions:
    """The arguments of one call. frame_rate_hz, sample_rate_hz: None where they are not given."""

    model: Path
    codec: Path | None
    out: Path
    roles: Mapping[str, str]
    frame_rate_hz: float | None
    sample_rate_hz: int | None
    force: bool


def init(options: InitOptions) -> None:
    """Write bundle.toml and deployment.toml into a folder. Raises ConfigError, BuildError, FileError."""
    paths = [options.out / BUNDLE_FILE, options.out / DEPLOYMENT_FILE]
    for path in paths:
        if path.exists() and not options.force:
            raise FileError(f"{path} exists and is not replaced", fix="--out FOLDER for another place, or --force")
    facts, assumed = gather(options)
    _print_roles(facts)
    for text in (*assumed, CONVENTIONS):
        print_line(f"  {text}")
    options.out.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, (bundle_toml(facts, options.out), deployment_toml(facts)), strict=True):
        with path.open("w" if options.force else "x", encoding="utf-8") as file:
            file.write(text)
    _print_next(facts, paths)


def gather(options: InitOptions) -> tuple[ModelFacts, list[str]]:
    """The model's facts, and texts on those that neither the graphs nor the options say."""
    graph = read_graph(options.model)
    roles = decoder_roles(graph, options.roles, ask_for_tensor)
    rows = roles["latents"].tensor.shape[0]
    if isinstance(rows, int) and rows > 1:
        raise ConfigError(
            f"{graph.label}: its first axis is fixed at {rows} rows, and a tick of one generation has one",
            fix="export it with a dynamic first axis, or with 1",
        )
    counts, assumed = frame_counts(graph, roles), list[str]()
    channels = int(roles["velocity"].tensor.shape[2])
    if "context" in roles:
        assumed.append("assumed: silence in [context] is zeros; a model whose silence is another frame needs that")
    if options.codec is None:
        rate_hz = options.frame_rate_hz or FRAME_RATE_HZ
        if options.frame_rate_hz is None:
            assumed.append(f"assumed: {rate_hz:g} frames per second; --frame-rate HZ gives another rate")
        return ModelFacts(options.model, roles, counts, rate_hz), assumed
    codec_graph = read_graph(options.codec)
    decode = codec_roles(codec_graph, channels)
    codec = measured_codec(codec_graph, decode, channels)
    rate_hz = options.frame_rate_hz or (options.sample_rate_hz or SAMPLE_RATE_HZ) / codec.hop_samples
    if options.frame_rate_hz is None and options.sample_rate_hz is None:
        assumed.append(f"assumed: {SAMPLE_RATE_HZ} samples per second; --sample-rate HZ gives another rate")
    assumed.append(measured_text(codec))
    counts = counts._replace(multiple=math.lcm(counts.multiple, codec.align_frames))
    return ModelFacts(options.model, roles, counts, rate_hz, options.codec, decode, codec), assumed


def measured_text(codec: CodecFacts) -> str:
    """What was measured of a codec, and what its windows are worth."""
    facts = [f"{codec.channels} channels", f"{codec.hop_samples} samples per frame"]
    facts.append(f"a frame of latents changes {codec.reach_frames} frames on each side")
    if codec.align_frames > 1:
        facts.append(f"it works in groups of {codec.align_frames} frames, so that windows begin at multiples of it")
    if codec.shortest_frames > 1:
        facts.append(f"it takes {codec.shortest_frames} frames at least, to which shorter audio is padded")
    if codec.margin_frames < codec.reach_frames or not codec.error <= LIMIT:
        differ = f"windows with {codec.margin_frames} frames on each side differ from the whole by {codec.error:.0e}"
        facts.append(f"{differ} of its peak{', which is heard' if not codec.error <= AUDIBLE else ''}")
    return f"measured: {', '.join(facts)}"


def ask_for_tensor(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
    """The tensor that the user names for a role; None for none. Raises ConfigError where there is no terminal."""
    names = [info.name for info in fitting]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        what = "several tensors may be" if len(names) > 1 else "by its name something else, by its shape"
        raise ConfigError(
            f"{what} the {role}: {listed(fitting)}",
            fix=f"--role {role}={names[0]}, or the name of another one",
        )
    print_line(f"{role} may be: {listed(fitting)}")
    name = typer.prompt(f"{role} (empty for none)", default="", show_default=False).strip()
    if name and name not in names:
        raise ConfigError(f"{role} is {name!r}, expected one of {', '.join(names)}", fix=f"--role {role}=NAME")
    return next((info for info in fitting if info.name == name), None)


def parse_roles(texts: Sequence[str]) -> dict[str, str]:
    """ROLE=NAME -> role and tensor name. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts:
        role, is_pair, name = text.partition("=")
        if not is_pair or not name or role in found:
            raise ConfigError(f"--role {text}: expected ROLE=NAME, once per role", fix="--role latents=hidden_states")
        found[role] = name
    return found


def _print_roles(facts: ModelFacts) -> None:
    least = f", {facts.least_frames} at least" if facts.least_frames > facts.frame_multiple else ""
    print_line(f"{facts.graph}: a velocity decoder, for multiples of {facts.frame_multiple} frames{least}")
    for part, roles in (("", facts.roles), ("codec ", facts.codec_roles or {})):
        for role, choice in roles.items():
            print_line(f"  {part}{role}: {listed([choice.tensor])} ({choice.reason})")


def _print_next(facts: ModelFacts, paths: Sequence[Path]) -> None:
    config = shown_path(paths[1])
    condition = " --condition TOKENS.npy" if "condition" in facts.roles else ""
    suffix = "safetensors" if facts.codec is None else "wav"
    print_line(f"written: {', '.join(shown_path(path) for path in paths)}")
    print_line(f"next: tickrt-build {config}")
    print_line(f"then: tickrt-generate {config}{condition} --out out.{suffix}")


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


def bundle_toml(facts: ModelFacts, folder: Path) -> str:
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


def deployment_toml(facts: ModelFacts) -> str:
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
