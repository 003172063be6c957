"""The live bench's result as tables, and its sweep as a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from profiling.bench.live.result import PARTS, STAGES
from profiling.bench.live.script import KINDS
from profiling.bench.result import verdict
from profiling.reports.svg_plot import svg
from runtime.commands.tables import print_table

Cells = Callable[[Mapping[str, Any], str, str], list[float | None]]
LABELS = {"step_parameter": "step parameter", "generation_parameter": "generation parameter"}


def print_live(console: Console, result: Mapping[str, Any]) -> None:
    """One run: latencies, then what it took; or the sweep."""
    if "points" in result:
        _print_sweep(console, result)
        return
    title = f"{result['bundle']} on {result['target']}: {result['sessions']} live sessions, mode {result['mode']}"
    title = f"{title}\nms from a control to its sound"
    print_table(console, title, ("", "p50", "p95", "max", "goal"), _rows(result, _latencies))
    print_table(console, "where the time goes: ms since the control, p50", ("", *STAGES), _rows(result, _stages))
    for name, text in _lines(result):
        console.print(Text.assemble(f"{name:12} ", text), highlight=False)


def _rows(result: Mapping[str, Any], cells: Cells) -> list[tuple[str, ...]]:
    """A line for each kind of control and each part of its sound."""
    return [
        (f"{LABELS[kind]}, {part}", *("" if value is None else f"{value:.0f}" for value in cells(result, kind, part)))
        for kind in KINDS
        for part in PARTS
    ]


def _latencies(result: Mapping[str, Any], kind: str, part: str) -> list[float | None]:
    latency = result["control_to_sound_ms"][kind][part]
    return [*(latency.get(name) for name in ("p50", "p95", "max")), result["budget"].get(f"{kind}_{part}")]


def _stages(result: Mapping[str, Any], kind: str, part: str) -> list[float | None]:
    return [result["stages_ms"][kind][part].get(stage) for stage in STAGES]


def _lines(result: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    lead, controls = result["lead_s"], result["controls"]
    return [
        ("goals", verdict(result)),
        *([("admission", _refusals(result))] if "refused" in result else []),
        ("underruns", f"{result['underruns']} ({result['missing_s']:.2f} s), {result['late_s']:.2f} s arrived late"),
        *([("background", _background(result))] if "background" in result else []),
        ("lead", f"p50 {lead['p50']:.3f} s   min {lead['min']:.3f}"),
        (
            "controls",
            f"{sum(controls.values())} changed, {result['not_played']} not played, {result['problems']} problems",
        ),
        ("generations", f"{result['refreshes_per_s']:.2f} per second"),
        ("ticks", f"{result['ticks_per_s']:.0f} per second of {result['tick_ms']:.2f} ms: {result['ticks_share']:.0%}"),
        ("CPU", f"server {result['server_cpu']:.2f} cores, clients {result['clients_cpu']:.2f}"),
        ("memory", f"server {result['server_mib']:.0f} MiB, {result['mib_per_session']:.1f} per session"),
        ("idle server", f"{result['idle_mib']:.0f} MiB, {result['idle_cpu_percent']:.1f} % of a core"),
    ]


def _background(result: Mapping[str, Any]) -> str:
    made, took_s = result["background_generations"], result["background_generation_s"]
    frozen = f"{result['preemptions']:.0f} times frozen for a live session"
    return f"{result['background']} clients over HTTP: {made:.0f} generations, {took_s:.2f} s each, {frozen}"


def _refusals(result: Mapping[str, Any]) -> str:
    admitted = f"{result['sessions']} of {result['asked']} sessions admitted"
    if not result["refused"]:
        return admitted
    when = f"{result['refused_with_retry_after']} of them know when to ask again"
    return f"{admitted}, {result['refused']} refused, {when}: {result['refusal']}"


def _print_sweep(console: Console, result: Mapping[str, Any]) -> None:
    title = f"{result['bundle']} on {result['target']}: live sessions, mode {result['mode']}; p95 in ms"
    kinds = [f"{kind.split('_')[0][:4]}\n{part}" for kind in KINDS for part in PARTS]
    columns = ("N", *kinds, "under-\nruns", "min\nlead", "gen/s", "ticks", "CPU", "MiB", "goals")
    print_table(console, title, columns, [_sweep_row(point) for point in result["points"]], 0)
    for point in result["points"]:
        if "refused" in point:
            console.print(_refusals(point), highlight=False)
        if "planning_cpu" in point:
            cores, share = point["planning_cpu"], point["planning_cpu"] / max(point["server_cpu"], 1e-9)
            text = f"{point['sessions']}* with a plan: planning takes {cores:.2f} cores, {share:.0%} of the CPU"
            console.print(text, highlight=False)


def _sweep_row(point: Mapping[str, Any]) -> tuple[str | Text, ...]:
    latencies = [point["control_to_sound_ms"][kind][part].get("p95") for kind in KINDS for part in PARTS]
    return (
        f"{point['sessions']}{'*' if point.get('plan') else ''}",
        *("" if latency is None else f"{latency:.0f}" for latency in latencies),
        str(point["underruns"]),
        f"{point['lead_s']['min']:.3f}",
        f"{point['refreshes_per_s']:.1f}",
        f"{point['ticks_share']:.0%}",
        f"{point['server_cpu']:.2f}",
        f"{point['server_mib']:.0f}",
        verdict(point),
    )


def plot_live(result: Mapping[str, Any]) -> str:
    """The sweep as SVG: p95 of each latency over the number of sessions."""
    lines = {
        f"{LABELS[kind]}, {part}{label}": [
            (float(point["sessions"]), float(latency["p95"]))
            for point in result["points"]
            if bool(point.get("plan")) == bool(label) and (latency := point["control_to_sound_ms"][kind][part])
        ]
        for kind in KINDS
        for part in PARTS
        for label in ("", ", plan")
    }
    title = f"{result['bundle']} on {result['target']}: from a control to its sound, mode {result['mode']}"
    played = {name: line for name, line in lines.items() if line}
    return svg(title, "live sessions", "ms (p95)", played or {"no control was played": [(1.0, 1.0)]})
