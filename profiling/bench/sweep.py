"""How the cost of a tick grows: one run per value of depth, frames, steps or tokens, as a table and a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from runtime.errors import ConfigError

NAMES = ("depth", "frames", "steps")
BAR = 12
# What all points say alike is said once.
COMMON = (
    "bundle", "target", "commit", "techniques", "engine_sha256", "versions", "machine", "variant", "guidance", "depth",
    "frames", "steps", "tokens", "sessions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sweep:
    """Which number takes which values."""

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
        raise ConfigError(f"{listed!r} is no list of whole numbers", fix=fix) from None
    if min(values) < 1 or len(set(values)) != len(values):
        raise ConfigError(f"{listed!r} must be different numbers from 1 on", fix=fix)
    return Sweep(name, values)


def report_sweep(sweep: Sweep, cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All points as one JSON object: what they have in common, and each one whole."""
    common = {name: cards[0][name] for name in COMMON if all(card[name] == cards[0][name] for card in cards)}
    own = [{name: value for name, value in card.items() if name not in common} for card in cards]
    points = [{sweep.name: value, **point} for value, point in zip(sweep.values, own, strict=True)]
    return {**common, "kind": "sweep", "over": sweep.name, "values": list(sweep.values), "points": points}


def print_sweep(console: Console, card: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> None:
    """The sweep for people."""
    title = f"{card['bundle']} on {card['target']}: {card['variant']}, by {card['over']}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in (card["over"], "rows", "tick p50", "engine", "tick / engine", "ms per row"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most_ms = max(point["tick_ms"]["p50"] for point in cards)
    for value, point in zip(card["values"], cards, strict=True):
        tick_ms, engine_ms = point["tick_ms"]["p50"], point["engine_ms"]["p50"]
        table.add_row(
            str(value),
            str(point["rows"]),
            f"{tick_ms:.2f}",
            f"{engine_ms:.2f}",
            f"{point['overhead_ratio']:.3f}",
            f"{tick_ms / point['rows']:.3f}",
            "█" * max(1, round(BAR * tick_ms / most_ms)),
        )
    console.print(table)
