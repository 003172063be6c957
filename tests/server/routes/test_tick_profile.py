"""POST /admin/profile: a trace of the next ticks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest
from conftest import Loops
from helpers.backends import BACKENDS, Backend
from helpers.generations import GUIDED, Inbox, make
from helpers.http_harness import Serve, Served, connected, eventually, problem, raw_request, serving

from runtime.config.deployment import Deployment
from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop
from runtime.tick.runner import BucketSpan
from server.routes.tick_profile import device_begins, tick_trace

KEY = "only-for-admins"
# Of the test server: its metrics, its live sessions, and the recorder of the tests.
NUM_OBSERVERS = 4  # those of the server itself: watchdog, metrics, two of tick times
PATH = "/admin/profile"


@pytest.fixture(scope="module")
def admin(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny(), admin_key=KEY) as server:
        yield server


def ask(served: Served, key: str | None = KEY, **params: Any) -> httpx.Response:
    headers = {} if key is None else {"x-admin-key": key}
    return served.send("POST", PATH, params=params, headers=headers)


def profile_during(served: Served, work: Callable[[], object], **params: Any) -> httpx.Response:
    """Request a profile, then run `work` for ticks."""
    with ThreadPoolExecutor(1) as pool:
        answer: Future[httpx.Response] = pool.submit(ask, served, **params)
        eventually(lambda: served.service.is_profiling)
        work()
        return answer.result()


def test_the_route_exists_only_with_an_admin_key(served: Served) -> None:
    problem(ask(served), 404, "not_found")
    assert PATH not in served.app.openapi()["paths"]


@pytest.mark.parametrize("key", [None, "", "wrong", KEY + "x", "schlüssel"])
def test_a_wrong_admin_key_is_refused(admin: Served, key: str | None) -> None:
    before = list(admin.pipeline.loop.observers)
    headers = {} if key is None else {"x-admin-key": key.encode()}
    document = problem(admin.send("POST", PATH, headers=headers), 403, "admin_key_needed")
    assert document["fix"] == "send X-Admin-Key: KEY"
    assert admin.pipeline.loop.observers == before


def test_both_keys_are_needed_where_an_api_key_is_set(serve: Serve) -> None:
    served = serve(admin_key=KEY, api_key="for-all")
    problem(ask(served), 401, "unauthorized")
    with served.client(headers={"x-api-key": "for-all"}) as client:
        problem(client.post(PATH), 403, "admin_key_needed")
        found = client.post(PATH, params={"wait_s": 0.01}, headers={"x-admin-key": KEY})
    assert found.status_code == 200
    operation = served.app.openapi()["paths"][PATH]["post"]
    assert operation["security"] == [{"admin": [], "bearer": []}, {"admin": [], "header": []}]


def test_the_trace_holds_the_next_ticks(admin: Served) -> None:
    expected = admin.post(steps=6).content
    bodies: list[bytes] = []
    answer = profile_during(admin, lambda: bodies.append(admin.post(steps=6).content), ticks=4)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert bodies == [expected]
    trace = answer.json()
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ticks = [event for event in slices if event["name"].startswith("tick ")]
    numbers = [int(event["name"].split()[1]) for event in ticks]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert trace["otherData"] == {"ticks": 4}
    phases = [event for event in slices if event["tid"] == 1 and event not in ticks]
    assert {"schedule", "launch", "commit"} <= {event["name"] for event in phases} <= set(PHASES)
    assert sum(event["dur"] for event in phases) == pytest.approx(sum(event["dur"] for event in ticks), rel=0.01)
    executes = [event for event in slices if event["tid"] > 1]
    assert [event["args"]["rows"] for event in executes] == [2] * 4
    assert admin.pipeline.loop.observers.count(admin.observe) == 1
    assert len(admin.pipeline.loop.observers) == NUM_OBSERVERS


def test_the_trace_ends_after_wait_s(admin: Served) -> None:
    answer = profile_during(admin, lambda: admin.post(steps=3), ticks=1000, wait_s=3.0)
    assert answer.json()["otherData"] == {"ticks": 3}
    assert ask(admin, wait_s=0.01).json()["otherData"] == {"ticks": 0}


@pytest.mark.parametrize(
    "params", [{"ticks": 0}, {"ticks": 1001}, {"ticks": "many"}, {"wait_s": 0}, {"wait_s": 61}, {"wait_s": "nan"}]
)
def test_the_parameters_are_bounded(admin: Served, params: dict[str, Any]) -> None:
    problem(ask(admin, **params), 422, "invalid_request")


def test_a_second_profile_is_refused_while_one_is_recorded(admin: Served) -> None:

    def ask_again() -> None:
        problem(ask(admin), 409, "profile_running")
        assert admin.post(steps=2).status_code == 200

    assert profile_during(admin, ask_again, ticks=2).json()["otherData"] == {"ticks": 2}
    assert not admin.service.is_profiling


def test_a_disconnect_ends_the_profile(admin: Served) -> None:
    with connected(admin, raw_request(path=f"{PATH}?wait_s=60", headers=f"x-admin-key: {KEY}\r\n")):
        eventually(lambda: admin.service.is_profiling)
    eventually(lambda: not admin.service.is_profiling)
    assert len(admin.pipeline.loop.observers) == NUM_OBSERVERS


def test_a_profile_does_not_delay_shutdown(serve: Serve) -> None:
    served = serve(admin_key=KEY)
    with connected(served, raw_request(path=f"{PATH}?wait_s=60", headers=f"x-admin-key: {KEY}\r\n")):
        eventually(lambda: served.service.is_profiling)
        served.server.drain()
        eventually(lambda: served.service.pipeline is None)


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


def record(tick: int, started_s: float, gap_ms: float, buckets: tuple[BucketSpan, ...] = ()) -> TickRecord:
    times_s = (("inbox", 0.0), ("launch", 0.001), ("wait", 0.003), ("", 0.01))
    marks = tuple((phase, started_s + time_s) for phase, time_s in times_s)
    return TickRecord(
        tick, 2, 4, (16, 32), 2, ("plain", "dcw"), 3, tick_ms=10.0, marks=marks, buckets=buckets, device_gap_ms=gap_ms
    )


LANES = (BucketSpan(16, 1, 2, 1, 0.0, 3.0), BucketSpan(32, 1, 2, 1, 4.0, 5.0))


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_the_trace_of_two_ticks() -> None:
    trace = tick_trace([record(7, 100.0, 99.0, LANES), record(8, 100.01, 12.0, LANES)])
    found = [(event["name"], event["tid"], event["ts"], event["dur"]) for event in slices(trace)]
    assert found == [
        ("tick 7", 1, 0.0, 10000.0), ("inbox", 1, 0.0, 1000.0), ("launch", 1, 1000.0, 2000.0),
        ("wait", 1, 3000.0, 7000.0), ("2 rows", 2, 1000.0, 3000.0), ("2 rows", 3, 5000.0, 5000.0),
        ("tick 8", 1, 10000.0, 10000.0), ("inbox", 1, 10000.0, 1000.0), ("launch", 1, 11000.0, 2000.0),
        ("wait", 1, 13000.0, 7000.0), ("2 rows", 2, 13000.0, 3000.0), ("2 rows", 3, 17000.0, 5000.0),
    ]  # fmt: skip
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["tickrt", "tick thread", "decoder, 16 frames", "decoder, 32 frames"]
    counters = [event["args"] for event in trace["traceEvents"] if event["ph"] == "C"]
    assert counters == [{"slots": 2, "waiting": 3}] * 2
    assert json.loads(json.dumps(trace)) == trace


def test_a_tick_says_how_many_were_frozen_before_it_and_how_many_went_on() -> None:
    found = record(7, 100.0, 0.0)
    found.frozen, found.resumed = ("a", "b"), ("c",)
    (tick, *_) = slices(tick_trace([found]))
    assert (tick["args"]["frozen"], tick["args"]["resumed"]) == (2, 1)


def test_no_execute_is_placed_before_its_launch() -> None:
    """On the device's clock the second tick began 4 ms after the first; the host launched it 10 ms after."""
    assert device_begins([record(1, 0.0, 0.0), record(2, 0.01, 4.0)], [0.0, 10.0]) == pytest.approx([7.0, 11.0])


def test_the_trace_of_no_ticks_is_empty() -> None:
    trace = tick_trace([])
    assert (slices(trace), trace["otherData"]) == ([], {"ticks": 0})


def play(loop: TickLoop) -> list[TickRecord]:
    shown: list[TickRecord] = []
    loop.observers.append(shown.append)
    for index in range(3):
        loop.submit(make(f"{index}", (32, 16, 32)[index], steps=6, **GUIDED), Inbox())
    while loop.tick() is not None:
        pass
    return shown


def ends(events: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(event["ts"], event["ts"] + event["dur"]) for event in events]


def test_phases_lie_in_their_ticks_and_executes_do_not_overlap(loops: Loops) -> None:
    events = slices(tick_trace(play(loops())))
    ticks = [event for event in events if event["name"].startswith("tick ")]
    phases = [event for event in events if event["tid"] == 1 and event not in ticks]
    assert len(ticks) == 6
    for begin, end in ends(phases):
        assert any(low - 0.01 <= begin and end <= high + 0.01 for low, high in ends(ticks))
    for tid in (2, 3):
        bucket = ends(event for event in events if event["tid"] == tid)
        assert len(bucket) == 6
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(bucket))
    launches = {event["ts"] for event in phases if event["name"] == "launch"}
    assert min(event["ts"] for event in events if event["tid"] > 1) >= min(launches)
