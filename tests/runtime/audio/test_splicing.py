"""Samples of a source in decoded audio: which are the source's, which are decoded, and what lies between."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.audio.finishing import block_energies, loudness_lufs
from runtime.audio.window_decoder import AudioSplicer, surrounding_loudness

HOP, FADE = 50, 20
KEPT = np.array([1, 1, 0, 0, 1, 1, 1, 0, 1, 1], bool)
TOTAL = len(KEPT) * HOP
time = np.arange(TOTAL)[:, None] / 200
SOURCE = np.sin(time * [3.0, 5.0]).astype(np.float32)
DECODED = np.cos(time * [7.0, 2.0]).astype(np.float32)


def chunks(pcm: NDArray[np.float32], length: int) -> Iterator[NDArray[np.float32]]:
    return (pcm[begin : begin + length] for begin in range(0, len(pcm), length))


def spliced(source: Iterator[NDArray[np.float32]], window: int, kept: NDArray[np.bool_] = KEPT) -> NDArray[np.float32]:
    splicer = AudioSplicer(kept, HOP, FADE, source)
    parts = []
    for begin in range(0, TOTAL, window):
        part = DECODED[begin : begin + window]
        parts.append(splicer.splice(len(part), lambda part=part: part))  # type: ignore[misc]
    return np.concatenate(parts)


def test_kept_frames_are_the_source_bit_for_bit_but_for_the_crossfades() -> None:
    result = spliced(chunks(SOURCE, 70), 90)
    for begin, end in ((0, 100 - FADE), (200 + FADE, 350 - FADE), (400 + FADE, 500)):
        assert np.array_equal(result[begin:end], SOURCE[begin:end])
    for begin, end in ((100, 200), (350, 400)):
        assert np.array_equal(result[begin:end], DECODED[begin:end])


@pytest.mark.parametrize(("window", "chunk"), [(1, 500), (37, 13), (500, 1)])
def test_the_result_does_not_depend_on_windows_and_chunks(window: int, chunk: int) -> None:
    np.testing.assert_array_equal(spliced(chunks(SOURCE, chunk), window), spliced(chunks(SOURCE, 100), 100))


def test_joins_are_crossfades_between_the_two() -> None:
    result = spliced(chunks(SOURCE, 100), 100)
    low, high = np.minimum(SOURCE, DECODED) - 1e-6, np.maximum(SOURCE, DECODED) + 1e-6
    assert ((low <= result) & (result <= high)).all()
    largest = max(np.abs(np.diff(pcm, axis=0)).max() for pcm in (SOURCE, DECODED))
    assert np.abs(np.diff(result, axis=0)).max() < largest + 2 / FADE


def test_a_stretch_that_is_shorter_than_two_crossfades_is_blended_from_both_sides() -> None:
    kept = np.zeros(10, bool)
    kept[4] = True
    splicer = AudioSplicer(kept, 4, FADE, iter([np.zeros((40, 1), np.float32)]))
    result = splicer.splice(40, lambda: np.ones((40, 1), np.float32))
    assert (result[:16] == 1.0).all()
    assert (result[20:] == 1.0).all()
    assert (result[16:20] >= 1 - 2 / FADE).all()


def test_windows_of_kept_frames_are_not_decoded() -> None:
    def fail() -> NDArray[np.float32]:
        raise AssertionError("decoded")

    splicer = AudioSplicer(KEPT, HOP, FADE, chunks(SOURCE, 500))
    assert np.array_equal(splicer.splice(80, fail), SOURCE[:80])
    everything = AudioSplicer(np.ones(10, bool), HOP, FADE, chunks(SOURCE, 500))
    assert np.array_equal(everything.splice(TOTAL, fail), SOURCE)


def test_after_the_end_of_the_source_audio_is_decoded() -> None:
    decode: Callable[[], NDArray[np.float32]] = lambda: DECODED[200:]  # noqa: E731
    splicer = AudioSplicer(np.array([True] * 4 + [False] * 6), HOP, FADE, chunks(SOURCE[:200], 64))
    assert np.array_equal(splicer.splice(100, lambda: DECODED[:100]), SOURCE[:100])
    splicer.splice(100, lambda: DECODED[100:200])
    assert np.array_equal(splicer.splice(300, decode), DECODED[200:])


def test_the_loudness_around_a_passage_is_that_of_kept_audio_within_10_s() -> None:
    rate_hz, hop, generator = 8000, 800, np.random.default_rng(0)
    noise = generator.standard_normal((40 * rate_hz, 2)).astype(np.float32)
    level = np.repeat(np.float32([0.5, 0.02, 0.9, 0.02, 0.5]), 8 * rate_hz)[:, None]
    source = noise * level
    kept = np.ones(400, bool)
    kept[160:240] = False
    found = surrounding_loudness(kept, hop, rate_hz, chunks(source, 999))
    near = np.concatenate([source[6 * rate_hz : 16 * rate_hz], source[24 * rate_hz : 34 * rate_hz]])
    assert found == pytest.approx(loudness_lufs(block_energies(near, rate_hz)), abs=0.5)
    assert surrounding_loudness(np.ones(400, bool), hop, rate_hz, chunks(source, 999)) is None
    assert surrounding_loudness(kept, hop, rate_hz, chunks(0 * source, 999)) is None
