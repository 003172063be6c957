"""What a run of the live bench found: how soon controls are played, where the time goes, and the goals; as a JSON
object, as tables, and a sweep as a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from profiling.bench.live.script import KINDS, ClientRun, Control
from profiling.bench.result import against_budget, rounded, verdict
from profiling.comparison import thinned
from profiling.output import save_plot
from runtime.commands.terminal import print_table
from runtime.config.deployment import HOST_TARGETS, Target

PARTS = ("first", "full")
# Where the time of a control goes: each is the time since it was sent, up to `decoded` by the host's clock.
STAGES = ("submitted", "finished", "decoded", "received", "played")
# p95 in milliseconds by number of sessions: the embedded default on two cores, and a GPU at ACE-Step's size.
STEP_FIRST, GENERATION_FULL = "step_parameter_first", "generation_parameter_full"
CPU_GOALS: Mapping[int, Mapping[str, float]] = {
    1: {STEP_FIRST: 180.0, GENERATION_FULL: 300.0},
    8: {STEP_FIRST: 300.0, GENERATION_FULL: 600.0},
}
GPU_GOALS: Mapping[int, Mapping[str, float]] = {8: {STEP_FIRST: 60.0, GENERATION_FULL: 300.0}}
Cells = Callable[[Mapping[str, Any], str, str], list[float | None]]
LABELS = {"step_parameter": "step parameter", "generation_parameter": "generation parameter"}


def goals_of(target: Target, sessions: int) -> dict[str, float]:
    """Figure -> the most that it may be. Underruns are a goal for any number of sessions."""
    goals = (CPU_GOALS if target in HOST_TARGETS else GPU_GOALS).get(sessions, {})
    return {**goals, "underruns": 0.0}


def stages_of(run: ClientRun, control: Control, part: str) -> dict[str, float] | None:
    """Stage -> milliseconds since the control was sent; None where it was not played."""
    log = run.client.log
    audio = log.first(control.seq) if part == "first" else log.full(control.seq)
    if audio is None:
        return None
    sample = "first_sample" if part == "first" else "full_sample"
    of_part = [each.stages_ms for each in run.client.applied[control.seq] if getattr(each, sample) is not None]
    by_host = of_part[0].model_dump(exclude_none=True) if of_part and of_part[0] is not None else {}
    by_client = {"received": audio.received_s, "played": log.time_of(audio.begin)}
    return {**by_host, **{stage: 1e3 * (at_s - control.sent_s) for stage, at_s in by_client.items()}}


def live_result(target: Target, runs: Sequence[ClientRun], server: Mapping[str, float]) -> dict[str, Any]:
    """A run as one JSON object. `server`: what was measured on its side."""
    played = {
        kind: {
            part: [stages_of(run, control, part) for run in runs for control in run.controls if control.kind == kind]
            for part in PARTS
        }
        for kind in KINDS
    }
    latency_ms = {kind: {part: _latency_ms(found) for part, found in parts.items()} for kind, parts in played.items()}
    logs = [run.client.log for run in runs]
    underruns = sum(log.underruns for log in logs)
    figures = {
        "underruns": float(underruns),
        **{f"{kind}_{part}": parts[part].get("p95", np.inf) for kind, parts in latency_ms.items() for part in PARTS},
    }
    return {
        "sessions": len(runs),
        "control_to_sound_ms": latency_ms,
        "stages_ms": {
            kind: {part: _stages_ms(found) for part, found in parts.items()} for kind, parts in played.items()
        },
        "controls": {kind: len(parts["full"]) for kind, parts in played.items()},
        "not_played": sum(found is None for parts in played.values() for part in PARTS for found in parts[part]),
        "underruns": underruns,
        "missing_s": round(sum(log.missing_samples / log.sample_rate_hz for log in logs), 4),
        "late_s": round(sum(log.late_samples / log.sample_rate_hz for log in logs), 4),
        "lead_s": _lead_s(runs),
        "problems": sum(len(run.client.problems) for run in runs),
        "samples": {
            f"control_to_sound_ms {kind} {part} p50": [_samples_ms(found)]
            for kind, parts in played.items()
            for part, found in parts.items()
        },
        **rounded(server),
        **against_budget(goals_of(target, len(runs)), figures),
    }


def _latency_ms(found: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    """p50, p95 and max of the time to sound; empty where nothing was played."""
    played_ms = [stages["played"] for stages in found if stages is not None]
    if not played_ms:
        return {}
    p50, p95, largest = np.percentile(played_ms, (50, 95, 100))
    return {"p50": round(float(p50), 1), "p95": round(float(p95), 1), "max": round(float(largest), 1)}


def _samples_ms(found: Sequence[Mapping[str, float] | None]) -> list[float]:
    return thinned([stages["played"] for stages in found if stages is not None], digits=1)


def _stages_ms(found: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    """The median of each stage."""
    times_ms = {name: [stages[name] for stages in found if stages is not None and name in stages] for name in STAGES}
    return {name: round(float(np.median(each)), 1) for name, each in times_ms.items() if each}


def _lead_s(runs: Sequence[ClientRun]) -> dict[str, float]:
    """The clients' buffered audio: the smallest, and the median of the smallest between two reports."""
    leads_s = [lead_s for run in runs for lead_s in run.client.worst_leads_s] or [0.0]
    return {"min": round(min(leads_s), 4), "p50": round(float(np.median(leads_s)), 4)}


def print_live(console: Console, result: Mapping[str, Any]) -> None:
    """One run: latencies, then what it took; or the sweep."""
    if "points" in result:
        _print_sweep(console, result)
        return
    title = f"{result['bundle']} on {result['target']}: {result['sessions']} live sessions, mode {result['mode']}"
    title = f"{title}; ms from a control to its sound"
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


def plot_live(console: Console, path: Path, result: Mapping[str, Any]) -> None:
    """Draw the sweep over the number of sessions."""
    title = f"{result['bundle']} on {result['target']}: from a control to its sound, mode {result['mode']}"
    save_plot(console, path, title, ("live sessions", "ms (p95)"), plot_lines(result["points"]))


def plot_lines(points: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """The p95 of each latency by the number of sessions, apart without a plan and with one; only what was played."""
    lines = {
        f"{LABELS[kind]}, {part}{label}": [
            (float(point["sessions"]), float(latency["p95"]))
            for point in points
            if bool(point.get("plan")) == bool(label) and (latency := point["control_to_sound_ms"][kind][part])
        ]
        for kind in KINDS
        for part in PARTS
        for label in ("", ", plan")
    }
    return {name: line for name, line in lines.items() if line}
