"""Stems of what a live session plays: they sum to what it sends, and a loop goes on at its ends."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Built
from helpers.factories import TinySpec
from numpy.typing import NDArray

from runtime.audio.finishing import soft_limited
from runtime.audio.formats import MIX
from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.passage import Passage
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, PlayedPart
from runtime.music.tempo import Tempo
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.stem_files import StemFiles

SPEC = TinySpec(stems=True, gain_db=20.0)
HOP = SPEC.hop_samples


@pytest.fixture
def pipeline(built: Built) -> Pipeline:
    return open_pipeline(built(stems=True, gain_db=20.0))


def canvas(frames: int, start: int = 0) -> Canvas:
    latents = 3 * np.random.default_rng(1).standard_normal((frames, SPEC.channels)).astype(np.float32)
    return Canvas((CanvasPart(Piece("a", latents), 0, start, start + frames, 0, 0),))


def stems(passage: Passage) -> dict[str, Pcm]:
    chunks = list(passage.stems(passage.latents))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def heard(pipeline: Pipeline, latents: Latents, start_frame: int) -> NDArray[np.float32]:
    return soft_limited(pipeline.codec.decode(latents, start_frame), 10.0) / np.float32(10.0)


def test_a_loop_is_heard_as_in_its_later_passes(pipeline: Pipeline) -> None:
    """Before its first frame comes its last one."""
    known = canvas(100)
    found = stems(Passage(pipeline, PlayedPart(known, 10, 90, True)))
    mix = found.pop(MIX)
    middle = heard(pipeline, known.rows([89, *range(10, 90), 10]), 89)[HOP:-HOP]
    np.testing.assert_allclose(mix, middle, atol=2e-5)
    assert np.abs(mix).max() > 0.07, "some of it is limited"
    assert list(found) == ["bass", "drums"]
    np.testing.assert_allclose(sum(found.values()), mix, atol=2e-5)


def test_what_was_played_last_has_its_neighbours_around_it(pipeline: Pipeline) -> None:
    known = canvas(200, start=50)
    for begin, end in ((50, 250), (60, 140), (249, 250)):
        passage = Passage(pipeline, PlayedPart(known, begin, end, False))
        assert passage.total_samples == (end - begin) * HOP
        found = stems(passage)
        whole = heard(pipeline, known.rows(range(50, 250)), 50)[(begin - 50) * HOP : (end - 50) * HOP]
        np.testing.assert_allclose(found[MIX], whole, atol=2e-5)
        np.testing.assert_allclose(found["bass"] + found["drums"], found[MIX], atol=2e-5)


def test_its_files_have_the_tempo_and_say_what_is_estimated(pipeline: Pipeline) -> None:
    passage = Passage(pipeline, PlayedPart(canvas(40), 0, 40, True, Tempo(93.75, 4), is_estimated=True))
    files = StemFiles(passage, passage.latents, metadata=False).finish()
    assert list(files) == ["mix.flac", "bass.flac", "drums.flac", "notes.mid", "options.json"]
    assert b'"exact": true, "estimated": true' in files["options.json"]
    score = passage.score(passage.latents)
    assert (score.bpm, score.time_signature, score.seconds, score.is_estimated) == (93.75, 4, 1.6, True)
