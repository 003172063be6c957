"""Live sessions with real engines: the demo model, its codec, a client that takes audio as fast as it comes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.direct_player import DirectPlayer

from runtime.config.codec import Latents, Pcm
from runtime.config.deployment import Deployment
from runtime.live.protocol import messages
from runtime.live.protocol.messages import LivePrompt
from runtime.pipeline.pipeline import Pipeline, open_pipeline

pytestmark = pytest.mark.shipped


@pytest.fixture(scope="module")
def pipeline(built_demo: Deployment) -> Iterator[Pipeline]:
    with open_pipeline(built_demo) as opened:
        yield opened


def largest_jump(pcm: Pcm, start: int, end: int) -> float:
    """The largest second difference, which a click raises and a smooth waveform does not."""
    return float(np.abs(np.diff(pcm[start:end], n=2, axis=0)).max())


def canvas_of(player: DirectPlayer) -> Latents:
    """The latents `[T, C]` that a session plays: what was generated, with the envelopes of its instruments."""
    canvas = player.session.played(player.now_s, 60.0).canvas
    return canvas.rows(range(canvas.start, canvas.end))


def test_a_loop_equals_the_decode_of_its_repeated_latents(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, seconds=2.5)
    pcm = player.play(8.0)
    assert len(player.jobs) == 1
    assert player.session.played(player.now_s, 60.0).is_loop
    repeated = np.concatenate([canvas_of(player)] * 4)
    expected = pipeline.codec.decode(repeated)[: len(pcm)]
    assert np.abs(pcm).max() > 0.05
    assert np.abs(pcm - expected).max() < 1e-4


def test_the_seam_of_a_loop_does_not_click(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, seconds=2.5)
    pcm = player.play(8.0)
    seam = len(player.latents[0]) * player.model.hop_samples
    at_seams = max(largest_jump(pcm, at - 48, at + 48) for at in (seam, 2 * seam))
    assert at_seams <= 1.5 * largest_jump(pcm, 0, seam - 48)


def test_an_extension_keeps_what_is_known_and_joins_without_a_click(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, mode="extend")
    pcm = player.play(16.0)
    first, second = player.latents[:2]
    keep, canvas = player.jobs[1].segment.keep_frames, canvas_of(player)
    assert keep == player.model.overlap_frames
    assert not player.session.played(player.now_s, 60.0).is_loop
    assert np.abs(second[:keep] - canvas[len(first) - keep : len(first)]).max() < 1e-5
    join = len(first) * player.model.hop_samples
    assert largest_jump(pcm, join - 960, join + 960) <= 1.5 * largest_jump(pcm, 48_000, join - 960)
    expected = pipeline.codec.decode(canvas)[: 14 * 48_000]
    assert np.abs(pcm[: len(expected)] - expected).max() < 1e-4


def test_a_refreshed_loop_changes_without_a_click(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, seconds=2.5)
    player.play(3.0)
    before = len(player.pcm)
    player.session.handle(messages.SetControls(seq=1, values={"guidance": 1.0}), player.now_s)
    pcm = player.play(5.0)
    assert len(player.jobs) == 3, "the first canvas, a draft, and the complete one"
    start, end = min(begin for begin, _ in player.replaced), max(end for _, end in player.replaced)
    assert before - 48_000 < start < end <= before + 48_000
    assert largest_jump(pcm, start - 480, end + 480) <= 1.5 * largest_jump(pcm, 0, start - 480)
    latents = np.concatenate([canvas_of(player)] * 3)
    expected = pipeline.codec.decode(latents)
    late = slice(end, len(pcm))
    assert np.abs(pcm[late] - expected[late]).max() < 1e-4


def test_a_muted_layer_is_silent_and_no_join_clicks(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, prompts=[LivePrompt(text="house drums, bass and pads, 124 bpm")])
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
    expected = {
        muted: pipeline.codec.decode(player.model.heard(played.canvas.moods, muted, latents))[: len(pcm)]
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
