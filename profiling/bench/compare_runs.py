"""A run beside a saved one: what changed, and whether the two can be compared at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from runtime.errors import ConfigError

# What must be equal: what was measured, where, on what, and of which shape.
SAME = (
    "kind", "bundle", "target", "machine", "engine_sha256", "variant", "guidance", "depth", "frames", "steps", "tokens",
    "sessions", "over", "values",
)  # fmt: skip
# Figures of which less is worse.
MORE_IS_BETTER = ("finished_per_s", "audio_s_per_s")
FIGURES = ("tick_ms", "engine_ms", "overhead_ratio", *MORE_IS_BETTER, "allocations_per_tick", "phases_ms")


def read_card(path: Path) -> dict[str, Any]:
    """A saved result: a file of one JSON object, or a bench's output, whose last line is one. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="tickrt-bench ... --json PATH saves a run") from None
    for candidate in (text, text.rpartition("\n")[2]):
        try:
            card = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        if isinstance(card, dict) and card.keys() >= {"kind", "engine_sha256", "machine"}:
            return card
    raise ConfigError(f"{path} holds no result of tickrt-bench", fix="tickrt-bench ... --json PATH saves a run")


def differences(base: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why two results cannot be compared, by what is known of the one now; empty where they can."""
    known = [name for name in SAME if name in now]
    return [f"{name}: {base.get(name)} there, {now[name]} here" for name in known if base.get(name) != now[name]]


def check_comparable(base: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ConfigError where machine, engine or shape differ."""
    found = differences(base, now)
    if found:
        raise ConfigError("the saved run cannot be compared: " + "; ".join(found), fix="--force compares all the same")


def figures(card: Mapping[str, Any]) -> dict[str, float]:
    """Everything that a result measured: "tick_ms p50" -> value."""
    return dict(_figures(card))


def _figures(card: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in FIGURES:
        if name in card:
            yield from _numbers(name, card[name])
    for technique, entry in card.get("techniques_off", {}).items():
        for side in ("with_ms", "without_ms"):
            yield f"{technique}, {side.removesuffix('_ms')}, p50", float(entry[side]["p50"])
    for point in card.get("points", ()):
        for name in ("tick_ms", "engine_ms"):
            yield f"{card['over']} {point[card['over']]}, {name} p50", float(point[name]["p50"])


def _numbers(name: str, value: float | Mapping[str, float]) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        yield from ((f"{name} {key}", float(number)) for key, number in value.items())
    else:
        yield name, float(value)


def changes(base: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Figure -> base, now, and the change in percent (None where the base is 0), for what both have."""
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
    """What changed, for people; what is slower in red."""
    title = f"against {base.get('commit') or 'a run of unknown commit'}"
    table = Table("figure", title=title, title_justify="left")
    for column in ("base", "now", "change"):
        table.add_column(column, justify="right")
    for name, change in changes(base, now).items():
        table.add_row(name, f"{change['base']:.3f}", f"{change['now']:.3f}", _coloured(name, change["percent"]))
    console.print(table)
    for name in ("versions", "techniques"):
        if base.get(name) != now.get(name):
            console.print(f"{name} differ: {base.get(name)} there, {now.get(name)} here", style="yellow")


def _coloured(name: str, percent: float | None) -> str:
    if percent is None:
        return ""
    is_worse = percent < 0 if name in MORE_IS_BETTER else percent > 0
    colour = "red" if is_worse else "green"
    return f"[{colour}]{percent:+.1f} %[/]" if abs(percent) >= 1 else f"{percent:+.1f} %"
