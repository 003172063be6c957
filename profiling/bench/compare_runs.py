"""Comparison of a run with a saved one: whether the two can be compared, and the change of every figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from runtime.errors import ConfigError

# Properties that must be equal: machine, engine, workload.
SAME = (
    "kind", "bundle", "target", "machine", "engine_sha256", "variant", "guidance", "depth", "frames", "steps", "tokens",
    "sessions", "over", "values", "mode", "interval_s",
)  # fmt: skip
# Figures that are worse when lower.
MORE_IS_BETTER = ("finished_per_s", "audio_s_per_s")
FIGURES = (
    "tick_ms", "engine_ms", "overhead_ms", "overhead_ratio", *MORE_IS_BETTER, "allocations_per_tick", "phases_ms",
    "control_to_sound_ms", "underruns", "server_cpu",
)  # fmt: skip
# Figures of each point of a sweep and of a grid.
POINT_FIGURES = {
    "sweep": ("tick_ms", "engine_ms", "overhead_ms"),
    "budgets": ("overhead_ms", "overhead_ratio"),
    "live sweep": ("control_to_sound_ms", "underruns", "server_cpu"),
}


def read_result(path: Path) -> dict[str, Any]:
    """Read a saved result: a file of one JSON object, or tickrt-bench's output, whose last line is one. Raises
    ConfigError."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="tickrt-bench ... --json PATH saves a run") from None
    for candidate in (text, text.rpartition("\n")[2]):
        try:
            result = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        if isinstance(result, dict) and result.keys() >= {"kind", "engine_sha256", "machine"}:
            return result
    raise ConfigError(f"{path} is not a result of tickrt-bench", fix="tickrt-bench ... --json PATH saves a run")


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
    for point in result.get("points", ()):
        over = result.get("over")
        label = f"{over} {point[over]}" if over else f"depth {point['depth']}, {point['variant']}"
        for name in POINT_FIGURES[result["kind"]]:
            value = point[name]
            short = {"p50": value["p50"]} if isinstance(value, Mapping) and "p50" in value else value
            yield from _numbers(f"{label}, {name}", short)


def _numbers(name: str, value: float | Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, number in value.items():
            yield from _numbers(f"{name} {key}", number)
    else:
        yield name, float(value)


def changes(base: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Figure -> base, now, and the change in percent (None where the base is 0), for figures that both have."""
    before, after = figures(base), figures(now)
    return {
        name: {
            "base": before[name],
            "now": after[name],
            "percent": round(100 * (after[name] / before[name] - 1), 2) if before[name] else None,
        }
        for name in before
        if name in after
    }


def print_changes(console: Console, base: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """The changes as a table, the worse ones in red."""
    title = f"compared with commit {base.get('commit') or 'unknown'}"
    table = Table("figure", title=title, title_justify="left")
    for column in ("base", "now", "change"):
        table.add_column(column, justify="right")
    for name, change in changes(base, now).items():
        table.add_row(name, f"{change['base']:.3f}", f"{change['now']:.3f}", _coloured(name, change["percent"]))
    console.print(table)
    for name in ("versions", "switches"):
        if base.get(name) != now.get(name):
            console.print(f"{name} differ: {base.get(name)} before, {now.get(name)} now", style="yellow")


def _coloured(name: str, percent: float | None) -> str:
    if percent is None:
        return ""
    is_worse = percent < 0 if name in MORE_IS_BETTER else percent > 0
    colour = "red" if is_worse else "green"
    return f"[{colour}]{percent:+.1f} %[/]" if abs(percent) >= 1 else f"{percent:+.1f} %"
