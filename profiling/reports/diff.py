"""Differences between two saved profiles, and which of them stand out of the noise: their sum, kinds of work, modules,
and layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from profiling.layers.kinds import kind_of
from profiling.layers.origins import KERNEL_SUFFIX
from profiling.layers.rollups import common_root, shown_module
from profiling.reports.text_table import print_table
from profiling.reports.trtexec_json import not_a_profile, read_records
from profiling.significance import NO_DIFFERENCE, RatioInterval, ratio_interval

# Changes below this share of the sum are not called a change.
LEAST_SHARE = 0.01
# Parts of a module's path below the common root: a block and a part of it.
MODULE_DEPTH = 2
# Properties that are equal where two profiles differ in the engine only.
SAME = ("target", "machine", "shapes", "threads")
# Where these are equal, only the machine's speed or load can change all layers alike.
SAME_ENGINE = ("engine_sha256", "machine", "shapes", "threads", "versions")
MACHINE = "machine"
SUM, WALL = "sum of layers", "wall time, p50"
TITLES = {"whole": "sum and wall time", "kind": "by kind"}
COLOURS = {"slower": "red", "faster": "green", MACHINE: "yellow"}


@dataclass(frozen=True)
class Times:
    """Milliseconds per execute: the median, and samples `[rounds, executes]`, None where the file has no samples."""

    ms: float
    samples: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, rounds_ms: Sequence[Sequence[float]], median_ms: float) -> Times:
        """Times of rounds, cut to the shortest; of the median alone where there are no rounds. Raises ValueError."""
        shortest = min((len(times) for times in rounds_ms), default=0)
        samples = np.array([times[:shortest] for times in rounds_ms], np.float64) if shortest else None
        known = np.empty((0, 0)) if samples is None else samples
        if not math.isfinite(median_ms) or known.ndim != 2 or not np.isfinite(known).all():
            raise ValueError("expected finite times, and rounds of them")
        return cls(median_ms, samples)

    def over(self, other: Times) -> Times:
        """The samples as shares of another's, execute by execute."""
        return self if self.samples is None or other.samples is None else Times(self.ms, self.samples / other.samples)

    def __add__(self, other: Times) -> Times:
        if self.samples is None or other.samples is None:
            return Times(self.ms + other.ms)
        samples = self.samples + other.samples
        return Times(float(np.median(samples)), samples)


@dataclass(frozen=True)
class Saved:
    """A profile from a file: times of the whole (SUM, WALL), and of every kind, module and layer.

    Layers whose names differ in the kernel's number only are one. Files of trtexec's have no modules and no WALL.
    """

    whole: Mapping[str, Times]
    kinds: Mapping[str, Times]
    modules: Mapping[str, Times]
    layers: Mapping[str, Times]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_sampled(self) -> bool:
        """Whether the file has the times of single executes."""
        return self.whole[SUM].samples is not None


@dataclass(frozen=True)
class Change:
    """One line of a comparison: medians per execute, 0 where a profile does not have it.

    verdict: NO_DIFFERENCE, "slower", "faster", "new", "gone", MACHINE; empty where a file has no samples.
    """

    scope: str
    name: str
    before_ms: float
    after_ms: float
    interval: RatioInterval | None = None
    verdict: str = ""

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


def read_saved(path: Path) -> Saved:
    """A profile written by --json, or by trtexec --exportProfile. Raises ConfigError."""
    _, extras, rows = read_records(path)
    with not_a_profile(path):
        return _saved(extras, rows)


def _saved(extras: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Saved:
    if not rows:
        raise ValueError("it has no layers")
    details = extras.get("layers") or [{} for _ in rows]
    times = [Times.of(about.get("rounds_ms", ()), row["medianMs"]) for row, about in zip(rows, details, strict=True)]
    # Kernel numbers differ from build to build.
    layers = _sums([KERNEL_SUFFIX.sub("", str(row["name"])) for row in rows], times)
    whole = _sums([SUM] * len(times), times)
    if not extras:
        kinds = _sums([kind_of("", name=str(row["name"])) for row in rows], times)
        return Saved(whole, kinds, {}, layers)
    whole[WALL] = Times.of(extras.get("wall_rounds_ms", ()), extras["wall_p50_ms"])
    root = common_root(about["module"] for about in details)
    modules = [shown_module(about["module"], root, MODULE_DEPTH, is_wide=about["wide"]) for about in details]
    return Saved(whole, _sums([about["kind"] for about in details], times), _sums(modules, times), layers, extras)


def _sums(names: Sequence[str], times: Sequence[Times]) -> dict[str, Times]:
    sums: dict[str, Times] = {}
    for name, each in zip(names, times, strict=True):
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name")
        sums[name] = sums[name] + each if name in sums else each
    return sums


def compare(before: Saved, after: Saved) -> list[Change]:
    """Changes of the whole, then of kinds, modules and layers; within each the largest change first.

    Of the same engine on the same machine the parts are judged as shares of the whole, and a change of the whole is
    called MACHINE.
    """
    scopes = {
        "whole": (before.whole, after.whole),
        "kind": (before.kinds, after.kinds),
        "module": (before.modules, after.modules),
        "layer": (before.layers, after.layers),
    }
    compared = {scope: sides for scope, sides in scopes.items() if all(sides)}
    changes = [change for scope, (old, new) in compared.items() for change in _changes(scope, old, new)]
    if not (before.is_sampled and after.is_sampled):
        return changes
    least_ms = LEAST_SHARE * before.whole[SUM].ms
    num_judged = sum(abs(change.delta_ms) >= least_ms for change in changes)
    judged = [
        _judged(change, before, after, compared[change.scope], num_judged)
        if abs(change.delta_ms) >= least_ms
        else replace(change, verdict=NO_DIFFERENCE)
        for change in changes
    ]
    if not is_same_engine(before, after):
        return judged
    is_machine = [change.scope == "whole" and change.verdict != NO_DIFFERENCE for change in judged]
    return [
        replace(change, verdict=MACHINE) if machine else change
        for change, machine in zip(judged, is_machine, strict=True)
    ]


def is_same_engine(before: Saved, after: Saved) -> bool:
    """Whether both profiles are of one engine file, at one shape, on one machine, with the same libraries."""
    known = "engine_sha256" in before.about
    return known and all(before.about.get(name) == after.about.get(name) for name in SAME_ENGINE)


def _changes(scope: str, before: Mapping[str, Times], after: Mapping[str, Times]) -> list[Change]:
    none = Times(0.0)
    changes = [
        Change(scope, name, before.get(name, none).ms, after.get(name, none).ms)
        for name in dict.fromkeys((*before, *after))
        if scope != "whole" or (name in before and name in after)
    ]
    return changes if scope == "whole" else sorted(changes, key=lambda change: -abs(change.delta_ms))


def _judged(
    change: Change, before: Saved, after: Saved, sides: tuple[Mapping[str, Times], Mapping[str, Times]], num_judged: int
) -> Change:
    """The change with its interval and verdict."""
    old, new = (side.get(change.name) for side in sides)
    if old is None or new is None:
        return replace(change, verdict="new" if old is None else "gone")
    if change.scope != "whole" and is_same_engine(before, after):
        old, new = old.over(before.whole[SUM]), new.over(after.whole[SUM])
    if old.samples is None or new.samples is None:
        return change
    interval = ratio_interval(old.samples.tolist(), new.samples.tolist(), num_judged)
    if interval is None or not interval.is_change:
        return replace(change, interval=interval, verdict=NO_DIFFERENCE)
    return replace(change, interval=interval, verdict="slower" if interval.ratio > 1.0 else "faster")


def slower_than(changes: list[Change], percent: float) -> list[Change]:
    """Entries slower by more than `percent` of themselves and by 1 % or more of the sum, beyond the noise."""
    least_ms = LEAST_SHARE * changes[0].before_ms
    return [
        change
        for change in changes
        if change.percent > percent and change.delta_ms >= least_ms and change.verdict not in (NO_DIFFERENCE, MACHINE)
    ]


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
        found = [change for change in changes if change.scope == scope]
        shown = found if scope == "kind" else found[:top]
        columns = (scope, "before ms", "after ms", "change", "interval", "")
        print_table(console, _table_title(scope, found, top), columns, [_cells(change) for change in shown])
    console.print(conclusion(changes), markup=False, highlight=False)
    slower = slower_than(changes, fail_over) if fail_over is not None else []
    for change in slower:
        console.print(f"slower by {change.percent:.1f} %: {change.scope} {change.name}", style="red", markup=False)
    return bool(slower)


def conclusion(changes: Sequence[Change]) -> str:
    """What stands out of the noise, in a sentence."""
    if not any(change.verdict for change in changes):
        return "not judged: a file has no times of single executes; tickrt-profile CONFIG --json FILE writes them"
    standing = [change for change in changes if change.verdict not in ("", NO_DIFFERENCE, MACHINE)]
    if not standing:
        text = f"{NO_DIFFERENCE}: no change stands out of the spread of the executes"
        is_machine = any(change.verdict == MACHINE for change in changes)
        return text + ("; the same engine ran at another speed: the machine's, or its load" if is_machine else "")
    counts = Counter((change.verdict, change.scope) for change in standing if change.scope != "whole")
    texts = [f"{change.verdict}: {change.name}" for change in standing if change.scope == "whole"]
    return "; ".join([*texts, *(f"{count} x {scope} {verdict}" for (verdict, scope), count in counts.items())])


def _title_of(saved: Saved) -> str:
    """Engine and commit of a profile."""
    if not saved.about:
        return "a profile of trtexec's"
    engine, commit = str(saved.about.get("engine_sha256", ""))[:12], saved.about.get("commit")
    return f"{saved.about.get('engine')} {engine}" + (f", commit {commit}" if commit else "")


def _table_title(scope: str, changes: Sequence[Change], top: int) -> str:
    if scope in TITLES:
        return TITLES[scope]
    new = sum(change.before_ms == 0 < change.after_ms for change in changes)
    gone = sum(change.after_ms == 0 < change.before_ms for change in changes)
    return f"by {scope}: {min(top, len(changes))} of {len(changes)}, {new} new, {gone} gone"


def _cells(change: Change) -> tuple[str | Text, ...]:
    percent = "new" if change.before_ms == 0 else f"{change.percent:+.1f} %"
    interval = change.interval.text if change.interval is not None else ""
    verdict = Text(change.verdict, COLOURS.get(change.verdict, ""))
    return change.name, f"{change.before_ms:.3f}", f"{change.after_ms:.3f}", percent, interval, verdict
