"""How the cost of a tick grows: one run per value of depth, frames or steps, as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from profiling.reports.svg_plot import svg
from runtime.base.errors import ConfigError
from runtime.commands.tables import print_table

NAMES = ("depth", "frames", "steps")
BAR = 12
# Properties that are stated once where all points share them.
COMMON = (
    "bundle", "target", "commit", "switches", "threads", "engine_sha256", "versions", "machine", "variant", "guidance",
    "depth", "frames", "steps", "tokens", "sessions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sweep:
    """The name and the values of the number that changes."""

    name: str
    values: tuple[int, ...]


def parse_sweep(text: str) -> Sweep:
    """ "depth=1,2,4,8". Raises ConfigError."""
    name, _, listed = text.partition("=")
    fix = f"--sweep depth=1,2,4,8, of {', '.join(NAMES)}"
    if name not in NAMES:
        raise ConfigError(f"there is no sweep over {name!r}", fix=fix)
    try:
        values = tuple(int(value) for value in listed.split(","))
    except ValueError:
        raise ConfigError(f"{listed!r} is not a list of whole numbers", fix=fix) from None
    if min(values) < 1 or len(set(values)) != len(values):
        raise ConfigError(f"{listed!r}: expected different numbers, each 1 or more", fix=fix)
    return Sweep(name, values)


def common_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The properties of COMMON that all results share."""
    first = results[0]
    return {name: first[name] for name in COMMON if all(result[name] == first[name] for result in results)}


def sweep_result(sweep: Sweep, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All points as one JSON object: the properties they share, and each result without these."""
    common = common_of(results)
    own = [{name: value for name, value in result.items() if name not in common} for result in results]
    points = [{sweep.name: value, **point} for value, point in zip(sweep.values, own, strict=True)]
    return {**common, "kind": "sweep", "over": sweep.name, "values": list(sweep.values), "points": points}


def print_sweep(console: Console, result: Mapping[str, Any]) -> None:
    """The sweep as a table."""
    title = f"{result['bundle']} on {result['target']}: {result['variant']}, by {result['over']}"
    most_ms = max(point["tick_ms"]["p50"] for point in result["points"])
    columns = (result["over"], "rows", "tick p50", "engine", "overhead", "ratio", "ms per row", "MiB", "")
    print_table(console, title, columns, [_row(point, result["over"], most_ms) for point in result["points"]], 0)
    if result["over"] == "depth" and len(points := result["points"]) > 1:
        first, *_, last = sorted(points, key=lambda point: int(point["depth"]))
        each = (last["resident_mib"] - first["resident_mib"]) / (last["depth"] - first["depth"])
        console.print(f"memory: {each:.1f} MiB per slot", highlight=False)


def _row(point: Mapping[str, Any], over: str, most_ms: float) -> tuple[str, ...]:
    tick_ms = point["tick_ms"]["p50"]
    return (
        str(point[over]),
        str(point["rows"]),
        f"{tick_ms:.2f}",
        f"{point['engine_ms']['p50']:.2f}",
        f"{point['overhead_ms']:.2f}",
        f"{point['overhead_ratio']:.3f}",
        f"{tick_ms / point['rows']:.3f}",
        f"{point['resident_mib']:.0f}",
        ("█" * max(1, round(BAR * tick_ms / most_ms))).ljust(BAR),
    )


def plot_sweep(result: Mapping[str, Any]) -> str:
    """The sweep as SVG: over the rows in a sweep of depth, else over the number that changes."""
    over = "rows" if result["over"] == "depth" else result["over"]
    lines = {
        name: [(float(point[over]), float(point[key]["p50"])) for point in result["points"]]
        for name, key in (("tick", "tick_ms"), ("bare engine", "engine_ms"))
    }
    title = f"{result['bundle']} on {result['target']}, {result['variant']}"
    return svg(title, over, "ms (p50)", lines)
