"""tickrt-build init: guess, say what was guessed and why, write the two files."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from engine_build.graphs.graph_file import read_graph
from engine_build.new_bundle.files import ModelFacts, bundle_text, deployment_text
from engine_build.new_bundle.probe import LIMIT, CodecFacts, codec_facts, frame_counts
from engine_build.new_bundle.roles import codec_roles, decoder_roles, listed
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
    for path, text in zip(paths, (bundle_text(facts, options.out), deployment_text(facts)), strict=True):
        with path.open("w" if options.force else "x", encoding="utf-8") as file:
            file.write(text)
    _print_next(facts, paths)


def gather(options: InitOptions) -> tuple[ModelFacts, list[str]]:
    """The model's facts, and texts on those that neither the graphs nor the options say."""
    graph = read_graph(options.model)
    roles = decoder_roles(graph, options.roles, ask)
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
    codec = codec_facts(codec_graph, decode, channels)
    rate_hz = options.frame_rate_hz or (options.sample_rate_hz or SAMPLE_RATE_HZ) / codec.hop_samples
    if options.frame_rate_hz is None and options.sample_rate_hz is None:
        assumed.append(f"assumed: {SAMPLE_RATE_HZ} samples per second; --sample-rate HZ gives another rate")
    assumed.append(measured(codec))
    counts = counts._replace(multiple=math.lcm(counts.multiple, codec.align_frames))
    return ModelFacts(options.model, roles, counts, rate_hz, options.codec, decode, codec), assumed


def measured(codec: CodecFacts) -> str:
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


def ask(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
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
