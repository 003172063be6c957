"""The live bench: its clients, their log of what was played, runs as results and tables."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest
from helpers.http_harness import Served, eventually
from helpers.live_clients import RATE, ready, scripted_server, silence
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from profiling.bench.live.client import AudioRange, LiveClient, SessionRefusedError, SoundLog, live_client
from profiling.bench.live.result import goals_of, live_result, plot_lines, print_live, stages_of
from profiling.bench.live.run import (
    CPU,
    MEMORY,
    PREEMPTIONS,
    LiveLoad,
    PlayedSessions,
    generating,
    note_planning,
    parse_sessions,
    point_of,
    refusals,
    server_usage,
    settings_of,
)
from profiling.bench.live.script import GUIDANCE, KINDS, ClientRun, Control, Script, control_times, run_client
from runtime.base.errors import ConfigError, TickError
from runtime.config.deployment import Target
from runtime.live.protocol.messages import Ack, ClientMessage, Close, Open, SetControls, SetPrompts
from runtime.live.protocol.server_messages import Applied, Closed, Problem, ServerMessage, Stages, State

SCRIPT = Script("loop", 2.0, 30.0)
PROBLEM = Problem(
    urn="urn:tickrt:problem:full", title="Full", status=503, detail="all slots are taken", code="full", fix="wait"
)
STATE = State(
    playhead_sample=0, sent_until_sample=0, lead_s=0.2, generations_in_flight=0, generation_s=0.1, underruns=0,
    ticks=0, tick_ms=1.0, canvas_position_s=0.0, playing=True,
)  # fmt: skip


def test_sessions_are_one_number_or_several_different_ones() -> None:
    assert (parse_sessions("8"), parse_sessions("1, 2,16")) == ((8,), (1, 2, 16))
    for text in ("", "x", "0", "2,2", "1,,2", "-1"):
        with pytest.raises(ConfigError, match="tickrt-bench live CONFIG 1,2,4,8"):
            parse_sessions(text)


def test_a_load_has_its_shape_its_runs_and_the_settings_of_its_server() -> None:
    script = Script("extend", 2.0, 30.0)
    shape = {"mode": "extend", "interval_s": 2.0, "minutes": 0.5}
    assert LiveLoad((8,), script).shape() == {"sessions": 8, **shape}
    sweep = LiveLoad((1, 2), script, background=2, admission=True)
    assert (sweep.kind, sweep.shape()) == (
        "live sweep", {"over": "sessions", "values": [1, 2], **shape, "admission": True, "background": 2}
    )  # fmt: skip
    plans = LiveLoad((2,), script, compares_plans=True)
    assert (plans.kind, [(sessions, each.plan) for sessions, each in plans.runs]) == (
        "live sweep", [(2, False), (2, True)]
    )  # fmt: skip
    limits = {"TICKRT_CLIENT_SESSIONS": "0", "TICKRT_MAX_REFRESH_S": "3600", "TICKRT_MAX_SESSIONS": "4"}
    assert (settings_of(plans), settings_of(sweep)) == (limits, {"TICKRT_CLIENT_SESSIONS": "0"})
    with pytest.raises(ConfigError, match="--mode extend"):
        LiveLoad((2,), SCRIPT, compares_plans=True)


def test_clients_in_the_background_generate_until_the_sessions_have_played(served: Served) -> None:
    with generating(served.url, 2) as took_s:
        eventually(lambda: len(took_s) > 3)
    assert served.metrics()["tickrt_generations_total{outcome=ok}"] == len(took_s)
    with (
        pytest.raises(TickError, match="refused a generation in the background"),
        generating(served.url, 1, "a" * 10**6),
    ):
        pass


def reading(
    cpu_s: float, ticks: float, tick_s: float, mib: float = 100.0, preemptions: float = 0.0
) -> dict[str, float]:
    """What a server says of itself."""
    return {
        CPU: cpu_s, MEMORY: mib * 2**20, PREEMPTIONS: preemptions, "tickrt_live_refreshes_total": ticks / 5,
        "tickrt_tick_duration_seconds_count": ticks, "tickrt_tick_duration_seconds_sum": tick_s,
    }  # fmt: skip


def test_a_server_s_use_is_what_it_did_between_two_readings() -> None:
    used = server_usage(reading(1.0, 100.0, 2.0), reading(4.0, 300.0, 6.0), 10.0)
    assert used == pytest.approx(
        {"refreshes_per_s": 4.0, "ticks_per_s": 20.0, "tick_ms": 20.0, "ticks_share": 0.4, "server_cpu": 0.3}
    )
    assert server_usage(reading(1.0, 100.0, 2.0), reading(1.0, 100.0, 2.0), 10.0)["tick_ms"] == 0.0


def test_a_run_beside_generations_has_what_server_and_clients_used() -> None:
    refused = [SessionRefusedError("full", retry_after_s=4.0), SessionRefusedError("it closed the connection")]
    before, after = reading(2.0, 10.0, 1.0, preemptions=1.0), reading(7.0, 210.0, 5.0, 151.0, 8.0)
    played = PlayedSessions([run_of(100), *refused], before, after, 10.0, 2.0, [1.0, 9.0, 2.0])
    idle = {"idle_cpu_percent": 5.0, "idle_mib": 91.0}
    found = point_of("cpu", LiveLoad((3,), SCRIPT, admission=True, background=3), idle, played)
    figures = {
        "idle_cpu_percent": 5.0, "idle_mib": 91.0, "server_mib": 151.0, "mib_per_session": 20.0, "clients_cpu": 0.2,
        "server_cpu": 0.5, "background_generations": 3, "background_generation_s": 2.0, "preemptions": 7.0,
        "sessions": 1, "asked": 3, "refused": 2, "refused_with_retry_after": 1,
    }  # fmt: skip
    assert {name: found[name] for name in figures} == pytest.approx(figures)
    assert found["refusal"] == "full"
    alone = point_of("cpu", LiveLoad((1,), SCRIPT), idle, PlayedSessions([run_of(100)], before, after, 10.0, 2.0))
    assert not {"asked", "preemptions"} & alone.keys()


def test_controls_have_a_random_phase_and_no_fixed_interval() -> None:
    script = Script("loop", 2.0, 600.0)
    first, second = (list(control_times(script, random.Random(index))) for index in (1, 2))
    intervals = [after - before for before, after in pairwise(first)]
    assert 0.0 <= first[0] < 2.0
    assert first[-1] < 600.0
    assert 1.5 <= min(intervals) < 1.6
    assert 2.4 < max(intervals) <= 2.5
    assert len(first) == pytest.approx(300, abs=10)
    assert first[0] != second[0]


def played(script: Script) -> tuple[list[ClientMessage], ClientRun]:
    """What a client with a short script sends, and its run."""
    received: list[ClientMessage] = []

    def answer(message: ClientMessage) -> list[ServerMessage | bytes]:
        received.append(message)
        return [ready(), silence(0, 10_000)] if isinstance(message, Open) else []

    async def play() -> ClientRun:
        async with scripted_server(answer) as url:
            return await run_client(url, script, 3)

    run = asyncio.run(play())
    return received, run


@pytest.mark.parametrize("has_text", [True, False])
def test_a_client_changes_guidance_and_prompt_or_seed_in_turn(has_text: bool) -> None:
    script = Script("extend", 0.02, 0.2, has_text=has_text, warm_up_s=0.01, settle_s=0.01)
    (opened, *received), run = played(script)
    assert isinstance(opened, Open)
    assert (opened.mode, opened.seed, bool(opened.prompts)) == ("extend", 3, has_text)
    changes = [message for message in received if isinstance(message, SetControls | SetPrompts)]
    assert [message.seq for message in changes] == list(range(1, len(changes) + 1))
    assert [(control.seq, control.kind) for control in run.controls] == [
        (message.seq, KINDS[(message.seq - 1) % 2]) for message in changes
    ]
    values = [message.values for message in changes if isinstance(message, SetControls)]
    scales = [value["guidance"] for value in values if "guidance" in value]
    assert scales[:3] == [GUIDANCE[0], GUIDANCE[1], GUIDANCE[0]][: len(scales)]
    others: list[Any] = [message.items[0].text for message in changes if isinstance(message, SetPrompts)]
    others = others or [value["seed"] for value in values if "seed" in value]
    assert len(scales) + len(others) == len(changes) > 2
    assert all(before != after for before, after in pairwise(others))
    assert isinstance(received[-1], Close)


class ScriptedSession:
    """A server with 10 s of audio; it keeps what it is sent. The client's clock moves by 50 ms with every report that
    the server gets, however busy the machine is."""

    def __init__(self) -> None:
        self.received: list[ClientMessage] = []
        self.sent_bytes, self.now_s = 0, 100.0

    def clock(self) -> float:
        return self.now_s

    def answer(self, message: ClientMessage) -> list[ServerMessage | bytes]:
        answers = self._answer(message)
        self.sent_bytes += sum(len(answer) for answer in answers if isinstance(answer, bytes))
        return answers

    def _answer(self, message: ClientMessage) -> list[ServerMessage | bytes]:
        self.received.append(message)
        match message:
            case Ack():
                self.now_s += 0.05
            case Open():
                return [ready(), silence(0, 10_000), STATE]
            case SetControls():
                begin = self.playhead + 500
                applied = Applied(seq=message.seq, tick=1, first_sample=begin, full_sample=begin)
                return [silence(begin, 10_000, message.seq, message.seq), applied, PROBLEM]
            case Close():
                return [Closed(reason="closed by the client", resumable=False)]
        return []

    @property
    def playhead(self) -> int:
        return max((message.playhead_sample for message in self.received if isinstance(message, Ack)), default=0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while not condition():
            await asyncio.sleep(0.005)


async def send_for_ever(client: LiveClient) -> None:
    while True:
        await client.send(SetControls(seq=2, values={}))
        await asyncio.sleep(0)


def test_a_client_plays_reports_and_logs_and_sends_nothing_to_a_closed_session() -> None:
    script = ScriptedSession()

    async def play() -> LiveClient:
        async with (
            scripted_server(script.answer) as url,
            live_client(url, Open(seed=5), clock=script.clock) as client,
        ):
            await until(lambda: script.playhead > 50)
            await client.send(SetControls(seq=1, values={"guidance": 2.0}))
            await until(lambda: client.log.full(1))
            await client.send(Close())
            await until(lambda: client.closed)
            client.disconnect()
            with pytest.raises(TickError, match="session s1: closed by the client"):
                await send_for_ever(client)
        return client

    client = asyncio.run(play())
    reports = [message.playhead_sample for message in script.received if isinstance(message, Ack)]
    assert (script.received[0], Close() in script.received) == (Open(seed=5), True)
    assert reports == sorted(reports)
    full, applied = client.log.full(1), client.applied[1][0]
    assert full is not None
    assert full.begin == applied.first_sample
    assert (client.log.underruns, client.log.late_samples) == (0, 0)
    assert (client.states, client.problems[:1]) == ([STATE], [PROBLEM])
    assert client.closed == Closed(reason="closed by the client", resumable=False)
    assert len(client.worst_leads_s) >= len(reports)
    assert client.received_bytes == script.sent_bytes > 2 * 10_000


def test_a_refused_session_is_an_error_with_the_fix_and_one_is_resumed_at_its_own_address() -> None:
    def answer(message: ClientMessage) -> list[ServerMessage | bytes]:
        return [ready(next_sample=7000, resumed=True) if message == Open(resume="t1") else PROBLEM]

    async def opened(opening: Open, session: str) -> int:
        async with scripted_server(answer) as url, live_client(url, opening, session) as client:
            return client.log.playhead(0.0)

    assert asyncio.run(opened(Open(resume="t1"), "s1")) == 7000
    with pytest.raises(SessionRefusedError, match="all slots are taken\n  fix: wait"):
        asyncio.run(opened(Open(), ""))


def chunk(begin: int, end: int, first: int = 0, full: int = 0, at_s: float = 0.0) -> AudioRange:
    return AudioRange(begin, end, first, full, at_s)


def playing(*chunks: AudioRange, start_s: float = 10.0) -> SoundLog:
    """A client that received chunks before it began to play, at sample 0."""
    log = SoundLog(RATE, 0)
    for each in chunks:
        log.write(each, start_s)
    log.start(start_s)
    return log


def heard(log: SoundLog) -> list[tuple[int, int, int, int]]:
    return [(audio.begin, audio.end, audio.first_seq, audio.full_seq) for audio in log.played]


def test_the_playhead_waits_for_the_start_and_then_follows_the_clock() -> None:
    log = SoundLog(RATE, 500)
    assert (log.playhead(99.0), log.is_playing) == (500, False)
    log.start(100.0)
    log.start(101.0)
    assert (log.playhead(100.25), log.time_of(750)) == (750, 100.25)


def test_audio_is_played_in_order_and_once_and_a_gap_is_one_underrun_that_takes_its_time() -> None:
    log = playing(chunk(0, 200), chunk(200, 400, 1))
    log.advance(10.3)
    assert heard(log) == [(0, 200, 0, 0), (200, 300, 1, 0)]
    assert (log.underruns, log.missing_samples, log.lead_s()) == (0, 0, 0.1)
    gaps = playing(chunk(0, 100))
    gaps.advance(10.15)
    gaps.write(chunk(200, 300), 10.18)
    gaps.advance(10.4)
    assert heard(gaps) == [(0, 100, 0, 0), (200, 300, 0, 0)]
    assert (gaps.underruns, gaps.missing_samples) == (2, 200)


def test_only_what_is_not_played_yet_is_replaced_and_late_audio_is_dropped() -> None:
    log = playing(chunk(0, 400))
    log.write(chunk(50, 300, 7, 7), 10.1)
    log.write(chunk(100, 200, 8, 8), 10.3)
    log.advance(10.4)
    assert heard(log) == [(0, 100, 0, 0), (100, 300, 7, 7), (300, 400, 0, 0)]
    assert log.late_samples == 50 + 100
    log.write(chunk(100, 200, 9, 9), 10.4, is_replacing=True)
    assert log.late_samples == 50 + 100


def test_the_worst_lead_is_the_smallest_since_it_was_asked_for() -> None:
    log = playing(chunk(0, 300))
    assert log.take_worst_lead_s() == 0.3
    log.advance(10.1)
    log.advance(10.25)
    log.write(chunk(300, 600), 10.26)
    log.advance(10.27)
    assert log.take_worst_lead_s() == pytest.approx(0.04, abs=0.0011)
    assert log.take_worst_lead_s() == pytest.approx(0.33, abs=0.0011)


def test_first_and_full_are_where_the_control_is_played() -> None:
    log = playing(chunk(0, 500))
    log.write(chunk(160, 500, 3, 2, at_s=10.1), 10.1)
    log.write(chunk(300, 500, 3, 3, at_s=10.2), 10.2)
    log.write(chunk(500, 600, 3, 3, at_s=10.3), 10.3)
    log.advance(10.6)
    first, full = log.first(3), log.full(3)
    assert first is not None
    assert full is not None
    assert (log.time_of(first.begin), first.received_s) == (10.16, 10.1)
    assert (log.time_of(full.begin), full.received_s) == (10.3, 10.2)
    assert log.first(4) is None is log.full(4)


def test_a_control_is_not_full_while_older_audio_follows() -> None:
    log = playing(chunk(0, 100, 1, 1), chunk(100, 200, 1, 0))
    log.advance(10.2)
    assert log.full(1) is None
    log.write(chunk(200, 300, 2, 2), 10.2)
    log.advance(10.3)
    full = log.full(1)
    assert full is not None
    assert full.begin == 200


times = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 900), st.integers(1, 300)), max_size=20)


@given(times)
def test_every_sample_up_to_the_playhead_is_played_once_or_missing(steps: list[tuple[int, int, int]]) -> None:
    log, now, newest = playing(), 0, dict[int, int]()
    for seq, (wait, begin, length) in enumerate(steps, start=1):
        now += wait
        log.write(chunk(begin, begin + length, seq, seq), 10.0 + now / RATE)
        newest |= dict.fromkeys(range(max(begin, now), begin + length), seq)
    log.advance(10.0 + 1500 / RATE)
    played = {sample: audio.full_seq for audio in log.played for sample in range(audio.begin, audio.end)}
    assert played == newest
    assert len(played) == sum(audio.end - audio.begin for audio in log.played)
    assert len(played) + log.missing_samples == max(1500, now)


SERVER = {"refreshes_per_s": 1.0, "ticks_per_s": 50.0, "tick_ms": 10.0, "ticks_share": 0.5, "server_cpu": 0.7}


def run_of(*delays_ms: int, missing: bool = False) -> ClientRun:
    """A client that played 20 s; a step parameter is changed every second, and heard that much later: half of it first,
    all of it 100 ms later."""
    client = LiveClient(cast(Any, None), ready())
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


def test_underruns_and_controls_that_were_never_heard_miss_their_goals() -> None:
    kept, missed = (live_result("cpu", [run_of(100, missing=missing)] * 2, SERVER) for missing in (False, True))
    assert (kept["within_budget"], kept["underruns"]) == (True, 0)
    assert (missed["within_budget"], missed["underruns"]) == (False, 2)
    assert missed["missing_s"] == pytest.approx(2 * 0.6)
    run = run_of(100)
    run.controls.append(Control("generation_parameter", 2, 5.0))
    never = live_result("cpu", [run], SERVER)
    assert (never["not_played"], never["within_budget"]) == (2, False)


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


ABOUT = {"bundle": "demo", "target": "cpu", "mode": "loop"}


def point(sessions: int, p95_ms: float, *, is_kept: bool = True, **changes: Any) -> dict[str, Any]:
    latency = {"p50": 100.0, "p95": p95_ms, "max": 321.0}
    parts = {"first": latency, "full": latency}
    return {
        "sessions": sessions, "control_to_sound_ms": dict.fromkeys(KINDS, parts),
        "stages_ms": {kind: {"first": {"received": 55.0}, "full": {}} for kind in KINDS},
        "controls": dict.fromkeys(KINDS, 7), "not_played": 1, "underruns": 2, "missing_s": 0.3, "late_s": 0.0,
        "lead_s": {"min": 0.05, "p50": 0.2}, "problems": 0, "refreshes_per_s": 1.5, "ticks_per_s": 80.0,
        "tick_ms": 10.0, "ticks_share": 0.8, "server_cpu": 1.25, "clients_cpu": 0.05,
        "server_mib": 400.4, "mib_per_session": 12.5, "idle_mib": 300.2, "idle_cpu_percent": 0.6,
        "budget": {"step_parameter_first": 180.0, "underruns": 0.0}, "within_budget": is_kept, **changes,
    }  # fmt: skip


def lines_of(*points: dict[str, Any]) -> list[str]:
    """The tables' lines, without more than one space."""
    console = Console(record=True, width=100)
    result = {**points[0]} if len(points) == 1 else {"over": "sessions", "points": list(points)}
    print_live(console, {**ABOUT, **result})
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


NOT_PLAYED = {"control_to_sound_ms": {kind: {"first": {}, "full": {}} for kind in KINDS}}
ADMISSION = {"asked": 5, "refused": 4, "refused_with_retry_after": 4, "refusal": "it is full"}
REFUSED = "1 of 5 sessions admitted, 4 refused, 4 of them know when to ask again: it is full"
FIGURES = "2 0.050 1.5 80% 1.25 400"


@pytest.mark.parametrize(
    ("points", "lines"),
    [
        (
            [point(1, 222.0, is_kept=False)],
            [
                "step parameter, first 100 222 321 180",
                "step parameter, first 55",
                "generation parameter, full 100 222 321",
                "goals missed",
                "controls 14 changed, 1 not played, 0 problems",
                "memory server 400 MiB, 12.5 per session",
                "idle server 300 MiB, 0.6 % of a core",
                "ticks 80 per second of 10.00 ms: 80%",
            ],
        ),
        ([point(1, 1.0, background=8, background_generations=31, background_generation_s=1.256, preemptions=7.0)],
         ["background 8 clients over HTTP: 31 generations, 1.26 s each, 7 times frozen for a live session"]),
        ([point(1, 1.0, **ADMISSION)], [f"admission {REFUSED}"]),
        ([point(1, 1.0, **ADMISSION), point(2, 1.0)], [REFUSED]),
        ([point(5, 1.0, **refusals(5, []))], ["admission 5 of 5 sessions admitted"]),
        ([point(1, 111.0), point(8, 444.0, is_kept=False)],
         [f"1 111 111 111 111 {FIGURES} kept", f"8 444 444 444 444 {FIGURES} missed"]),
        ([point(2, 100.0, **NOT_PLAYED)], ["step parameter, full"]),
        ([point(1, 100.0), point(2, 100.0, **NOT_PLAYED)], [f"2 {FIGURES} kept"]),
        ([point(2, 100.0, plan=False), point(2, 120.0, plan=True, planning_cpu=0.25)],
         [f"2 100 100 100 100 {FIGURES} kept", f"2* 120 120 120 120 {FIGURES} kept",
          "2* with a plan: planning takes 0.25 cores, 20% of the CPU"]),
    ],
)  # fmt: skip
def test_runs_and_sweeps_have_their_lines(points: list[dict[str, Any]], lines: list[str]) -> None:
    found = lines_of(*points)
    assert [line for line in lines if line not in found] == []


def test_what_planning_takes_is_the_difference_of_two_runs() -> None:
    points: list[dict[str, Any]] = [{"server_cpu": 0.5}, {"server_cpu": 0.8}]
    note_planning(points)
    assert points == [{"server_cpu": 0.5, "plan": False}, {"server_cpu": 0.8, "plan": True, "planning_cpu": 0.3}]


def test_a_plot_has_a_line_for_each_latency_of_sessions_that_were_played() -> None:
    drawn = plot_lines([point(1, 111.0), point(8, 444.0), point(2, 1.0, **NOT_PLAYED)])
    assert list(drawn) == [
        "step parameter, first", "step parameter, full", "generation parameter, first", "generation parameter, full"
    ]  # fmt: skip
    assert drawn["step parameter, full"] == [(1.0, 111.0), (8.0, 444.0)]
    plans = plot_lines([point(2, 100.0, plan=False), point(2, 120.0, plan=True)])
    assert (len(plans), plans["generation parameter, full, plan"]) == (8, [(2.0, 120.0)])
    assert plot_lines([point(2, 1.0, **NOT_PLAYED)]) == {}
