"""The details of a dry run for a GPU target: shape ranges, options, missing packages. Needs no TensorRT and no GPU.

Without the bundle it shows what the deployment alone determines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import RebuildDecision
from engine_build.config import KINDS, ROWS_VARIANTS, RTX_OPTIONS, TENSORRT_OPTIONS, BuildConfig, PerKind, parse_variant
from engine_build.reports.console import size
from engine_build.reports.device_memory import MemoryPart
from engine_build.specs.engine_spec import Range
from engine_build.specs.engine_specs import adapted_ranges, decoder_ranges, tick_ranges
from runtime.base.errors import TickError
from runtime.commands.terminal import print_line
from runtime.config.deployment import HOST_TARGETS, Deployment, Target
from runtime.engines.adapters import ADAPTED_DECODER

SHOWN_OPTIONS = {
    "tensorrt": ("precision", *TENSORRT_OPTIONS, "timing_cache"),
    "tensorrt-rtx": ("precision", *RTX_OPTIONS),
    "cuda": ("precision", "optimization"),
}
LETTERS = {
    "R": "rows", "S": "slots", "T": "frames", "L": "tokens", "K": "conditions", "N": "negatives", "W": "samples",
    "Q": "rank", "Y": "codes", "U": "tokens per row", "G": "logits per row", "E": "cache slots", "Z": "sequences",
}  # fmt: skip
BUNDLE_ENGINES = (
    "codec_decode", "codec_encode", "text_encoder", "lyric_encoder", "timbre_encoder", "structure_encode",
    "structure_decode", "planner", "planner_draft", "sampler",
)  # fmt: skip
UNKNOWN = "unknown without the bundle"


@dataclass(frozen=True)
class EngineRanges:
    """One engine: its name and its shape ranges; None where the bundle defines them."""

    name: str
    ranges: tuple[Mapping[str, Range], ...] | None


def engine_ranges(decisions: Sequence[RebuildDecision]) -> list[EngineRanges]:
    """The ranges of all engines of a deployment with its bundle."""
    return [EngineRanges(decision.spec.name, decision.spec.ranges) for decision in decisions]


def ranges_without_bundle(deployment: Deployment, options: BuildConfig) -> list[EngineRanges]:
    """The ranges that the deployment alone determines; those of BUNDLE_ENGINES are the bundle's."""
    rows = tick_ranges(deployment, (), is_step=False)
    adapted = [EngineRanges(ADAPTED_DECODER, adapted_ranges(deployment))] if deployment.runtime.adapter_rank else []
    return [
        EngineRanges("decoder", decoder_ranges(deployment)),
        *adapted,
        *(EngineRanges(f"rows.{name}", rows) for name in ROWS_VARIANTS),
        *(
            EngineRanges(f"step.{name}", tick_ranges(deployment, parse_variant(name), is_step=True))
            for name in options.step_variants
        ),
        *(EngineRanges(name, None) for name in BUNDLE_ENGINES),
    ]


def print_details(
    console: Console,
    target: Target,
    engines: Sequence[EngineRanges],
    options: BuildConfig,
    environment: BuildEnvironment,
) -> None:
    """Shape ranges per engine, options, what is missing on this machine and how to install it."""
    print_line("shape ranges (min..opt..max):", console)
    for names, ranges in _grouped(engines):
        print_line(f"  {names}", console)
        lines = [UNKNOWN] if ranges is None else [_range_text(item) for item in ranges]
        for line in lines:
            print_line(f"    {line}", console)
    chosen = ((name, getattr(options, name)) for name in SHOWN_OPTIONS[target])
    print_line("options: " + ", ".join(f"{name} = {_value(value)}" for name, value in chosen), console)
    if environment.missing is not None:
        print_missing(console, "missing here", environment.missing)
    else:
        where = {**environment.tool_versions, **environment.facts}
        print_line("this machine: " + ", ".join(f"{name} {value}" for name, value in where.items()), console)


def print_memory(console: Console, target: Target, parts: Sequence[MemoryPart]) -> None:
    """What the deployment is expected to take of the device, or on the CPU of the process, and the sum."""
    where = "of the process" if target in HOST_TARGETS else "on the device"
    print_line(f"memory {where}, as expected on the target {target}:", console)
    total = MemoryPart("total", sum(part.size_bytes for part in parts), "")
    for part in (*parts, total):
        print_line(f"  {part.name:<10}  {size(part.size_bytes):>9}  {part.what}".rstrip(), console)


def print_engines_unknown(console: Console, engines: Sequence[EngineRanges], error: TickError) -> None:
    """The engines that would be built, and the command that makes the bundle."""
    print_line("engines (graphs, sizes and memory are unknown without the bundle):", console)
    for engine in engines:
        note = "" if engine.ranges is not None else "  (where the bundle has one)"
        print_line(f"  {engine.name}{note}", console)
    print_missing(console, "bundle", error)


def print_missing(console: Console, what: str, error: TickError) -> None:
    """What is missing, and how to get it."""
    print_line(f"{what}: {error.what}", console)
    if error.fix:
        print_line(f"  fix: {error.fix}", console)


def _grouped(engines: Sequence[EngineRanges]) -> Iterator[tuple[str, tuple[Mapping[str, Range], ...] | None]]:
    """Engines grouped by kind and ranges, in order."""
    groups: dict[str, list[EngineRanges]] = {}
    for engine in engines:
        kind = engine.name.partition(".")[0] if engine.ranges is not None else ""
        groups.setdefault(f"{kind} {engine.ranges}", []).append(engine)
    for group in groups.values():
        yield ", ".join(engine.name for engine in group), group[0].ranges


def _range_text(ranges: Mapping[str, Range]) -> str:
    shown = {LETTERS[letter]: limits for letter, limits in ranges.items() if letter in LETTERS and limits != (1, 1, 1)}
    return ", ".join(f"{name} {low}..{usual}..{high}" for name, (low, usual, high) in shown.items())


def _value(value: Any) -> str:
    """As TOML writes it, per kind of engine where they differ; an option that is not set is TensorRT's choice."""
    if isinstance(value, PerKind):
        first, *others = values = [getattr(value, kind) for kind in KINDS]
        if any(other != first for other in others):
            return ", ".join(f"{kind} {_value(one)}" for kind, one in zip(KINDS, values, strict=True))
        value = first
    return "TensorRT's choice" if value is None else str(value).lower()
