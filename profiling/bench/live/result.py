"""A run of the live bench as a result: how soon controls are played, where the time goes, and the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profiling.bench.live.script import KINDS, ClientRun, Control
from profiling.bench.result import against_budget, rounded
from profiling.significance import thinned
from runtime.config.deployment import Target

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


def goals_of(target: Target, sessions: int) -> dict[str, float]:
    """Figure -> the most that it may be. Underruns are a goal for any number of sessions."""
    goals = (CPU_GOALS if target == "cpu" else GPU_GOALS).get(sessions, {})
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
