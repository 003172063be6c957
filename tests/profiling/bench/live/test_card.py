"""The live bench's tables and plot."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from profiling.bench.live.card import plot_live, print_live
from profiling.bench.live.run import refusals

KINDS = ("step_parameter", "generation_parameter")
ABOUT = {"bundle": "demo", "target": "cpu", "mode": "loop"}


def point(sessions: int, p95_ms: float, *, is_kept: bool = True) -> dict[str, Any]:
    latency = {"p50": 100.0, "p95": p95_ms, "max": 321.0}
    parts = {"first": latency, "full": latency}
    return {
        "sessions": sessions, "control_to_sound_ms": dict.fromkeys(KINDS, parts),
        "stages_ms": {kind: {"first": {"received": 55.0}, "full": {}} for kind in KINDS},
        "controls": dict.fromkeys(KINDS, 7), "not_played": 1, "underruns": 2, "missing_s": 0.3, "late_s": 0.0,
        "lead_s": {"min": 0.05, "p50": 0.2}, "problems": 0, "refreshes_per_s": 1.5, "ticks_per_s": 80.0,
        "tick_ms": 10.0, "ticks_share": 0.8, "server_cpu": 1.25, "clients_cpu": 0.05,
        "server_mib": 400.4, "mib_per_session": 12.5, "idle_mib": 300.2, "idle_cpu_percent": 0.6,
        "budget": {"step_parameter_first": 180.0, "underruns": 0.0}, "within_budget": is_kept,
    }  # fmt: skip


def text_of(result: dict[str, Any]) -> list[list[str]]:
    console = Console(record=True, width=80)
    print_live(console, result)
    return [line.split() for line in console.export_text().splitlines()]


def test_a_run_has_latencies_goals_and_stages() -> None:
    lines = text_of({**ABOUT, **point(1, 222.0, is_kept=False)})
    assert ["step", "parameter,", "first", "100", "222", "321", "180"] in lines
    assert ["step", "parameter,", "first", "55"] in lines
    assert ["generation", "parameter,", "full", "100", "222", "321"] in lines
    assert ["goals", "missed"] in lines
    assert ["controls", "14", "changed,", "1", "not", "played,", "0", "problems"] in lines
    assert ["memory", "server", "400", "MiB,", "12.5", "per", "session"] in lines
    assert ["idle", "server", "300", "MiB,", "0.6", "%", "of", "a", "core"] in lines
    assert ["ticks", "80", "per", "second", "of", "10.00", "ms:", "80%"] in lines


def test_generations_in_the_background_are_shown() -> None:
    beside = {
        "background": 8, "background_generations": 31, "background_generation_s": 1.256, "preemptions": 7.0,
    }  # fmt: skip
    shown = "background 8 clients over HTTP: 31 generations, 1.26 s each, 7 times frozen for a live session"
    assert shown in " ".join(word for line in text_of({**ABOUT, **point(1, 1.0), **beside}) for word in line)


def test_refusals_are_shown_with_what_the_clients_know() -> None:
    admission = {"asked": 5, "refused": 4, "refused_with_retry_after": 4, "refusal": "with one more it is full"}
    sweep = {**ABOUT, "over": "sessions", "points": [{**point(1, 1.0), **admission}]}
    shown = "1 of 5 sessions admitted, 4 refused, 4 of them know when to ask again: with one more it is full"
    for result in ({**ABOUT, **point(1, 1.0), **admission}, sweep):
        assert shown in " ".join(word for line in text_of(result) for word in line)
    everyone = {**ABOUT, **point(5, 1.0), **refusals(5, [])}
    assert ["admission", "5", "of", "5", "sessions", "admitted"] in text_of(everyone)


def test_a_sweep_has_a_line_per_number_of_sessions_and_a_plot() -> None:
    result = {**ABOUT, "over": "sessions", "points": [point(1, 111.0), point(8, 444.0, is_kept=False)]}
    lines = text_of(result)
    assert ["1", "111", "111", "111", "111", "2", "0.050", "1.5", "80%", "1.25", "400", "kept"] in lines
    assert ["8", "444", "444", "444", "444", "2", "0.050", "1.5", "80%", "1.25", "400", "missed"] in lines
    assert plot_live(result).count("<circle") == 8


def test_controls_that_were_never_heard_leave_their_cells_empty() -> None:
    not_played = {
        **point(2, 100.0),
        "control_to_sound_ms": {kind: {"first": {}, "full": {}} for kind in KINDS},
    }
    assert ["step", "parameter,", "full"] in text_of({**ABOUT, **not_played})
    result = {**ABOUT, "over": "sessions", "points": [point(1, 100.0), not_played]}
    assert ["2", "2", "0.050", "1.5", "80%", "1.25", "400", "kept"] in text_of(result)
    assert plot_live(result).count("<circle") == 4
    assert "no control was played" in plot_live({**result, "points": [not_played]})


def test_runs_without_a_plan_and_with_one_say_what_planning_takes() -> None:
    points = [{**point(2, 100.0), "plan": False}, {**point(2, 120.0), "plan": True, "planning_cpu": 0.25}]
    lines = text_of({**ABOUT, "over": "sessions", "points": points})
    figures = ["2", "0.050", "1.5", "80%", "1.25", "400", "kept"]
    assert ["2", "100", "100", "100", "100", *figures] in lines
    assert ["2*", "120", "120", "120", "120", *figures] in lines
    assert ["2*", "with", "a", "plan:", "planning", "takes", "0.25", "cores,", "20%", "of", "the", "CPU"] in lines
    assert plot_live({**ABOUT, "points": points}).count("<circle") == 8
