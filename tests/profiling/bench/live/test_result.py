"""Results of synthetic runs: latencies, stages, goals."""

from __future__ import annotations

from typing import Any, cast

import pytest
from helpers.live_clients import RATE, ready

from profiling.bench.live.client import LiveClient
from profiling.bench.live.result import goals_of, live_result, stages_of
from profiling.bench.live.script import ClientRun, Control
from profiling.bench.live.sound_log import AudioRange
from runtime.config.deployment import Target
from runtime.live.protocol.server_messages import Applied, Stages

SERVER = {"refreshes_per_s": 1.0, "ticks_per_s": 50.0, "tick_ms": 10.0, "ticks_share": 0.5, "server_cpu": 0.7}


def run_of(*delays_ms: int, missing: bool = False) -> ClientRun:
    """A client that played 20 s; a step parameter is changed every second, and heard that much later: half of it first,
    all of it 100 ms later."""
    client = LiveClient(cast(Any, None), ready(), 0.0)
    client.log.write(AudioRange(0, 500 if missing else 20 * RATE, 0, 0, 0.0), 0.0)
    client.log.start(0.0)
    controls = []
    for seq, delay_ms in enumerate(delays_ms, start=1):
        controls.append(Control("step_parameter", seq, float(seq)))
        now_s = seq + delay_ms / 1000 - 0.05
        first = round((now_s + 0.05) * RATE)
        client.log.write(AudioRange(first, first + 100, seq, seq - 1, now_s), now_s)
        client.log.write(AudioRange(first + 100, 20 * RATE, seq, seq, now_s), now_s)
        stages = Stages(submitted=1.0, finished=delay_ms / 2, decoded=delay_ms / 2 + 3)
        client.applied[seq] = [
            Applied(seq=seq, tick=1, first_sample=first, stages_ms=Stages(submitted=1.0)),
            Applied(seq=seq, tick=2, full_sample=first + 100, stages_ms=stages),
        ]
    client.log.advance(20.0)
    client.worst_leads_s = [0.2, 0.1, 0.3]
    return ClientRun(controls, client)


def test_stages_are_times_since_the_control_was_sent() -> None:
    run = run_of(200, 400)
    assert stages_of(run, run.controls[1], "first") == pytest.approx({"submitted": 1, "received": 350, "played": 400})
    assert stages_of(run, run.controls[0], "full") == pytest.approx(
        {"submitted": 1, "finished": 100, "decoded": 103, "received": 150, "played": 300}
    )
    assert stages_of(run, Control("step_parameter", 9, 0.0), "full") is None


def test_a_result_has_latencies_by_kind_and_part() -> None:
    result = live_result("cpu", [run_of(100, 200), run_of(300)], SERVER)
    step = result["control_to_sound_ms"]["step_parameter"]
    assert step["first"] == {"p50": 200.0, "p95": 290.0, "max": 300.0}
    assert step["full"] == {"p50": 300.0, "p95": 390.0, "max": 400.0}
    assert result["stages_ms"]["step_parameter"]["full"]["finished"] == 100.0
    assert result["control_to_sound_ms"]["generation_parameter"]["full"] == {}
    assert result["controls"] == {"step_parameter": 3, "generation_parameter": 0}
    assert (result["sessions"], result["not_played"], result["underruns"]) == (2, 0, 0)
    assert result["lead_s"] == {"min": 0.1, "p50": 0.2}
    assert result["server_cpu"] == 0.7


def test_controls_that_were_not_heard_are_counted() -> None:
    run = run_of(100)
    run.controls.append(Control("generation_parameter", 2, 5.0))
    assert live_result("cpu", [run], SERVER)["not_played"] == 2


def test_an_underrun_misses_the_goal() -> None:
    kept, missed = (live_result("cpu", [run_of(100, missing=missing)] * 2, SERVER) for missing in (False, True))
    assert (kept["within_budget"], kept["underruns"]) == (True, 0)
    assert (missed["within_budget"], missed["underruns"]) == (False, 2)
    assert missed["missing_s"] == pytest.approx(2 * 0.6)


@pytest.mark.parametrize(
    ("target", "sessions", "goals"),
    [
        ("cpu", 1, {"step_parameter_first": 180.0, "generation_parameter_full": 300.0, "underruns": 0.0}),
        ("cpu", 8, {"step_parameter_first": 300.0, "generation_parameter_full": 600.0, "underruns": 0.0}),
        ("cpu", 16, {"underruns": 0.0}),
        ("tensorrt", 8, {"step_parameter_first": 60.0, "generation_parameter_full": 300.0, "underruns": 0.0}),
    ],
)
def test_goals_by_target_and_number_of_sessions(target: Target, sessions: int, goals: dict[str, float]) -> None:
    assert goals_of(target, sessions) == goals


def test_a_control_that_is_never_heard_misses_its_goal() -> None:
    assert live_result("cpu", [run_of(100)], SERVER)["within_budget"] is False
