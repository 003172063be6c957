"""Scripted clients against a server process: one run per number of sessions."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from statistics import median
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from profiling.bench.live.client import SessionRefusedError
from profiling.bench.live.result import live_result
from profiling.bench.live.script import ClientRun, Script, run_client
from profiling.provenance import provenance, this_commit
from profiling.server_process import ServerProcess, server_process
from runtime.base.errors import ConfigError, TickError
from runtime.commands.progress import REDRAW_INTERVAL_S, TaskProgress
from runtime.config.deployment import Deployment, Target
from runtime.engines.manifest import manifest_path, read_manifest

# All clients have one address.
ONE_ADDRESS = {"TICKRT_CLIENT_SESSIONS": "0"}
# No session is refused because the others keep the machine busy.
UNLIMITED = {**ONE_ADDRESS, "TICKRT_MAX_REFRESH_S": "3600"}
ARRIVAL_S = 0.2  # Between two clients, where the server decides from what it measures.

IDLE_S = 1.0
GENERATION_TIMEOUT_S = 120.0
BACKGROUND_PROMPT = "calm pads in D minor"
MIB = 1 << 20
MEMORY, CPU = "process_resident_memory_bytes", "process_cpu_seconds_total"
PREEMPTIONS = "tickrt_preemptions_total"


@dataclass(frozen=True)
class LiveLoad:
    """Numbers of sessions, one run each, and what every client does.

    compares_plans: two runs each, without a plan and with one; ConfigError in another mode than extend. admission: the
    server's own limits hold, and those that it refuses are counted. background: clients that generate over HTTP beside.
    """

    sessions: tuple[int, ...]
    script: Script
    compares_plans: bool = False
    admission: bool = False
    background: int = 0

    def __post_init__(self) -> None:
        if self.compares_plans and self.script.mode != "extend":
            raise ConfigError("--plan: only sessions in mode extend play by a plan", fix="--mode extend --plan")

    @property
    def kind(self) -> str:
        """The result's kind."""
        return "live" if len(self.runs) == 1 else "live sweep"

    @property
    def runs(self) -> list[tuple[int, Script]]:
        """How many sessions play which script, run by run."""
        if not self.compares_plans:
            return [(sessions, self.script) for sessions in self.sessions]
        return [(sessions, replace(self.script, plan=plan)) for sessions in self.sessions for plan in (False, True)]

    def shape(self) -> dict[str, Any]:
        """The properties that are known before it is measured."""
        shape = self.script.shape()
        if self.admission:
            shape["admission"] = True
        if self.background:
            shape["background"] = self.background
        if self.kind == "live":
            return {"sessions": self.sessions[0], **shape}
        return {"over": "sessions", "values": list(self.sessions), **shape}


def parse_sessions(text: str) -> tuple[int, ...]:
    """ "8" or "1,2,4,8,16". Raises ConfigError."""
    try:
        values = tuple(int(value) for value in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1 or len(set(values)) != len(values):
        what = f"{text}: expected numbers of sessions, each 1 or more"
        raise ConfigError(what, fix="tickrt-bench live CONFIG 1,2,4,8")
    return values


def settings_of(load: LiveLoad) -> dict[str, str]:
    """Settings of the server: its own limits hold where they are measured."""
    # The sum, because sessions of the run before may still be ending.
    sessions = sum(sessions for sessions, _ in load.runs)
    return ONE_ADDRESS if load.admission else {**UNLIMITED, "TICKRT_MAX_SESSIONS": str(sessions)}


def measure_live(deployment: Deployment, load: LiveLoad) -> dict[str, Any]:
    """One run per number of sessions, against one server. Raises TickError."""
    this_commit()
    running = server_process(deployment.path, settings_of(load), options=("--target", deployment.target))
    with running as server, TaskProgress([1.0] * len(load.runs)) as progress:
        idle = _idle_usage(server)
        has_text = deployment.loaded_bundle.text_encoder is not None
        runs = [(sessions, replace(script, has_text=has_text)) for sessions, script in load.runs]
        played = [_play(server, load, script, sessions, progress) for sessions, script in runs]
    points = [point_of(deployment.target, load, idle, each) for each in played]
    if load.compares_plans:
        note_planning(points)
    manifest = read_manifest(manifest_path(deployment.engine_folder(), "decoder"))
    about = provenance(deployment.loaded_bundle, deployment, manifest)
    found = points[0] if len(points) == 1 else {"points": points}
    return {"kind": load.kind, **load.shape(), **found, **about}


def note_planning(points: Sequence[dict[str, Any]]) -> None:
    """Note in points that alternate, without a plan and with one, what planning takes: CPU, in cores."""
    for without, planned in zip(points[::2], points[1::2], strict=True):
        without["plan"], planned["plan"] = False, True
        planned["planning_cpu"] = round(planned["server_cpu"] - without["server_cpu"], 4)


def _idle_usage(server: ServerProcess) -> dict[str, float]:
    """What a warm server costs before its first client: CPU in percent of a core, resident memory."""
    before = server.metrics()
    time.sleep(IDLE_S)
    after = server.metrics()
    return {"idle_cpu_percent": 100.0 * (after[CPU] - before[CPU]) / IDLE_S, "idle_mib": after[MEMORY] / MIB}


@dataclass(frozen=True)
class PlayedSessions:
    """How clients ended, metrics of the server before and after, wall time, and CPU time of the clients.

    background_s: how long each generation over HTTP took.
    """

    ended: Sequence[ClientRun | SessionRefusedError]
    before: Mapping[str, float]
    after: Mapping[str, float]
    wall_s: float
    cpu_s: float
    background_s: Sequence[float] = ()


def _play(
    server: ServerProcess, load: LiveLoad, script: Script, sessions: int, progress: TaskProgress
) -> PlayedSessions:
    before, cpu_s, begin_s = server.metrics(), time.process_time(), time.monotonic()
    prompt = BACKGROUND_PROMPT if script.has_text else ""
    with progress.task(f"{sessions} live sessions"), generating(server.url, load.background, prompt) as background_s:
        ended = asyncio.run(_run_clients(server.url, script, sessions, progress, load.admission))
    wall_s = time.monotonic() - begin_s
    return PlayedSessions(ended, before, server.metrics(), wall_s, time.process_time() - cpu_s, background_s)


def point_of(target: Target, load: LiveLoad, idle: Mapping[str, float], played: PlayedSessions) -> dict[str, Any]:
    """One run as a JSON object."""
    before, after, asked = played.before, played.after, len(played.ended)
    used = {**server_usage(before, after, played.wall_s), **idle, "server_mib": after[MEMORY] / MIB}
    used["mib_per_session"] = (used["server_mib"] - idle["idle_mib"]) / asked
    used["clients_cpu"] = played.cpu_s / played.wall_s
    if load.background:
        used["background_generations"] = len(played.background_s)
        used["background_generation_s"] = median(played.background_s) if played.background_s else 0.0
        used["preemptions"] = after[PREEMPTIONS] - before[PREEMPTIONS]
    runs = [each for each in played.ended if isinstance(each, ClientRun)]
    refused = [each for each in played.ended if isinstance(each, SessionRefusedError)]
    return {**live_result(target, runs, used), **(refusals(asked, refused) if load.admission else {})}


@contextmanager
def generating(url: str, clients: int, prompt: str = BACKGROUND_PROMPT) -> Iterator[Sequence[float]]:
    """Clients that generate one canvas after the other over HTTP until the block ends; how long each took, in seconds.

    Raises TickError where the server refuses one, OSError where it is gone.
    """
    took_s: list[float] = []
    is_over = threading.Event()

    def generate(client: int) -> None:
        for seed in count(client, clients):
            if is_over.is_set():
                return
            begin_s = time.monotonic()
            body = json.dumps({"prompt": prompt, "seed": seed}).encode()
            asked = Request(f"{url}/v1/audio/generations", body, {"content-type": "application/json"})
            try:
                with urlopen(asked, timeout=GENERATION_TIMEOUT_S) as answer:
                    answer.read()
            except HTTPError as error:
                with error:
                    text = error.read().decode(errors="replace")
                raise TickError(f"the server refused a generation in the background: {text}") from None
            took_s.append(time.monotonic() - begin_s)

    with ThreadPoolExecutor(max(1, clients)) as threads:
        running = [threads.submit(generate, client) for client in range(clients)]
        try:
            yield took_s
        finally:
            is_over.set()
    for each in running:
        each.result()


def refusals(asked: int, refused: Sequence[SessionRefusedError]) -> dict[str, Any]:
    """How many clients asked for a session, and were refused; why the first one was; how many know for how long."""
    waits_s = [error.retry_after_s for error in refused if error.retry_after_s is not None]
    return {
        "asked": asked,
        "refused": len(refused),
        "refused_with_retry_after": len(waits_s),
        "refusal": refused[0].what if refused else "",
    }


async def _run_clients(
    url: str, script: Script, sessions: int, progress: TaskProgress, admission: bool
) -> Sequence[ClientRun | SessionRefusedError]:
    showing = asyncio.create_task(_show(progress, script.duration_s))
    try:
        return await asyncio.gather(*(_run_client(url, script, index, admission) for index in range(sessions)))
    finally:
        showing.cancel()


async def _run_client(url: str, script: Script, index: int, admission: bool) -> ClientRun | SessionRefusedError:
    """With `admission`, clients come one after the other, and a refusal is a result."""
    if not admission:
        return await run_client(url, script, index)
    await asyncio.sleep(index * ARRIVAL_S)
    try:
        return await run_client(url, script, index)
    except SessionRefusedError as error:
        return error


async def _show(progress: TaskProgress, duration_s: float) -> None:
    begin_s = time.monotonic()
    while True:
        await asyncio.sleep(REDRAW_INTERVAL_S)
        progress.update(min((time.monotonic() - begin_s) / duration_s, 1.0))


def server_usage(before: Mapping[str, float], after: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """What the server did between two readings of its metrics; CPU in cores."""

    def used(name: str) -> float:
        return after[name] - before[name]

    ticks, tick_s = used("tickrt_tick_duration_seconds_count"), used("tickrt_tick_duration_seconds_sum")
    return {
        "refreshes_per_s": used("tickrt_live_refreshes_total") / wall_s,
        "ticks_per_s": ticks / wall_s,
        "tick_ms": 1e3 * tick_s / max(ticks, 1.0),
        "ticks_share": tick_s / wall_s,
        "server_cpu": used(CPU) / wall_s,
    }
