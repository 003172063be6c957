"""The shipped demo bundle, served."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
from helpers.http_harness import Served, serving
from helpers.paths import ROOT

from profiling.http_bench import measure_clients
from runtime.config.deployment import Deployment

pytestmark = pytest.mark.shipped

CONFIG = ROOT / "configs" / "demo.toml"


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


def test_eight_concurrent_streams_all_start_before_the_first_ends(demo: Served) -> None:
    bodies = [{"prompt": "calm piano", "seed": seed, "seconds": 2.0, "steps": 8} for seed in range(8)]
    assert measure_clients(demo.url, bodies, rounds=1)["all_start_before_first_end"]


def test_a_seed_gives_the_same_audio_among_others(demo: Served) -> None:
    def make(seed: int) -> np.ndarray:
        content = demo.post(prompt="calm piano", seed=seed, seconds=1.0, steps=4, response_format="pcm").content
        return np.frombuffer(content, "<i2").astype(int)

    alone = make(1)
    with ThreadPoolExecutor(5) as pool:
        among = list(pool.map(make, [2, 3, 1, 4, 5]))[2]
    assert np.abs(alone - among).max() <= 2, "another batch shape may round otherwise, no more"
