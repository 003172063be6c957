"""Live sessions survive the server: kill -9 at random moments, restart, resume.

The tiny deployment has one slot: every generation runs alone, so that its latents depend on its request only, and its
codec decodes a frame to the same bits in any window. After each kill every session

- is in the store, undamaged, with everything that was committed before: seqs never go back;
- resumes, and sounds bit by bit like the same session restored from a copy of the store in the test process;
- sounds bit by bit like the uninterrupted run, wherever the killed server had sent the same samples already.

The last two compare samples with the same, complete controls, of sessions whose stored canvas has all changes: what
the server was still generating when it was killed is generated again, at another time.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from helpers.killed_server import killed_server
from helpers.live_sound import Heard, Sound
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from runtime.config.deployment import Deployment
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.slots import HostLimits
from runtime.live.protocol.frames import decode_chunk
from runtime.live.protocol.messages import Ack, ClientMessage, LivePrompt, Open, SetBand, SetControls, SetPrompts
from runtime.live.protocol.server_messages import (
    Applied,
    Problem,
    Ready,
    State,
    message_text,
    parse_server_message,
)
from runtime.live.storage.sqlite_store import open_sqlite_store
from runtime.live.storage.store import SessionSnapshot
from runtime.pipeline.pipeline import Pipeline, open_pipeline

SESSIONS = 8
TIMEOUT_S = 60.0
ACK_S = 0.05
SPEED = 3.0  # Clients play this much faster than real time.
RATE_HZ = 8000
MARGIN = 2 * 320  # Samples: the codec's margin of a frame, from any place in a frame.
COMPARED_S = 1.0  # Of each session's sound after a restart.
LIMITS = HostLimits(client_sessions=0, max_refresh_s=1e6)
SETTINGS = {"TICKRT_CLIENT_SESSIONS": "0", "TICKRT_MAX_REFRESH_S": "1e6"}
PROMPTS = ("calm piano", "fast drums", "warm synth arpeggio")


class Player:
    """A client of one session, on one server after the other: it plays what it gets and turns controls at random.

    `sound` is what the newest connection received, `unchanged` what it had received when it first changed something.
    """

    def __init__(self, index: int) -> None:
        self.opening = Open(
            mode="loop" if index % 2 else "extend",
            prompts=[LivePrompt(text=PROMPTS[index % len(PROMPTS)])],
            controls={"steps": 2 + index % 3},
            seed=index,
            slots=1 + index % 2,
            format="f32",
        )
        self.rng = random.Random(index)
        self.seq = 0
        self.ready: Ready | None = None
        self.sound = self.unchanged = Sound(0)
        self.complete_seq = 0
        self.state: State | None = None
        self.problems: list[Problem] = []
        self._socket: ClientConnection | None = None

    def __repr__(self) -> str:
        mode, sound = self.opening.mode, self.sound
        return f"{mode}: complete {self.complete_seq} of {self.seq}, sound {sound.begin}..{sound.end}, {self.state}"

    @property
    def is_playing(self) -> bool:
        """Whether it is connected."""
        return self._socket is not None

    @property
    def session(self) -> Ready:
        """What the newest connection began with."""
        assert self.ready is not None
        return self.ready

    async def play(self, url: str) -> None:
        """Open or resume the session on a server, and play until that server is killed."""
        path, opening = "/v1/live", self.opening
        if self.ready is not None:
            path, opening = f"/v1/live/{self.ready.session}", Open(resume=self.ready.resume_token)
        with suppress(ConnectionClosed, InvalidHandshake, OSError, EOFError):
            async with connect(url.replace("http", "ws", 1) + path, compression=None, proxy=None) as socket:
                await socket.send(message_text(opening))
                self._begin(await socket.recv())
                self._socket = socket
                acks = asyncio.create_task(self._ack(socket))
                try:
                    async for data in socket:
                        self._take(data)
                finally:
                    self._socket = None
                    acks.cancel()

    async def turn_controls(self) -> None:
        """Change controls at random, once there is a canvas, until cancelled."""
        while True:
            while self.sound.end == 0:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.rng.uniform(0.01, 0.3))
            await self._send(self._random_change())

    async def settle(self) -> None:
        """Make one last change, after which nothing varies."""
        await self._send(SetControls(seq=self._next_seq(), values={"variation": None, "guidance": self._guidance()}))

    def _random_change(self) -> ClientMessage:
        seq, rng = self._next_seq(), self.rng
        changes: list[Callable[[], ClientMessage]] = [
            lambda: SetControls(seq=seq, values={"guidance": self._guidance()}, ramp_ms=rng.choice([0.0, 100.0])),
            lambda: SetControls(seq=seq, values={"seed": rng.randrange(1000)}),
            lambda: SetPrompts(seq=seq, items=[LivePrompt(text=text, weight=rng.random()) for text in PROMPTS]),
            lambda: SetControls(seq=seq, values={"variation": rng.choice([0.0, 0.3])}),
            lambda: SetBand(seq=seq, start_s=0.2, end_s=rng.uniform(0.6, 1.2)),
            lambda: SetBand(seq=seq, start_s=None, end_s=None),
        ]
        return rng.choice(changes[:3] if self.opening.mode == "extend" else changes)()

    def _guidance(self) -> float:
        return round(self.rng.uniform(1.0, 4.0), 3)

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    async def _send(self, message: ClientMessage) -> None:
        while self._socket is None:
            await asyncio.sleep(0.01)
        if self.unchanged is self.sound:
            self.unchanged = copy(self.sound)
        with suppress(ConnectionClosed):
            await self._socket.send(message_text(message))

    def _begin(self, data: str | bytes) -> None:
        ready = parse_server_message(data)
        assert isinstance(ready, Ready), ready
        assert ready.resumed == (self.ready is not None)
        self.ready = ready
        self.sound = self.unchanged = Sound(ready.next_sample)

    def _take(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            self.sound.write(decode_chunk(data, RATE_HZ, 2))
            return
        message = parse_server_message(data)
        if isinstance(message, Applied) and message.full_sample is not None:
            self.complete_seq = max(self.complete_seq, message.seq)
        elif isinstance(message, State):
            self.state = message
        elif isinstance(message, Problem):
            self.problems.append(message)

    async def _ack(self, socket: ClientConnection) -> None:
        playhead = float(self.session.next_sample)
        while True:
            await asyncio.sleep(ACK_S)
            playhead = min(playhead + SPEED * ACK_S * RATE_HZ, self.sound.end)
            await socket.send(message_text(Ack(playhead_sample=int(playhead))))


class Restored(Heard):
    """A stored session as a host in the test process goes on with it.

    seq: the newest change that was stored. is_complete: all stored changes are in the canvas, and it stays as it is.
    """

    def __init__(self, snapshot: SessionSnapshot) -> None:
        super().__init__()
        self.id: str = snapshot.meta["id"]
        controls = snapshot.meta["controls"]
        self.seq: int = controls["seqs"][1]
        is_changing = bool(controls["ramps"] or controls["values"].get("variation"))
        self.is_complete = snapshot.meta["generations"]["is_current"] and not is_changing


def restored(pipeline: Pipeline, state: Path, players: list[Player]) -> list[Restored]:
    """Every player's session from a copy of the store, with COMPARED_S of its sound or more."""
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(shutil.copytree(state, Path(folder) / "state"))
        with open_sqlite_store(stored) as store:
            snapshots = [store.load(player.session.session) for player in players]
            assert None not in snapshots, "a session is not in the store, or damaged"
            sessions = [Restored(snapshot) for snapshot in snapshots if snapshot is not None]
            with SessionHost(pipeline, store=store, limits=LIMITS) as host:
                for session, player in zip(sessions, players, strict=True):
                    host.resume(session.id, player.session.resume_token, session)
                play_all(host, sessions)
    return sessions


def play_all(host: SessionHost, sessions: list[Restored]) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while any(len(session.sound.pcm) < COMPARED_S * RATE_HZ for session in sessions):
        assert time.monotonic() < until_s, "a restored session does not play"
        for session in sessions:
            if session.ready is not None:
                host.post(session.id, Ack(playhead_sample=session.sound.end))
        time.sleep(0.005)


async def serve_until_killed(
    config: Path, state: Path, players: list[Player], rng: random.Random, *, is_settled: bool
) -> None:
    """One server's life: all players connect and turn controls until it is killed, at a random moment.

    is_settled: every player plays COMPARED_S before its first change, and waits for the last one before the kill.
    """
    with killed_server(config, state, SETTINGS) as url:
        playing = [asyncio.create_task(player.play(url)) for player in players]
        if is_settled:
            await every(players, lambda player: player.is_playing and len(player.sound.pcm) >= COMPARED_S * RATE_HZ)
        turning = [asyncio.create_task(player.turn_controls()) for player in players]
        await asyncio.sleep(rng.uniform(0.0, 1.5))
        if is_settled:
            await cancel(turning)
            for player in players:
                await player.settle()
            await every(players, lambda player: player.complete_seq == player.seq)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
    await cancel(turning)
    await asyncio.wait_for(asyncio.gather(*playing), TIMEOUT_S)


async def every(players: list[Player], condition: Callable[[Player], bool]) -> None:
    """Wait until a condition holds for every player."""
    until_s = time.monotonic() + TIMEOUT_S
    while waiting := [player for player in players if not condition(player)]:
        assert not any(player.problems for player in players), [player.problems for player in players]
        assert time.monotonic() < until_s, waiting
        await asyncio.sleep(0.01)


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def equal_samples(one: Sound, other: Sound) -> int:
    """The samples that both have with the same, complete controls, after checking that these are equal bit by bit.

    Audio near a change depends on both sides of it, because the codec reads the latents around a frame.
    """
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    if end - begin <= 2 * MARGIN:
        return 0
    (pcm, seqs), (other_pcm, other_seqs) = one.part(begin, end), other.part(begin, end)
    is_known = (seqs == other_seqs).all(axis=1) & (seqs[:, 0] == seqs[:, 1]) & (seqs[:, 0] >= 0)
    is_known[:MARGIN] = is_known[-MARGIN:] = False
    is_known = np.convolve(~is_known, np.ones(2 * MARGIN + 1), "same") < 0.5
    np.testing.assert_array_equal(pcm[is_known], other_pcm[is_known])
    return int(is_known.sum())


@pytest.mark.shipped
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_sessions_go_on_after_kill_9_as_if_nothing_had_happened(
    kills: int, tmp_path: Path, built: Callable[..., Deployment]
) -> None:
    deployment = built(depth=1, max_rows=16)
    rng, players = random.Random(kills), [Player(index) for index in range(SESSIONS)]
    as_restored, as_uninterrupted = [], []

    def run(*, is_settled: bool) -> None:
        asyncio.run(serve_until_killed(deployment.path, tmp_path, players, rng, is_settled=is_settled))

    run(is_settled=True)
    seqs = [1] * SESSIONS
    with open_pipeline(deployment) as pipeline:
        for _ in range(kills):
            sessions = restored(pipeline, tmp_path, players)
            assert all(session.seq >= seq for session, seq in zip(sessions, seqs, strict=True)), "a change is lost"
            seqs, sounds = [session.seq for session in sessions], [player.sound for player in players]
            run(is_settled=rng.random() < 0.5)
            for player, session, sound in zip(players, sessions, sounds, strict=True):
                assert not player.problems, player.problems
                if player.sound is sound or not session.is_complete:
                    continue
                as_restored.append(equal_samples(session.sound, player.unchanged))
                as_uninterrupted.append(equal_samples(sound, player.unchanged))
    print(f"{len(as_restored)} resumed: {sum(as_restored)} and {sum(as_uninterrupted)} equal samples")
    for compared in (as_restored, as_uninterrupted):
        assert sum(count > 0 for count in compared) >= kills * SESSIONS / 8
