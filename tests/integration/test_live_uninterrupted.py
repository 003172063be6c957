"""A session that is restored from a commit goes on bit by bit like the one that was never interrupted.

Real generations and a real codec on simulated time, in which they take none. The tiny deployment has one slot: every
generation runs alone, so that its latents depend on its request only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.direct_player import decoded, generated
from helpers.live_sound import Sound

from runtime.config.deployment import Deployment
from runtime.live.hosting.services import live_model
from runtime.live.protocol.actions import Action, Commit, DecodeWindow, SessionJob
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import (
    Ack,
    ClientMessage,
    LivePrompt,
    Open,
    Pause,
    Play,
    SetBand,
    SetControls,
    SetPrompts,
)
from runtime.live.protocol.server_messages import Problem
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.sqlite_store import open_sqlite_store
from runtime.live.storage.store import SessionStore
from runtime.pipeline.pipeline import Pipeline, open_pipeline

# Times are multiples of this, so that sums of them are exact: a ramp has the same values in another process.
TICK_S = 1 / 64
STEPS = 256
EVERY = 6  # Of the commits this many-th is restored, another one for each seed.
OTHER_CLOCK_S = 4096.0
PROMPTS = ("calm piano", "fast drums", "warm synth arpeggio")
TIMEOUT_S = 60.0


class Simulated:
    """A session on simulated time. `clock_s`: the time of its process minus that of the test."""

    def __init__(self, session: LiveSession, pipeline: Pipeline, now_s: float, clock_s: float = 0.0) -> None:
        self.session, self.pipeline, self.clock_s = session, pipeline, clock_s
        self.sound = Sound(session.attach("token", now_s + clock_s, keep_s=60.0).next_sample)
        self.has_committed = False

    def step(self, messages: list[ClientMessage], now_s: float, *, may_generate: bool = True) -> None:
        """Take messages and do everything that is to be done at a time; at most one generation."""
        now_s += self.clock_s
        for message in messages:
            self.session.handle(message, now_s)
        actions = self.session.advance(now_s, may_generate=may_generate)
        while actions:
            for action in actions:
                self._perform(action, now_s)
            # With variation, a loop would start the next generation at once, for ever.
            actions = self.session.advance(now_s, may_generate=False)

    def _perform(self, action: Action, now_s: float) -> None:
        match action:
            case SessionJob() as job:
                self.session.generation_finished(job.id, generated(self.pipeline, job), 0, now_s)
            case DecodeWindow() as window:
                self.session.decoded(window, decoded(self.pipeline, window))
            case AudioChunk() as chunk:
                self.sound.write(chunk)
            case Problem() as problem:
                raise AssertionError(problem)
            case Commit():
                self.has_committed = True


class Script:
    """What a client does: it reports its playhead, and turns controls at random."""

    def __init__(self, mode: str, seed: int, rate_hz: int) -> None:
        self.rng = random.Random(f"{mode}{seed}")
        self.mode, self.rate_hz, self.seq, self.playhead = mode, rate_hz, 0, 0
        self.is_playing = True

    def messages(self, number: int, heard_until: int) -> list[ClientMessage]:
        """The messages of one step."""
        if self.is_playing:
            self.playhead = min(self.playhead + int(TICK_S * self.rate_hz), heard_until)
        # The playhead of a resumed session stands still until the first report, so every step has one.
        found: list[ClientMessage] = [Ack(playhead_sample=self.playhead)]
        if number > 20 and self.rng.random() < 0.06:
            found.append(self._change())
        return found

    def _change(self) -> ClientMessage:
        self.seq += 1
        return self.rng.choice(
            [self._set, self._set, self._ramp, self._prompts, self._pause, *([self._band] * self._is_loop)]
        )()

    @property
    def _is_loop(self) -> bool:
        return self.mode == "loop"

    def _set(self) -> ClientMessage:
        name, value = self.rng.choice(
            [
                ("guidance", 1.0 + self.rng.randrange(8) / 2),
                ("seed", self.rng.randrange(99)),
                ("steps", 3),
                ("steps", 4),
            ]
            + [("variation", self.rng.choice([0.0, 0.25]))] * self._is_loop
        )
        return SetControls(seq=self.seq, values={name: value})

    def _ramp(self) -> ClientMessage:
        return SetControls(seq=self.seq, values={"guidance": float(self.rng.randrange(1, 5))}, ramp_ms=500.0)

    def _prompts(self) -> ClientMessage:
        return SetPrompts(seq=self.seq, items=[LivePrompt(text=text, weight=self.rng.random()) for text in PROMPTS])

    def _pause(self) -> ClientMessage:
        self.is_playing = not self.is_playing
        return Play() if self.is_playing else Pause()

    def _band(self) -> ClientMessage:
        start_s, end_s = self.rng.choice([(None, None), (0.2, 0.6), (0.2, 1.2)])
        return SetBand(seq=self.seq, start_s=start_s, end_s=end_s)


@pytest.fixture(scope="module")
def pipeline(built: Callable[..., Deployment]) -> Iterator[Pipeline]:
    with open_pipeline(built(depth=1, max_rows=16)) as pipeline:
        yield pipeline


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with open_sqlite_store(tmp_path) as store:
        yield store


@pytest.mark.parametrize("mode", ["loop", "extend"])
@pytest.mark.parametrize("seed", range(3))
def test_a_session_restored_from_any_commit_sounds_like_the_uninterrupted_one(
    mode: Any, seed: int, pipeline: Pipeline, store: SessionStore
) -> None:
    model = live_model(pipeline)
    opening = Open(mode=mode, seed=seed, prompts=[LivePrompt(text="calm piano")], controls={"steps": 2})
    one = Simulated(LiveSession("a", model, opening, 0.0), pipeline, 0.0)
    script = Script(mode, seed, model.sample_rate_hz)
    others: list[Simulated] = []
    num_commits = 0
    for number in range(STEPS):
        now_s = number * TICK_S
        messages = script.messages(number, one.sound.end)
        one.has_committed = False
        for session in (one, *others):
            session.step(messages, now_s)
        num_commits += one.has_committed
        if one.has_committed and num_commits % EVERY == seed:
            others.append(resumed(one, store, now_s))
    assert len(others) >= 3
    for other in others:
        begin, end = other.sound.begin, min(one.sound.end, other.sound.end)
        np.testing.assert_array_equal(one.sound.part(begin, end)[0], other.sound.part(begin, end)[0])
    assert one.sound.end > 2 * model.sample_rate_hz
    assert np.abs(one.sound.pcm).max() > 0.01


def resumed(one: Simulated, store: SessionStore, now_s: float) -> Simulated:
    """The session as another process restores it from the store."""
    store.save("a", one.session.snapshot(now_s + one.clock_s))
    snapshot = store.load("a")
    assert snapshot is not None
    session = LiveSession.restore(snapshot, one.session.model, now_s + OTHER_CLOCK_S)
    assert session.has_token("token")
    other = Simulated(session, one.pipeline, now_s, OTHER_CLOCK_S)
    other.step([], now_s, may_generate=False)  # The other one had its generation of this step.
    return other
