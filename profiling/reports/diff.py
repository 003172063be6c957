"""Differences between two saved profiles, and which of them stand out of the noise: their sum, kinds of work, modules,
and layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from profiling.comparison import (
    GONE,
    MACHINE,
    NEW,
    NO_DIFFERENCE,
    Difference,
    print_conclusion,
    print_differences,
    unequal,
)
from profiling.layers.kinds import layer_kind
from profiling.layers.origins import KERNEL_SUFFIX
from profiling.layers.rollups import common_root, shown_module
from profiling.reports.json_files import not_a_profile, read_records
from runtime.base.untrusted import printable

# Changes below this share of the sum are not called a change.
LEAST_SHARE = 0.01
# Parts of a module's path below the common root: a block and a part of it.
MODULE_DEPTH = 2
# Properties that are equal where two profiles differ in the engine only.
SAME = ("target", "machine", "shapes", "threads")
# Where these are equal, only the machine's speed or load can change all layers alike.
SAME_ENGINE = ("engine_sha256", "machine", "shapes", "threads", "versions")
SUM, WALL = "sum of layers", "wall time, p50"
TITLES = {"whole": "sum and wall time", "kind": "by kind"}
HOW_TO_JUDGE = "a file has no times of single executes; tickrt-profile CONFIG --json FILE writes them"


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
        kinds = _sums([layer_kind("", name=str(row["name"])) for row in rows], times)
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


def compare_profiles(before: Saved, after: Saved) -> list[Difference]:
    """Changes of the whole, then of kinds, modules and layers; within each the largest change first.

    Of the same engine on the same machine its parts are judged as shares of the whole, and a change of the whole is
    called MACHINE.
    """
    scopes = {
        "whole": (before.whole, after.whole),
        "kind": (before.kinds, after.kinds),
        "module": (before.modules, after.modules),
        "layer": (before.layers, after.layers),
    }
    compared = {scope: sides for scope, sides in scopes.items() if all(sides)}
    found = [item for scope, (old, new) in compared.items() for item in _differences(scope, old, new)]
    if not (before.is_sampled and after.is_sampled):
        return found
    least_ms = LEAST_SHARE * before.whole[SUM].ms
    num_judged = sum(abs(item.delta) >= least_ms for item in found)
    return [
        _judged(item, before, after, compared[item.scope], num_judged)
        if abs(item.delta) >= least_ms
        else replace(item, verdict=NO_DIFFERENCE)
        for item in found
    ]


def is_same_engine(before: Saved, after: Saved) -> bool:
    """Whether both profiles are of one engine file, at one shape, on one machine, with the same libraries."""
    return "engine_sha256" in before.about and not unequal(before.about, after.about, SAME_ENGINE)


def _differences(scope: str, before: Mapping[str, Times], after: Mapping[str, Times]) -> list[Difference]:
    none = Times(0.0)
    found = [
        Difference(scope, name, before.get(name, none).ms, after.get(name, none).ms)
        for name in dict.fromkeys((*before, *after))
        if scope != "whole" or (name in before and name in after)
    ]
    return found if scope == "whole" else sorted(found, key=lambda item: -abs(item.delta))


def _judged(
    item: Difference,
    before: Saved,
    after: Saved,
    sides: tuple[Mapping[str, Times], Mapping[str, Times]],
    num_judged: int,
) -> Difference:
    """The change with its interval and verdict."""
    old, new = (side.get(item.name) for side in sides)
    if old is None or new is None:
        return replace(item, verdict=NEW if old is None else GONE)
    is_whole, is_same = item.scope == "whole", is_same_engine(before, after)
    if is_same and not is_whole:
        old, new = old.over(before.whole[SUM]), new.over(after.whole[SUM])
    if old.samples is None or new.samples is None:
        return item
    return item.judged(old.samples.tolist(), new.samples.tolist(), num_judged, control=is_same and is_whole)


def slower_than(found: Sequence[Difference], percent: float) -> list[Difference]:
    """Entries slower by more than `percent` of themselves and by 1 % or more of the sum, beyond the noise."""
    least_ms = LEAST_SHARE * found[0].before
    return [
        item
        for item in found
        if item.after > item.before * (1 + percent / 100)
        and item.delta >= least_ms
        and item.verdict not in (NO_DIFFERENCE, MACHINE)
    ]


def print_diff(before: Saved, after: Saved, top: int, fail_over: float | None, console: Console) -> bool:
    """Print the comparison; True where an entry is slower by more than `fail_over` percent."""
    for saved, name in ((before, "before"), (after, "after")):
        console.print(f"{name}: {_title_of(saved)}", markup=False, highlight=False)
    known = [name for name in SAME if None not in (before.about.get(name), after.about.get(name))]
    for text in unequal(before.about, after.about, known):
        console.print(f"the two differ in {text}", style="yellow", markup=False)
    found = compare_profiles(before, after)
    for scope in dict.fromkeys(item.scope for item in found):
        items = [item for item in found if item.scope == scope]
        shown = items if scope == "kind" else items[:top]
        print_differences(console, _table_title(scope, items, top), f"{scope}, ms", shown)
    print_conclusion(console, found, HOW_TO_JUDGE)
    slower = slower_than(found, fail_over) if fail_over is not None else []
    for item in slower:
        by = "new" if item.percent is None else f"slower by {item.percent:.1f} %"
        console.print(printable(f"{by}: {item.scope} {item.name}"), style="red", markup=False)
    return bool(slower)


def _title_of(saved: Saved) -> str:
    """Engine and commit of a profile."""
    if not saved.about:
        return "a profile of trtexec's"
    engine, commit = str(saved.about.get("engine_sha256", ""))[:12], saved.about.get("commit")
    return f"{saved.about.get('engine')} {engine}" + (f", commit {commit}" if commit else "")


def _table_title(scope: str, found: Sequence[Difference], top: int) -> str:
    if scope in TITLES:
        return TITLES[scope]
    new = sum(item.before == 0 < item.after for item in found)
    gone = sum(item.after == 0 < item.before for item in found)
    return f"by {scope}: {min(top, len(found))} of {len(found)}, {new} new, {gone} gone"
