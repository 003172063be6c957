"""Real live sessions in one host, on the tiny bundle: many at once, idle ones, HTTP generations beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Built
from helpers.http_harness import eventually

from runtime.config.codec import Pcm
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.session_client import SessionClient
from runtime.live.hosting.slots import HostLimits
from runtime.live.protocol.messages import LivePrompt, Open, Pause, Play, SetControls
from runtime.live.protocol.server_messages import Applied, ServerMessage
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.tick.loop.events import Event, Failed, Finished
from tickrt.receiver import Receiver

WAIT_S = 60.0
MODES = ("loop", "extend")


class Telling(Receiver):
    """Keeps what it is told of changes."""

    def __init__(self, sample_rate_hz: int, channels: int) -> None:
        super().__init__(sample_rate_hz, channels)
        self.applied: list[Applied] = []

    def on_message(self, message: ServerMessage) -> None:
        super().on_message(message)
        self.applied += [message] if isinstance(message, Applied) else []


class Player(SessionClient[Telling]):
    """A client whose playhead, and whose session's clock, is what it has read."""

    def __init__(self, host: SessionHost, message: Open) -> None:
        super().__init__(host, Telling(host.model.sample_rate_hz, host.model.channels))
        self.open(message)
        self.acknowledge()

    def play(self, samples: int) -> Pcm:
        """The next samples, which are then played."""
        parts = list[Pcm]()
        while samples:
            parts.append(self.listener.read(samples))
            self.acknowledge()
            samples -= len(parts[-1])
        return np.concatenate(parts)


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
        eventually(lambda player=player: player.listener.ended)
    players = [Player(host, opening(index)) for index in range(8)]
    together = [
        np.concatenate(parts) for parts in zip(*(play_step(players, samples // 8) for _ in range(8)), strict=True)
    ]
    for pcm, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(pcm, expected, atol=1e-3)
    assert all(player.listener.ring.underruns == 0 for player in players)


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
    while not any(item.full_sample is not None for item in player.listener.applied):
        player.play(400)
    (applied,) = [item for item in player.listener.applied if item.full_sample is not None]
    assert applied.seq == 1
    assert applied.stages_ms.finished is not None
    for _ in range(8):
        assert finished.acquire(timeout=WAIT_S)
    assert all(isinstance(event, Finished) for event in results)
