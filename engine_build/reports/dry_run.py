"""What a build of plans would do: shape ranges, options, what is missing here. Needs neither TensorRT nor a GPU.

Without the bundle it says what can be known without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from engine_build.build.engine_specs import Range, decoder_ranges, tick_ranges
from engine_build.build.environment import Place
from engine_build.build.rebuild_check import Decision
from engine_build.build.worker import TENSORRT_OPTIONS
from engine_build.config import ROWS_VARIANTS, BuildConfig, parse_variant
from runtime.config.deployment import Deployment, Target
from runtime.errors import TickError

SHOWN_OPTIONS = {
    "tensorrt": ("precision", "codec_precision", *TENSORRT_OPTIONS, "timing_cache"),
    "cuda": ("precision", "codec_precision", "tf32", "optimization"),
}
LETTERS = {
    "R": "rows", "S": "slots", "T": "frames", "L": "tokens", "K": "conditions", "N": "negatives", "W": "samples",
}  # fmt: skip
UNKNOWN = "unknown until the bundle is there"


@dataclass(frozen=True)
class Outline:
    """One engine: its name and its shape ranges; None where only the bundle knows them."""

    name: str
    ranges: tuple[Mapping[str, Range], ...] | None


def outlines_of(decisions: Sequence[Decision]) -> list[Outline]:
    """Of engines whose graphs are there."""
    return [Outline(decision.job.name, decision.job.ranges) for decision in decisions]


def outlines_without_bundle(deployment: Deployment, options: BuildConfig) -> list[Outline]:
    """What the deployment alone says; codec and text_encoder are the bundle's."""
    rows = tick_ranges(deployment, (), is_step=False)
    return [
        Outline("decoder", decoder_ranges(deployment)),
        *(Outline(f"rows.{name}", rows) for name in ROWS_VARIANTS),
        *(
            Outline(f"step.{name}", tick_ranges(deployment, parse_variant(name), is_step=True))
            for name in options.step_variants
        ),
        *(Outline(name, None) for name in ("codec_decode", "codec_encode", "text_encoder")),
    ]


def print_outline(
    console: Console, target: Target, outlines: Sequence[Outline], options: BuildConfig, place: Place
) -> None:
    """Shape ranges per engine, options, what is missing on this machine and what gets it."""
    _print(console, "shape ranges (min..opt..max):")
    for names, ranges in _grouped(outlines):
        _print(console, f"  {names}")
        lines = [UNKNOWN] if ranges is None else [_range_text(item) for item in ranges]
        for line in lines:
            _print(console, f"    {line}")
    chosen = ((name, getattr(options, name)) for name in SHOWN_OPTIONS[target])
    _print(console, "options: " + ", ".join(f"{name} = {_value(value)}" for name, value in chosen))
    if place.missing is not None:
        print_missing(console, "missing here", place.missing)
    else:
        where = {**place.tool_versions, **place.facts}
        _print(console, "here: " + ", ".join(f"{name} {value}" for name, value in where.items()))


def print_engines_unknown(console: Console, outlines: Sequence[Outline], error: TickError) -> None:
    """The engines that would be built, without their graphs, and the command that makes the bundle."""
    _print(console, "engines (graphs, sizes and memory are unknown until the bundle is there):")
    for outline in outlines:
        note = "" if outline.ranges is not None else "  (where the bundle has one)"
        _print(console, f"  {outline.name}{note}")
    print_missing(console, "bundle", error)


def print_missing(console: Console, what: str, error: TickError) -> None:
    """What is missing, and what gets it."""
    _print(console, f"{what}: {error.what}")
    if error.fix:
        _print(console, f"  fix: {error.fix}")


def _grouped(outlines: Sequence[Outline]) -> Iterator[tuple[str, tuple[Mapping[str, Range], ...] | None]]:
    """Engines with equal ranges together, in order."""
    groups: dict[str, list[Outline]] = {}
    for outline in outlines:
        groups.setdefault(f"{outline.name.partition('.')[0]} {outline.ranges}", []).append(outline)
    for group in groups.values():
        yield ", ".join(outline.name for outline in group), group[0].ranges


def _range_text(ranges: Mapping[str, Range]) -> str:
    shown = {LETTERS[letter]: limits for letter, limits in ranges.items() if letter in LETTERS and limits != (1, 1, 1)}
    return ", ".join(f"{name} {low}..{usual}..{high}" for name, (low, usual, high) in shown.items())


def _value(value: Any) -> str:
    """As TOML writes it; what is not set is TensorRT's own choice."""
    return "TensorRT's choice" if value is None else str(value).lower()


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
