"""The shipped demo bundle, served."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile
from helpers.http_harness import Served, serving

from runtime.config.deployment import Deployment

pytestmark = pytest.mark.shipped


@pytest.fixture(scope="module")
def demo(built_demo: Deployment) -> Iterator[Served]:
    with serving(built_demo) as served:
        yield served


def test_audio_has_the_requested_length_and_is_not_silent(demo: Served) -> None:
    response = demo.post(prompt="warm synth arpeggio", seconds=3.3, stream=False)
    pcm, rate = soundfile.read(io.BytesIO(response.content))
    assert (rate, pcm.shape) == (48000, (round(3.3 * 48000), 2))
    assert np.sqrt(np.mean(pcm**2)) > 0.001
    assert np.abs(np.diff(pcm, axis=0)).max() < 1.5


def test_audio_depends_on_prompt_and_seed_only(demo: Served) -> None:
    def make(**body: object) -> bytes:
        return demo.post(seconds=1.0, steps=4, response_format="pcm", **body).content

    first = make(prompt="calm piano")
    assert (make(prompt="calm piano") == first) is True
    assert (make(prompt="fast drums") == first) is False
    assert (make(prompt="calm piano", seed=2) == first) is False


def test_segments_join_without_a_jump(demo: Served) -> None:
    """The sample differences where the second segment begins are not larger than elsewhere."""
    content = demo.post(prompt="warm synth arpeggio", seconds=14.0, steps=4, response_format="pcm").content
    pcm = np.frombuffer(content, "<i2").reshape(-1, 2).astype(np.float64)
    assert len(pcm) == 14 * 48000
    jumps = np.abs(np.diff(pcm, axis=0)).max(axis=1)
    seam = 256 * 1920
    assert jumps[seam - 50 : seam + 50].max() <= 2 * np.quantile(jumps, 0.999)
