"""Differences between two saved profiles: their sum, kinds of work, modules, and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.layers.kinds import kind_of
from profiling.layers.origins import KERNEL_SUFFIX
from profiling.layers.rollups import common_root, shown_module
from profiling.reports.trtexec_json import read_records

# Changes below this share of the sum are noise.
LEAST_SHARE = 0.01
# Parts of a module's path below the common root: a block and a part of it.
MODULE_DEPTH = 2
# Properties that are equal where two profiles differ in the engine only.
SAME = ("target", "machine", "shapes")


@dataclass(frozen=True)
class Saved:
    """A profile from a file: milliseconds per execute of every kind, module and layer.

    Layers whose names differ in the kernel's number only are one. Files of trtexec's have no modules, and wall_ms None.
    """

    kinds: Mapping[str, float]
    modules: Mapping[str, float]
    layers: Mapping[str, float]
    wall_ms: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sum_ms(self) -> float:
        """Sum of layers."""
        return sum(self.layers.values())


@dataclass(frozen=True)
class Change:
    """One line of a comparison, ms per execute; 0 where a profile does not have it."""

    scope: str
    name: str
    before_ms: float
    after_ms: float

    @property
    def delta_ms(self) -> float:
        """Above 0: slower."""
        return self.after_ms - self.before_ms

    @property
    def percent(self) -> float:
        """Change in percent of before_ms; infinite for a new entry."""
        if self.before_ms == 0:
            return float("inf") if self.after_ms > 0 else 0.0
        return 100 * self.delta_ms / self.before_ms


def read_saved(path: Path, *, median: bool = False) -> Saved:
    """A profile written by --json, or by trtexec --exportProfile; by averages or medians. Raises ConfigError."""
    _, extras, rows = read_records(path)
    times = [row["medianMs" if median else "averageMs"] for row in rows]
    # Kernel numbers differ from build to build.
    names = [KERNEL_SUFFIX.sub("", str(row["name"])) for row in rows]
    details = extras.get("layers")
    if details is None:
        return Saved(_sums([kind_of("", name=str(row["name"])) for row in rows], times), {}, _sums(names, times))
    root = common_root(about["module"] for about in details)
    modules = [shown_module(about["module"], root, MODULE_DEPTH, is_wide=about["wide"]) for about in details]
    kinds = [about["kind"] for about in details]
    return Saved(_sums(kinds, times), _sums(modules, times), _sums(names, times), extras["wall_p50_ms"], extras)


def _sums(names: Sequence[str], times: Sequence[float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, ms in zip(names, times, strict=True):
        sums[name] = sums.get(name, 0.0) + ms
    return sums


def compare(before: Saved, after: Saved) -> list[Change]:
    """Changes of the sum, then of kinds, modules and layers; within each the largest change first."""
    whole = [Change("whole", "sum of layers", before.sum_ms, after.sum_ms)]
    if before.wall_ms is not None and after.wall_ms is not None:
        whole.append(Change("whole", "wall time, p50", before.wall_ms, after.wall_ms))
    kinds, layers = _changes("kind", before.kinds, after.kinds), _changes("layer", before.layers, after.layers)
    if not before.modules or not after.modules:
        return [*whole, *kinds, *layers]
    return [*whole, *kinds, *_changes("module", before.modules, after.modules), *layers]


def slower_than(changes: list[Change], percent: float) -> list[Change]:
    """Entries slower by more than `percent` of themselves and by 1 % or more of the sum."""
    least_ms = LEAST_SHARE * changes[0].before_ms
    return [change for change in changes if change.percent > percent and change.delta_ms >= least_ms]


def unlike(before: Saved, after: Saved) -> Iterator[str]:
    """Texts that name the properties of SAME in which the two differ."""
    for key in SAME:
        first, second = before.about.get(key), after.about.get(key)
        if first is not None and second is not None and first != second:
            yield f"{key}: {first} and {second}"


def print_diff(before: Saved, after: Saved, top: int, fail_over: float | None, console: Console) -> bool:
    """Print the comparison; True where an entry is slower by more than `fail_over` percent."""
    for saved, name in ((before, "before"), (after, "after")):
        console.print(f"{name}: {_title_of(saved)}", markup=False, highlight=False)
    for text in unlike(before, after):
        console.print(f"the two differ in {text}", style="yellow", markup=False)
    changes = compare(before, after)
    for scope in dict.fromkeys(change.scope for change in changes):
        console.print(_table(scope, [change for change in changes if change.scope == scope], top))
    slower = slower_than(changes, fail_over) if fail_over is not None else []
    for change in slower:
        console.print(f"slower by {change.percent:.1f} %: {change.scope} {change.name}", style="red", markup=False)
    return bool(slower)


def _title_of(saved: Saved) -> str:
    """Engine and commit of a profile."""
    if not saved.about:
        return "a profile of trtexec's"
    engine, commit = str(saved.about.get("engine_sha256", ""))[:12], saved.about.get("commit")
    return f"{saved.about.get('engine')} {engine}" + (f", commit {commit}" if commit else "")


def _table(scope: str, changes: Sequence[Change], top: int) -> Table:
    table = Table(title=_table_title(scope, changes, top), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(scope, overflow="fold")
    for column in ("before ms", "after ms", "change ms", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for change in changes if scope == "kind" else changes[:top]:
        table.add_row(*map(Text, _cells(change)))
    return table


def _table_title(scope: str, changes: Sequence[Change], top: int) -> str:
    if scope in ("whole", "kind"):
        return "sum and wall time" if scope == "whole" else "by kind"
    new = sum(change.before_ms == 0 < change.after_ms for change in changes)
    gone = sum(change.after_ms == 0 < change.before_ms for change in changes)
    return f"by {scope}: {min(top, len(changes))} of {len(changes)}, {new} new, {gone} gone"


def _cells(change: Change) -> tuple[str, ...]:
    percent = "new" if change.before_ms == 0 else f"{change.percent:+.1f} %"
    return change.name, f"{change.before_ms:.3f}", f"{change.after_ms:.3f}", f"{change.delta_ms:+.3f}", percent


def _changes(scope: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[Change]:
    names = dict.fromkeys((*before, *after))
    changes = [Change(scope, name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    return sorted(changes, key=lambda change: -abs(change.delta_ms))
