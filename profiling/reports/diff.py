"""What moved between two profiles: the whole, kinds of work, modules, and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiling.layers.kinds import kind_of
from profiling.layers.origins import KERNEL_SUFFIX
from profiling.layers.rollups import common_root, shown_module
from profiling.reports.trtexec_json import read_records

# Changes below this share of the whole are noise, whatever they are in percent of themselves.
LEAST_SHARE = 0.01
# Parts of a module's path below what all have in common: a block and a part of it.
MODULE_DEPTH = 2
# What must be equal for two profiles to differ by nothing but the engine.
SAME = ("target", "machine", "shapes")


@dataclass(frozen=True)
class Saved:
    """A profile from a file: milliseconds per execute of every kind, module and layer; layers that differ by no more
    than a number of their kernels are one. wall_ms: None, and no modules, in files of trtexec's.
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
    """One line of a comparison, ms per execute; 0 where it is not there."""

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
        """Of what it was; infinite for what is new."""
        if self.before_ms == 0:
            return float("inf") if self.after_ms > 0 else 0.0
        return 100 * self.delta_ms / self.before_ms


def read_saved(path: Path, *, median: bool = False) -> Saved:
    """A profile written by --json, or by trtexec --exportProfile; by averages or medians. Raises ConfigError."""
    _, ours, rows = read_records(path)
    times = [row["medianMs" if median else "averageMs"] for row in rows]
    # Numbers of kernels differ from build to build.
    names = [KERNEL_SUFFIX.sub("", str(row["name"])) for row in rows]
    details = ours.get("layers")
    if details is None:
        return Saved(_sums([kind_of("", name=str(row["name"])) for row in rows], times), {}, _sums(names, times))
    root = common_root(about["module"] for about in details)
    modules = [shown_module(about["module"], root, MODULE_DEPTH, is_wide=about["wide"]) for about in details]
    kinds = [about["kind"] for about in details]
    return Saved(_sums(kinds, times), _sums(modules, times), _sums(names, times), ours["wall_p50_ms"], ours)


def _sums(names: Sequence[str], times: Sequence[float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, ms in zip(names, times, strict=True):
        sums[name] = sums.get(name, 0.0) + ms
    return sums


def compare(before: Saved, after: Saved) -> list[Change]:
    """The whole, then kinds, modules and layers; within each the largest change first."""
    whole = [Change("whole", "sum of layers", before.sum_ms, after.sum_ms)]
    if before.wall_ms is not None and after.wall_ms is not None:
        whole.append(Change("whole", "wall time, p50", before.wall_ms, after.wall_ms))
    kinds, layers = _changes("kind", before.kinds, after.kinds), _changes("layer", before.layers, after.layers)
    if not before.modules or not after.modules:
        return [*whole, *kinds, *layers]
    return [*whole, *kinds, *_changes("module", before.modules, after.modules), *layers]


def slower_than(changes: list[Change], percent: float) -> list[Change]:
    """What became slower by more than so many percent of itself and by 1 % or more of the whole."""
    least_ms = LEAST_SHARE * changes[0].before_ms
    return [change for change in changes if change.percent > percent and change.delta_ms >= least_ms]


def unlike(before: Saved, after: Saved) -> Iterator[str]:
    """What else differs between the two, in words."""
    for key in SAME:
        first, second = before.about.get(key), after.about.get(key)
        if first is not None and second is not None and first != second:
            yield f"{key}: {first} and {second}"


def _changes(scope: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[Change]:
    names = dict.fromkeys((*before, *after))
    changes = [Change(scope, name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    return sorted(changes, key=lambda change: -abs(change.delta_ms))
