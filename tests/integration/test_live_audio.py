"""Live sessions with real engines: the demo model, its codec, a client that takes audio as fast as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np
import pytest

from runtime.audio.formats import Pcm
from runtime.config.deployment import Deployment
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.segments import Latents
from runtime.sessions.hosting.services import live_model
from runtime.sessions.hosting.work import compose_job
from runtime.sessions.protocol import actions, messages
from runtime.sessions.protocol.actions import DecodeWindow, SessionJob
from runtime.sessions.protocol.frames import AudioChunk
from runtime.sessions.protocol.messages import LivePrompt
from runtime.sessions.session.live_session import LiveSession
from runtime.tick.events import Event, Failed, Finished

pytestmark = pytest.mark.shipped

STEPS = 4
BUFFERED = 9600


@pytest.fixture(scope="module")
def pipeline(built_demo: Deployment) -> Iterator[Pipeline]:
    with open_pipeline(built_demo) as opened:
        yield opened


class Player:
    """Carries out a session's actions at once; its playhead is what it was sent."""

    def __init__(self, pipeline: Pipeline, **opened: object) -> None:
        self.pipeline = pipeline
        self.model = live_model(pipeline)
        always = {"controls": {"steps": STEPS}, "prompts": [LivePrompt(text="calm piano")], "seed": 3, "plan": False}
        opened = {**always, **opened}
        self.session = LiveSession("live", self.model, messages.Open(**opened), 0.0)  # type: ignore[arg-type]
        self.session.attach("token", 0.0, keep_s=60.0)
        self.jobs: list[SessionJob] = []
        self.latents: list[Latents] = []
        self.pcm = np.empty((0, self.model.channels), np.float32)
        self.replaced: list[tuple[int, int]] = []
        self.now_s = 0.0

    def play(self, seconds: float) -> Pcm:
        """All audio up to this time."""
        while len(self.pcm) < seconds * self.model.sample_rate_hz:
            for action in self.session.advance(self.now_s):
                self._carry_out(action)
            self.now_s += 0.01
            played = max(0, len(self.pcm) - BUFFERED)
            self.session.handle(messages.Ack(playhead_sample=played), self.now_s)
        return self.pcm

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case SessionJob() as job:
                self.jobs.append(job)
                self.latents.append(self._generate(job))
                self.session.generation_finished(job.id, self.latents[-1], 0, self.now_s)
            case DecodeWindow() as window:
                assert self.pipeline.codec is not None
                pcm = self.pipeline.codec.decode(window.values, window.start_frame)
                self.session.decoded(window, pcm[window.trim_begin : window.trim_end])
            case AudioChunk() as chunk:
                if chunk.is_replacing:
                    self.replaced.append((chunk.start_sample, chunk.end_sample))
                    _overwrite(self.pcm, chunk.start_sample, chunk.pcm, round(0.025 * self.model.sample_rate_hz))
                else:
                    assert chunk.start_sample == len(self.pcm)
                    self.pcm = np.concatenate((self.pcm, chunk.pcm))

    def _generate(self, job: SessionJob) -> Latents:
        events: SimpleQueue[Event] = SimpleQueue()
        self.pipeline.loop.submit(compose_job(self.pipeline, job, seed=0, client="live"), events.put)
        while True:
            match events.get():
                case Finished(latents=latents):
                    return latents
                case Failed(error=error):
                    raise error


def _overwrite(pcm: Pcm, start: int, new: Pcm, fade: int) -> None:
    """As clients do: crossfade from the old audio, then the new."""
    share = np.clip(np.arange(1, len(new) + 1) / fade, 0, 1).astype(np.float32)[:, None]
    pcm[start : start + len(new)] = (1 - share) * pcm[start : start + len(new)] + share * new


def largest_jump(pcm: Pcm, start: int, end: int) -> float:
    """The largest second difference, which a click raises and a smooth waveform does not."""
    return float(np.abs(np.diff(pcm[start:end], n=2, axis=0)).max())


def test_a_loop_equals_the_decode_of_its_repeated_latents(pipeline: Pipeline) -> None:
    player = Player(pipeline, seconds=2.5)
    pcm = player.play(8.0)
    assert len(player.jobs) == 1
    (latents,) = player.latents
    repeated = np.concatenate([latents] * 4)
    assert pipeline.codec is not None
    expected = pipeline.codec.decode(repeated)[: len(pcm)]
    assert np.abs(pcm).max() > 0.05
    assert np.abs(pcm - expected).max() < 1e-4


def test_the_seam_of_a_loop_does_not_click(pipeline: Pipeline) -> None:
    player = Player(pipeline, seconds=2.5)
    pcm = player.play(8.0)
    seam = len(player.latents[0]) * player.model.hop_samples
    at_seams = max(largest_jump(pcm, at - 48, at + 48) for at in (seam, 2 * seam))
    assert at_seams <= 1.5 * largest_jump(pcm, 0, seam - 48)


def test_an_extension_keeps_what_is_known_and_joins_without_a_click(pipeline: Pipeline) -> None:
    player = Player(pipeline, mode="extend")
    pcm = player.play(16.0)
    first, second = player.latents[:2]
    keep = player.jobs[1].segment.keep_frames
    assert keep == player.model.overlap_frames
    assert np.abs(second[:keep] - first[-keep:]).max() < 1e-5
    join = len(first) * player.model.hop_samples
    assert largest_jump(pcm, join - 960, join + 960) <= 1.5 * largest_jump(pcm, 48_000, join - 960)
    canvas = np.concatenate((first, second[keep:]))
    assert pipeline.codec is not None
    expected = pipeline.codec.decode(canvas)[: 14 * 48_000]
    assert np.abs(pcm[: len(expected)] - expected).max() < 1e-4


def test_a_refreshed_loop_changes_without_a_click(pipeline: Pipeline) -> None:
    player = Player(pipeline, seconds=2.5)
    player.play(3.0)
    before = len(player.pcm)
    player.session.handle(messages.SetControls(seq=1, values={"guidance": 1.0}), player.now_s)
    pcm = player.play(5.0)
    assert len(player.jobs) == 3, "the first canvas, a draft, and the complete one"
    start, end = min(begin for begin, _ in player.replaced), max(end for _, end in player.replaced)
    assert before - 24_000 < start < end <= before + 48_000
    assert largest_jump(pcm, start - 480, end + 480) <= 1.5 * largest_jump(pcm, 0, start - 480)
    latents = np.concatenate([player.latents[-1]] * 3)
    assert pipeline.codec is not None
    expected = pipeline.codec.decode(latents)
    late = slice(end, len(pcm))
    assert np.abs(pcm[late] - expected[late]).max() < 1e-4


def test_a_muted_layer_is_silent_and_no_join_clicks(pipeline: Pipeline) -> None:
    player = Player(pipeline, prompts=[LivePrompt(text="house drums, bass and pads, 124 bpm")])
    rate, layers = player.model.sample_rate_hz, tuple(player.model.layers)
    others = tuple(name for name in layers if name != "bass")
    player.play(3.0)
    for seq, muted in enumerate((("drums",), (), others, layers), start=1):
        player.session.handle(messages.MuteLayers(seq=seq, layers=list(muted)), player.now_s)
        player.play(3.0 + 1.5 * seq)
    pcm, soon, marks = player.pcm, rate // 4, [start for start, _ in player.replaced]
    assert len(marks) == 4, "each is heard at once, in place of what was sent"
    played = player.session.played(player.now_s, 60.0)
    frames = np.arange(len(pcm) // player.model.hop_samples + 1) % played.frames
    latents = played.rows()[frames]  # [n, C]
    assert pipeline.codec is not None
    expected = {
        muted: pipeline.codec.decode(player.model.without(muted, latents))[: len(pcm)]
        for muted in ((), ("drums",), others)
    }
    assert np.abs(expected[()] - expected[("drums",)])[marks[0] + soon : marks[1]].max() > 0.05
    for number, muted in enumerate((("drums",), (), others)):
        inside = slice(marks[number] + soon, marks[number + 1])
        # Drums sound a little beyond the codec's margin.
        assert np.abs(pcm[inside] - expected[muted][inside]).max() < 2e-3
    assert np.abs(pcm[marks[3] + soon :]).max() < 1e-3
    whole = largest_jump(expected[()], 0, len(pcm))
    assert all(largest_jump(pcm, mark, mark + soon) <= whole for mark in marks)
