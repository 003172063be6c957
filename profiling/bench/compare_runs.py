"""Comparison of a run with a saved one: whether the two can be compared, the change of every figure, and which changes
stand out of the noise of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json
from rich.console import Console

from profiling.comparison import TIMES, Difference, Rounds, print_conclusion, print_differences, unequal
from runtime.base.errors import ConfigError, FileError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8

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
SAVINGS = ("saves less", "saves more")
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


def read_result(path: Path) -> dict[str, Any]:
    """Read a result that --json saved. Raises ConfigError."""
    try:
        result = from_json(plain_utf8(read_file(path, MAX_JSON_BYTES)))
    except FileError as error:
        raise ConfigError(error.what, fix=SAVE) from None
    except ValueError:
        result = None
    if isinstance(result, dict) and result.keys() >= {"kind", "engine_sha256", "machine"}:
        with suppress(ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
            result_figures(result)
            if all(np.array(times, np.float64).ndim == 1 for rounds in samples(result).values() for times in rounds):
                return result
    raise ConfigError(f"{path} is not a result of tickrt-bench", fix=SAVE)


def check_comparable(base: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ConfigError where machine, engine or shape differ; what `now` does not have yet is left out."""
    if found := unequal(base, now, [name for name in SAME if name in now]):
        what = "the saved run cannot be compared: " + "; ".join(found)
        raise ConfigError(what, fix="compare them anyway with --force")


def result_figures(result: Mapping[str, Any]) -> dict[str, float]:
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


def changes(base: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """The figures that both results have; those with samples in both are judged."""
    after, old, new = result_figures(now), samples(base), samples(now)
    found = [
        Difference("figure", name, value, after[name]) for name, value in result_figures(base).items() if name in after
    ]
    num_judged = sum(item.name in old and item.name in new for item in found)
    is_same_engine = not unequal(base, now, SAME_ENGINE)

    def judged(item: Difference) -> Difference:
        if item.name not in old or item.name not in new:
            return item
        words = SAVINGS if item.name.endswith(SAVING_FIGURE) else TIMES
        is_control = is_same_engine and item.name.endswith(ENGINE_FIGURE)
        return item.judged(old[item.name], new[item.name], num_judged, words, control=is_control)

    return [judged(item) for item in found]


def print_changes(console: Console, base: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Print the changes as a table, and what stands out of the noise; returns them for the result of a run."""
    found = changes(base, now)
    print_differences(console, f"compared with commit {base.get('commit') or 'unknown'}", "figure", found)
    for text in unequal(base, now, SHOWN):
        console.print(f"the two differ in {text}", style="yellow", markup=False)
    print_conclusion(console, found, f"one of the runs has no samples; {SAVE} with them")
    return {item.name: _as_json(item) for item in found}


def _as_json(item: Difference) -> dict[str, Any]:
    percent = None if item.percent is None else round(item.percent, 2)
    interval = None if item.interval is None else asdict(item.interval)
    return {
        "base": item.before, "now": item.after, "percent": percent, "interval": interval,
        "verdict": item.verdict or None,
    }  # fmt: skip
