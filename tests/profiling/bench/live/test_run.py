"""Numbers of sessions, and what makes two runs of the live bench comparable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import Built
from helpers.http_harness import Served, eventually

from profiling.bench.live import run
from profiling.bench.live.client import SessionRefusedError
from profiling.bench.live.run import (
    LiveLoad,
    generating,
    measure_live,
    note_planning,
    parse_sessions,
    refusals,
    server_usage,
)
from profiling.bench.live.script import ClientRun, Script
from runtime.base.errors import ConfigError, TickError
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


SCRIPT = Script("loop", 2.0, 30.0)


def reading(
    cpu_s: float, ticks: float, tick_s: float, mib: float = 100.0, preemptions: float = 0.0
) -> dict[str, float]:
    """What a server says of itself."""
    return {
        run.CPU: cpu_s, run.MEMORY: mib * 2**20, run.PREEMPTIONS: preemptions, "tickrt_live_refreshes_total": ticks / 5,
        "tickrt_tick_duration_seconds_count": ticks, "tickrt_tick_duration_seconds_sum": tick_s,
    }  # fmt: skip


def test_a_server_s_use_is_what_it_did_between_two_readings() -> None:
    used = server_usage(reading(1.0, 100.0, 2.0), reading(4.0, 300.0, 6.0), 10.0)
    assert used == pytest.approx(
        {"refreshes_per_s": 4.0, "ticks_per_s": 20.0, "tick_ms": 20.0, "ticks_share": 0.4, "server_cpu": 0.3}
    )
    assert server_usage(reading(1.0, 100.0, 2.0), reading(1.0, 100.0, 2.0), 10.0)["tick_ms"] == 0.0


class Bench:
    """A server and clients that take what the test says: a client 10 s and 2 s of CPU, the second one is refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *readings: dict[str, float]) -> None:
        self.readings = iter(readings)
        self.now_s = self.cpu_s = 0.0
        self.asked: list[Any] = []
        self.arrivals_s: list[float] = []
        self.prompts, self.scripts = set[str](), list[Script]()
        clock = SimpleNamespace(sleep=self.pass_s, monotonic=lambda: self.now_s, process_time=lambda: self.cpu_s)
        replaced = {
            "time": clock, "server_process": self.serve, "run_client": self.play, "generating": self.generating,
            "live_result": lambda target, runs, used: {"target": target, "runs": len(runs), **used},
        }  # fmt: skip
        for name, value in replaced.items():
            monkeypatch.setattr(run, name, value)
        sleep = asyncio.sleep

        async def arrive(seconds: float) -> None:
            self.arrivals_s.append(seconds)
            await sleep(0)

        loop = {name: getattr(asyncio, name) for name in ("run", "gather", "create_task")}
        monkeypatch.setattr(run, "asyncio", SimpleNamespace(**loop, sleep=arrive))
        monkeypatch.setattr(run, "_show", lambda progress, duration_s: sleep(60))

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds

    @contextmanager
    def serve(self, config: Path, settings: Mapping[str, str], *, options: Sequence[str]) -> Iterator[Any]:
        self.asked.append((dict(settings), options))
        yield SimpleNamespace(url="http://server", metrics=lambda: next(self.readings))

    @contextmanager
    def generating(self, url: str, clients: int, prompt: str) -> Iterator[Sequence[float]]:
        self.asked.append((url, clients))
        self.prompts.add(prompt)
        yield [1.0, 9.0, 2.0] if clients else []

    async def play(self, url: str, script: Script, index: int) -> ClientRun:
        self.scripts.append(script)
        if index == 1:
            raise SessionRefusedError("full", retry_after_s=4.0)
        self.pass_s(10.0)
        self.cpu_s += 2.0
        return ClientRun([], cast(Any, None))


def test_a_run_beside_generations_has_what_server_and_clients_used(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = (reading(1.0, 10.0, 1.0), reading(1.05, 10.0, 1.0, 101.0))
    bench = Bench(monkeypatch, *idle, reading(2.0, 10.0, 1.0), reading(7.0, 210.0, 5.0, 151.0, 7.0))
    result = measure_live(built(), LiveLoad((2,), SCRIPT, admission=True, background=3))
    assert bench.asked == [({"TICKRT_CLIENT_SESSIONS": "0"}, ("--target", "cpu")), ("http://server", 3)]
    assert bench.arrivals_s == [0.0, run.ARRIVAL_S], "one after the other, as the server decides from what it measures"
    figures = {
        "idle_cpu_percent": 5.0, "idle_mib": 101.0, "server_mib": 151.0, "mib_per_session": 25.0, "clients_cpu": 0.2,
        "server_cpu": 0.5, "ticks_per_s": 20.0, "tick_ms": 20.0, "ticks_share": 0.4, "refreshes_per_s": 4.0,
        "background_generations": 3, "background_generation_s": 2.0, "preemptions": 7.0,
    }  # fmt: skip
    assert {name: result[name] for name in figures} == pytest.approx(figures)
    assert (result["kind"], result["sessions"], result["runs"], result["bundle"]) == ("live", 2, 1, "tiny")
    assert (result["asked"], result["refused"], result["refusal"]) == (2, 1, "full")


@pytest.mark.parametrize("has_text", [True, False])
def test_a_model_without_text_is_played_without_prompts(
    built: Built, monkeypatch: pytest.MonkeyPatch, has_text: bool
) -> None:
    bench = Bench(monkeypatch, *[reading(0.0, 0.0, 0.0)] * 4)
    measure_live(built(text_encoder=has_text, null=True), LiveLoad((1,), SCRIPT, background=1))
    assert [script.has_text for script in bench.scripts] == [has_text]
    assert [bool(prompt) for prompt in bench.prompts] == [has_text]


def test_a_sweep_is_not_limited_by_the_server_and_a_refusal_ends_it(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch, *[reading(0.0, 0.0, 0.0)] * 10)
    load = LiveLoad((1, 1), Script("extend", 2.0, 30.0), compares_plans=True)
    result = measure_live(built(), load)
    limits = {"TICKRT_CLIENT_SESSIONS": "0", "TICKRT_MAX_REFRESH_S": "3600", "TICKRT_MAX_SESSIONS": "4"}
    assert bench.asked[0][0] == limits
    assert [(point["runs"], point["plan"], "asked" in point) for point in result["points"]] == [
        (1, False, False), (1, True, False), (1, False, False), (1, True, False)
    ]  # fmt: skip
    assert ("preemptions" in result["points"][0], bench.arrivals_s) == (False, [])
    Bench(monkeypatch, *[reading(0.0, 0.0, 0.0)] * 10)
    with pytest.raises(SessionRefusedError, match="full"):
        measure_live(built(), LiveLoad((2,), SCRIPT))


def test_the_progress_is_the_share_of_the_script_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s, shares = iter([100.0, 103.0, 125.0]), list[float]()

    async def show() -> None:
        showing = asyncio.create_task(run._show(cast(Any, SimpleNamespace(update=shares.append)), 12.0))
        while len(shares) < 2:
            await asyncio.sleep(0)
        showing.cancel()

    monkeypatch.setattr(run, "REDRAW_INTERVAL_S", 0.0)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(times_s)))
    asyncio.run(show())
    assert shares == [0.25, 1.0]
