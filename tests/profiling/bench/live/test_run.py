"""Numbers of sessions, and what makes two runs of the live bench comparable."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.http_harness import Served, eventually

from profiling.bench.live.client import SessionRefusedError
from profiling.bench.live.run import LiveLoad, generating, note_planning, parse_sessions, refusals
from profiling.bench.live.script import Script
from runtime.errors import ConfigError, TickError
from server.asgi.problems import draining


def test_sessions_are_one_number_or_several() -> None:
    assert parse_sessions("8") == (8,)
    assert parse_sessions("1, 2,16") == (1, 2, 16)


@pytest.mark.parametrize("text", ["", "x", "0", "2,2", "1,,2", "-1"])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="--live 8"):
        parse_sessions(text)


def test_the_shape_of_a_run_and_of_a_sweep() -> None:
    script = Script("extend", 2.0, 30.0)
    assert LiveLoad((8,), script).shape() == {"sessions": 8, "mode": "extend", "interval_s": 2.0, "minutes": 0.5}
    sweep = LiveLoad((1, 2), script)
    assert (sweep.kind, sweep.shape()["over"], sweep.shape()["values"]) == ("live sweep", "sessions", [1, 2])


def test_every_number_of_sessions_plays_without_a_plan_and_with_one() -> None:
    load = LiveLoad((2,), Script("extend", 2.0, 30.0), compares_plans=True)
    assert (load.kind, [(sessions, script.plan) for sessions, script in load.runs]) == (
        "live sweep", [(2, False), (2, True)]
    )  # fmt: skip
    points: list[dict[str, Any]] = [{"server_cpu": 0.5}, {"server_cpu": 0.8}]
    note_planning(points)
    assert points == [{"server_cpu": 0.5, "plan": False}, {"server_cpu": 0.8, "plan": True, "planning_cpu": 0.3}]
    with pytest.raises(ConfigError, match="--mode extend"):
        LiveLoad((2,), Script("loop", 2.0, 30.0), compares_plans=True)


def test_clients_in_the_background_generate_until_the_sessions_have_played(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with generating(served.url, 2) as took_s:
        eventually(lambda: len(took_s) > 3)
    made = len(took_s)
    assert served.metrics()["tickrt_generations_total{outcome=ok}"] == made
    assert LiveLoad((8,), Script("loop", 2.0, 30.0), background=2).shape()["background"] == 2

    def refuse(client: str) -> None:
        raise draining()

    monkeypatch.setattr(served.service.admission, "admit", refuse)  # A server that is drained ends.
    with pytest.raises(TickError, match="shutting down"), generating(served.url, 1):
        pass


def test_refusals_are_counted_with_their_reason_and_those_that_say_when_to_ask_again() -> None:
    refused = [SessionRefusedError("4.5 s", retry_after_s=5.0), SessionRefusedError("it closed the connection")]
    assert refusals(8, refused) == {
        "asked": 8, "refused": 2, "refused_with_retry_after": 1, "refusal": "4.5 s",
    }  # fmt: skip
    assert LiveLoad((8,), Script("loop", 2.0, 30.0), admission=True).shape()["admission"]
