"""Profiles as tables, in the terminal and as Markdown, with the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from profiling.layers.kinds import KINDS
from profiling.layers.rollups import Blocks, RollupRow, by_block, by_kind, by_module
from profiling.layers.timings import LayerTiming, Profile
from profiling.layers.work import EXCEEDED
from runtime.commands.terminal import markdown_table, markdown_text, print_table

MODULE_ROWS = 20
# Layers of these operators are shown without their contents; TensorRT's kernels with them.
ONNX_OPERATORS = frozenset(name for names in KINDS.values() for name in names if name[0].isupper())
MAX_CONTENTS = 8


@dataclass(frozen=True)
class TextTable:
    """A table as text: the first `num_text` columns are text, the others numbers. `note` is printed below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text: int = 1
    note: str = ""


def text_tables(profile: Profile, top: int, depth: int) -> Iterator[TextTable]:
    """All tables of a report."""
    yield wall_table(profile)
    yield rollup_table("by kind", by_kind(profile), profile)
    modules = by_module(profile, depth)
    yield rollup_table("by module", _shortened(modules, MODULE_ROWS), profile)
    for blocks in by_block(profile):
        yield block_table(blocks)
    yield layer_table(profile, top)


def wall_table(profile: Profile) -> TextTable:
    """Wall time, the sum of layers, and their difference."""
    rows = (
        ("wall time of an execute, p50", _ms(profile.wall.p50_ms)),
        ("wall time of an execute, p95", _ms(profile.wall.p95_ms)),
        (f"medians of {len(profile.layers)} layers, summed", _ms(profile.layer_medians_ms)),
        (f"sum of {len(profile.layers)} layers, p50", _ms(profile.layer_sum_p50_ms)),
        (profile.gap_name, _ms(profile.gap_ms)),
    )
    notes = ("wall time is measured without the profiler; the sum of layers is not the latency", *profile.notes)
    return TextTable(f"{profile.engine}: {profile.runs} executes", ("", "ms"), rows, note="\n".join(notes))


def rollup_table(title: str, rows: Sequence[RollupRow], profile: Profile) -> TextTable:
    """A rollup with its sum."""
    lines = [(row.name, _ms(row.ms), f"{row.share:.1%}", str(row.layers)) for row in rows]
    shares = sum(row.share for row in rows)
    lines.append(("sum", _ms(sum(row.ms for row in rows)), f"{shares:.1%}", str(len(profile.layers))))
    return TextTable(title, (title.removeprefix("by "), "ms", "share", "layers"), tuple(lines))


def block_table(blocks: Blocks) -> TextTable:
    """Equal blocks, a column for each; medians."""
    rows = [(name, *map(_ms, part.median_ms)) for name, part in blocks.parts.items()]
    rows.append(("sum", *map(_ms, blocks.whole.median_ms)))
    columns = ("part", *(str(index) for index in blocks.indices))
    return TextTable(f"blocks of {blocks.prefix}, ms", columns, tuple(rows), note=blocks.verdict)


def layer_table(profile: Profile, top: int) -> TextTable:
    """The layers with the longest medians, with their rooflines where the work is known."""
    slowest = sorted(profile.layers, key=lambda layer: -layer.median_ms)[:top]
    columns: tuple[str, ...] = ("layer", "kind", "ms", "share", "GFLOP/s", "GB/s")
    columns += ("bound", "of roof") if profile.ceilings else ()
    rows = tuple(_layer_row(layer, profile)[: len(columns)] for layer in slowest)
    title = f"slowest {len(slowest)} of {len(profile.layers)} layers, medians; speeds of the fastest execute"
    note = "" if profile.ceilings is None else f"roof: {ceilings_text(profile)}"
    if any(is_exceeded(layer, profile) for layer in slowest):
        note += f"\n{EXCEEDED}"
    return TextTable(title, columns, rows, num_text=2, note=note)


def is_exceeded(layer: LayerTiming, profile: Profile) -> bool:
    """Whether a layer is faster than its ceiling."""
    roof = layer.roof(profile.ceilings)
    return roof is not None and roof.reached is not None and round(roof.reached, 2) > 1.0


def ceilings_text(profile: Profile) -> str:
    """The ceilings as text; empty without any."""
    top = profile.ceilings
    if top is None:
        return ""
    return f"{top.flops_per_s / 1e9:.1f} GFLOP/s, {top.bytes_per_s / 1e9:.1f} GB/s ({top.source})"


def contents_text(layer: LayerTiming) -> str:
    """The operators in a fused layer: 'Div 2, Mul 3'; empty for a single operator."""
    if len(layer.contents) < 2:
        return ""
    counts = {name: layer.contents.count(name) for name in sorted(layer.contents)}
    shown = [name if count == 1 else f"{name} {count}" for name, count in counts.items()]
    return ", ".join(shown[:MAX_CONTENTS]) + (", ..." if len(shown) > MAX_CONTENTS else "")


def show(profile: Profile, top: int, depth: int, console: Console) -> None:
    """Print all tables."""
    for table in text_tables(profile, top, depth):
        print_table(console, table.title, table.columns, table.rows, table.num_text)
        if table.note:
            console.print(table.note, markup=False, highlight=False)
            console.print()


def profile_markdown(profile: Profile, top: int, depth: int) -> str:
    """All tables as Markdown."""
    return "\n".join(_markdown(table) for table in text_tables(profile, top, depth))


def _markdown(table: TextTable) -> str:
    lines = [f"### {markdown_text(table.title)}", "", *markdown_table(table.columns, table.rows, table.num_text)]
    return "\n".join([*lines, *(f"\n*{markdown_text(line)}*" for line in table.note.splitlines()), ""])


def _layer_row(layer: LayerTiming, profile: Profile) -> tuple[str, ...]:
    roof = layer.roof(profile.ceilings)
    held = "" if layer.op_type in ONNX_OPERATORS else contents_text(layer)
    times = (_ms(layer.median_ms), f"{layer.share:.1%}")
    name = f"{layer.name}: {layer.op_type}" + (f" of {held}" if held else "")
    speeds = ("", "") if roof is None else (_speed(roof.flops_per_s), _speed(roof.bytes_per_s))
    reached = "" if roof is None or roof.reached is None else f"{roof.reached:.0%}"
    return name, layer.kind, *times, *speeds, (roof.bound or "") if roof else "", reached


def _shortened(rows: Sequence[RollupRow], limit: int) -> list[RollupRow]:
    """The first rows, and one row for the sum of all others."""
    head, rest = list(rows[:limit]), rows[limit:]
    if rest:
        name = f"({len(rest)} more)"
        head.append(RollupRow(name, sum(r.ms for r in rest), sum(r.share for r in rest), sum(r.layers for r in rest)))
    return head


def _speed(per_s: float) -> str:
    """A rate in billions per second."""
    value = per_s / 1e9
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}"


def _ms(value: float) -> str:
    return f"{value:.3f}"
