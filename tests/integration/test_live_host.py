"""Real live sessions in one host, on the tiny bundle: many at once, idle ones, HTTP generations beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Built

from runtime.audio.formats import Pcm
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.sessions.hosting.host import SessionHost
from runtime.sessions.hosting.slots import HostLimits
from runtime.sessions.playback.audio_ring import AudioRing
from runtime.sessions.protocol.frames import AudioChunk
from runtime.sessions.protocol.messages import (
    Ack,
    Applied,
    Closed,
    LivePrompt,
    Open,
    Pause,
    Play,
    Ready,
    ServerMessage,
    SetControls,
)
from runtime.tick.events import Event, Failed, Finished

WAIT_S = 60.0
MODES = ("loop", "extend")


class Player:
    """A client whose playhead, and whose session's clock, is what it has read."""

    def __init__(self, host: SessionHost, message: Open) -> None:
        self._host, rate_hz = host, host.model.sample_rate_hz
        self.ring = AudioRing(rate_hz, host.model.channels)
        self.messages: list[ServerMessage] = []
        self._changed = threading.Condition()
        self.id = host.open(message, self, clock=lambda: self.ring.playhead_sample / rate_hz)
        host.post(self.id, Ack(playhead_sample=0))

    def on_message(self, message: ServerMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def on_audio(self, chunk: AudioChunk) -> None:
        with self._changed:
            self.ring.write(chunk.start_sample, chunk.pcm)
            self._changed.notify_all()

    def play(self, samples: int) -> Pcm:
        """The next samples, which are then played."""
        pcm, done = np.empty((samples, self._host.model.channels), np.float32), 0
        while done < samples:
            with self._changed:
                assert self._changed.wait_for(lambda: self.ring.end_sample > self.ring.playhead_sample, WAIT_S)
                part = min(samples - done, self.ring.end_sample - self.ring.playhead_sample)
                self.ring.read(pcm[done : done + part])
            self._host.post(self.id, Ack(playhead_sample=self.ring.playhead_sample))
            done += part
        return pcm

    def wait_for(self, kind: type[ServerMessage]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(isinstance(item, kind) for item in self.messages), WAIT_S)


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built()) as opened:
        yield opened


@pytest.fixture
def host(pipeline: Pipeline) -> Iterator[SessionHost]:
    limits = HostLimits(client_sessions=0, max_refresh_s=float("inf"))
    with SessionHost(pipeline, limits=limits) as opened:
        yield opened


def opening(index: int) -> Open:
    prompts = [LivePrompt(text="ab"[index % 2])]
    return Open(mode=MODES[index % 2], seed=index, prompts=prompts, controls={"velocity_scale": 1.0 - 0.05 * index})


def test_sessions_that_play_at_once_sound_as_each_does_alone(host: SessionHost) -> None:
    samples = host.model.sample_rate_hz * 2
    alone = []
    for index in range(8):
        player = Player(host, opening(index))
        alone.append(player.play(samples))
        host.end(player.id, "closed")
        player.wait_for(Closed)
    players = [Player(host, opening(index)) for index in range(8)]
    together = [
        np.concatenate(parts) for parts in zip(*(play_step(players, samples // 8) for _ in range(8)), strict=True)
    ]
    for pcm, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(pcm, expected, atol=1e-3)
    assert all(player.ring.underruns == 0 for player in players)


def play_step(players: list[Player], samples: int) -> list[Pcm]:
    return [player.play(samples) for player in players]


def test_a_loop_without_changes_and_a_paused_session_cost_no_ticks(host: SessionHost, pipeline: Pipeline) -> None:
    loop, extension = (Player(host, opening(index)) for index in range(2))
    loop.play(1000)
    extension.play(1000)
    host.post(extension.id, Pause())
    while host.stats().generations_started > sum(host.stats().generations_ended.values()):
        loop.play(1000)
    ticks = pipeline.loop.stats().ticks
    loop.play(4 * host.model.lengths[-1] * host.model.hop_samples)
    assert pipeline.loop.stats().ticks == ticks
    host.post(extension.id, Play())
    extension.play(2 * host.model.lengths[-1] * host.model.hop_samples)
    assert pipeline.loop.stats().ticks > ticks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("values", [{"velocity_scale": 0.4}, {"shift": 2.0}], ids=["step", "generation"])
def test_a_control_is_heard_with_http_generations_beside(
    mode: str, values: dict[str, float], host: SessionHost, pipeline: Pipeline
) -> None:
    player = Player(host, opening(MODES.index(mode)))
    player.play(1000)
    finished, results = threading.Semaphore(0), list[Event]()

    def listen(event: Event) -> None:
        if isinstance(event, (Finished, Failed)):
            results.append(event)
            finished.release()

    for seed in range(8):
        pipeline.loop.submit(pipeline.request("a", seed=seed, steps=20), listen)
    host.post(player.id, SetControls(seq=1, values=values))
    while not any(isinstance(item, Applied) and item.full_sample is not None for item in player.messages):
        player.play(400)
    (applied,) = [item for item in player.messages if isinstance(item, Applied) and item.full_sample is not None]
    assert applied.seq == 1
    assert applied.stages_ms is not None
    assert applied.stages_ms.finished is not None
    for _ in range(8):
        assert finished.acquire(timeout=WAIT_S)
    assert all(isinstance(event, Finished) for event in results)


def test_controls_of_one_session_leave_others_alone(host: SessionHost) -> None:
    samples = host.model.sample_rate_hz
    first = Player(host, opening(2))
    expected = first.play(samples)
    same, other = Player(host, opening(2)), Player(host, opening(4))
    played = []
    for step in range(10):
        host.post(other.id, SetControls(seq=step + 1, values={"velocity_scale": 0.1 * step, "guidance": 4.0}))
        played.append(same.play(samples // 10))
        other.play(samples // 10)
    np.testing.assert_allclose(np.concatenate(played), expected, atol=1e-3)


def test_a_resumed_session_goes_on_at_its_playhead(host: SessionHost) -> None:
    player = Player(host, opening(0))
    player.play(3000)
    (ready,) = [item for item in player.messages if isinstance(item, Ready)]
    host.detach(player.id)
    resumed = Player.__new__(Player)
    resumed.__dict__.update(player.__dict__)
    resumed.messages = []
    host.resume(player.id, ready.resume_token, resumed)
    resumed.wait_for(Ready)
    again = resumed.messages[0]
    assert isinstance(again, Ready)
    assert (again.resumed, again.next_sample) == (True, 3000)
    assert again.epoch > ready.epoch
