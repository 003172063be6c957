"""Comparison of a run with a saved one: whether the two can be compared, the change of every figure, and which changes
stand out of the noise of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json
from rich.console import Console
from rich.text import Text

from profiling.reports.text_table import print_table
from profiling.significance import NO_DIFFERENCE, RatioInterval, Rounds, ratio_interval
from runtime.errors import ConfigError

SAVE = "tickrt-bench ... --json FILE saves a run"
# Properties of a bare engine: where they are equal, another time of the bare engine is the machine's doing.
SAME_ENGINE = ("machine", "engine_sha256")
# Properties that must be equal.
SAME = (
    "kind", "bundle", "target", *SAME_ENGINE, "variant", "guidance", "depth", "frames", "steps", "tokens", "sessions",
    "over", "values", "mode", "interval_s",
)  # fmt: skip
# Properties that may differ, and are shown then.
SHOWN = ("versions", "switches", "threads")
# Figures that are worse when lower.
MORE_IS_BETTER = ("finished_per_s", "audio_s_per_s")
ENGINE_FIGURE = "engine_ms p50"
SAVING_FIGURE = ", ratio"
# Verdicts on a figure that became lower, and higher.
TIMES = ("faster", "slower")
SAVINGS = ("saves less", "saves more")
MACHINE = "machine"
COLOURS = {"slower": "red", "faster": "green", MACHINE: "yellow"}
FIGURES = (
    "tick_ms", "engine_ms", "overhead_ms", "overhead_ratio", *MORE_IS_BETTER, "allocations_per_tick", "phases_ms",
    "control_to_sound_ms", "underruns", "server_cpu",
)  # fmt: skip
# Figures of each point of a sweep and of a grid.
POINT_FIGURES = {
    "sweep": ("tick_ms", "engine_ms", "overhead_ms", "overhead_ratio"),
    "budgets": ("tick_ms", "engine_ms", "overhead_ms", "overhead_ratio"),
    "churn": ("not_replayed", "tick_ms", "queue_wait_ms"),
    "live sweep": ("control_to_sound_ms", "underruns", "server_cpu"),
}


@dataclass(frozen=True)
class FigureChange:
    """One figure of both runs. interval: None where the figure is not judged.

    is_control: it is the time of the same bare engine on the same machine, so that its change is no change of a tick.
    """

    name: str
    base: float
    now: float
    interval: RatioInterval | None = None
    is_control: bool = False

    @property
    def percent(self) -> float | None:
        """The change in percent of the base; None where that is 0."""
        return round(100 * (self.now / self.base - 1), 2) if self.base else None

    @property
    def verdict(self) -> str | None:
        """What the change is: NO_DIFFERENCE, MACHINE, one of TIMES or SAVINGS; None where it is not judged."""
        if self.interval is None or not self.interval.is_change:
            return None if self.interval is None else NO_DIFFERENCE
        if self.is_control:
            return MACHINE
        lower, higher = SAVINGS if self.name.endswith(SAVING_FIGURE) else TIMES
        return higher if self.interval.ratio > 1.0 else lower

    def as_json(self) -> dict[str, Any]:
        """The change for the result of a run."""
        interval = asdict(self.interval) if self.interval is not None else None
        return {
            "base": self.base, "now": self.now, "percent": self.percent, "interval": interval, "verdict": self.verdict,
        }  # fmt: skip


def read_result(path: Path) -> dict[str, Any]:
    """Read a result that --json saved. Raises ConfigError."""
    try:
        result = from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix=SAVE) from None
    except ValueError:
        result = None
    if isinstance(result, dict) and result.keys() >= {"kind", "engine_sha256", "machine"}:
        with suppress(ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
            figures(result)
            if all(np.array(times, np.float64).ndim == 1 for rounds in samples(result).values() for times in rounds):
                return result
    raise ConfigError(f"{path} is not a result of tickrt-bench", fix=SAVE)


def differences(base: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The properties in which two results differ; those that `now` does not have yet are left out."""
    names = [name for name in SAME if name in now and base.get(name) != now[name]]
    return [f"{name}: {base.get(name)} in the saved run, {now[name]} in this one" for name in names]


def check_comparable(base: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ConfigError where machine, engine or shape differ."""
    found = differences(base, now)
    if found:
        what = "the saved run cannot be compared: " + "; ".join(found)
        raise ConfigError(what, fix="compare them anyway with --force")


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Name -> value of all that a result measured: "tick_ms p50", "depth 4, guidance, overhead_ms"."""
    return dict(_figures(result))


def _figures(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in FIGURES:
        if name in result:
            yield from _numbers(name, result[name])
    for name, entry in result.get("ablations", {}).items():
        for side in ("with_ms", "without_ms"):
            yield f"{name}, {side.removesuffix('_ms')}, p50", float(entry[side]["p50"])
        yield f"{name}, ratio", float(entry["ratio"])
    for line in result.get("comparisons", ()):
        for name, peer in line["peers"].items():
            yield f"{line['work']}, {line['requests']} requests, {line['variant']}, {name}", float(peer["ratio"])
    for label, point in _points(result):
        for name in POINT_FIGURES[result["kind"]]:
            value = point[name]
            short = {"p50": value["p50"]} if isinstance(value, Mapping) and "p50" in value else value
            yield from _numbers(f"{label}, {name}", short)


def _points(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The points of a sweep or a grid, with their labels."""
    over = result.get("over")
    for point in result.get("points", ()):
        yield f"{over} {point[over]}" if over else f"depth {point['depth']}, {point['variant']}", point


def _numbers(name: str, value: float | Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, number in value.items():
            yield from _numbers(f"{name} {key}", number)
    else:
        yield name, float(value)


def samples(result: Mapping[str, Any]) -> dict[str, Rounds]:
    """Name of a figure -> its samples; empty for results that were saved without."""
    parts = [("", result), *((f"{name}, ", entry) for name, entry in result.get("ablations", {}).items())]
    parts += [(f"{label}, ", point) for label, point in _points(result)]
    return {f"{prefix}{name}": rounds for prefix, part in parts for name, rounds in part.get("samples", {}).items()}


def changes(base: Mapping[str, Any], now: Mapping[str, Any]) -> list[FigureChange]:
    """The figures that both results have; those with samples in both are judged."""
    before, after = figures(base), figures(now)
    old, new = samples(base), samples(now)
    names = [name for name in before if name in after]
    judged = [name for name in names if name in old and name in new]
    intervals = {name: ratio_interval(old[name], new[name], len(judged)) for name in judged}
    is_same_engine = all(base.get(name) == now.get(name) for name in SAME_ENGINE)
    return [
        FigureChange(
            name, before[name], after[name], intervals.get(name), is_same_engine and name.endswith(ENGINE_FIGURE)
        )
        for name in names
    ]


def print_changes(console: Console, base: Mapping[str, Any], now: Mapping[str, Any]) -> list[FigureChange]:
    """Print the changes as a table, and what stands out of the noise; returns the changes."""
    found = changes(base, now)
    rows = [
        (
            change.name,
            f"{change.base:.3f}",
            f"{change.now:.3f}",
            "" if change.percent is None else f"{change.percent:+.1f} %",
            change.interval.text if change.interval is not None else "",
            _coloured(change.verdict or ""),
        )
        for change in found
    ]
    title = f"compared with commit {base.get('commit') or 'unknown'}"
    print_table(console, title, ("figure", "base", "now", "change", "interval", ""), rows)
    for name in SHOWN:
        if base.get(name) != now.get(name):
            console.print(f"{name} differ: {base.get(name)} before, {now.get(name)} now", style="yellow")
    for line in conclusion(found):
        console.print(line, markup=False, highlight=False)
    return found


def conclusion(found: Sequence[FigureChange]) -> list[str]:
    """Which changes stand out of the noise, in sentences."""
    verdicts = {change.verdict for change in found} - {None}
    if not verdicts:
        return [f"not judged: one of the runs has no samples; {SAVE} with them"]
    lines = [
        f"{change.verdict}: {change.name}, {change.interval.text}"
        for change in found
        if change.interval is not None and change.verdict not in (NO_DIFFERENCE, MACHINE)
    ]
    lines = lines or [f"{NO_DIFFERENCE}: no change stands out of the spread of the samples"]
    if MACHINE in verdicts:
        lines.append(
            "machine: the bare engine takes another time, though engine and machine are the same. The machine's load or"
            " speed, the threads or a library changed: compare overhead_ratio, not milliseconds."
        )
    return lines


def _coloured(verdict: str) -> Text:
    return Text(verdict, COLOURS.get(verdict, ""))
