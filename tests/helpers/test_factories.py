"""Properties of the tiny bundles that other tests rely on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from helpers.factories import tiny_bundle
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


def run(path: Path, feeds: dict[str, NDArray[np.generic]]) -> list[NDArray[np.float32]]:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)


def decoder_feeds(seed: int = 1) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "hidden_states": random.standard_normal((2, 6, 8)).astype(np.float32),
        "timestep": np.array([0.3, 0.9], np.float32),
        "encoder_hidden_states": random.standard_normal((2, 5, 12)).astype(np.float32),
        "condition_mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.float32),
        "context_latents": random.standard_normal((2, 6, 16)).astype(np.float32),
    }


@pytest.mark.parametrize("name", list(decoder_feeds()))
def test_the_velocity_depends_on_every_input(tmp_path: Path, name: str) -> None:
    path = tiny_bundle(tmp_path) / "decoder.onnx"
    feeds = decoder_feeds()
    changed = feeds | {name: np.float32(1) - feeds[name]}
    assert np.abs(run(path, feeds)[0] - run(path, changed)[0]).max() > 1e-3


def test_the_audio_of_a_frame_does_not_depend_on_the_window_that_it_is_decoded_in(tmp_path: Path) -> None:
    """Bit by bit: tests of resuming compare audio that was decoded in other windows."""
    session = ort.InferenceSession(str(tiny_bundle(tmp_path) / "codec_decode.onnx"), providers=["CPUExecutionProvider"])
    latents = np.random.default_rng(0).standard_normal((1, 200, 8)).astype(np.float32)

    def decode(begin: int, end: int) -> NDArray[np.float32]:
        feeds = {"latents": latents[:, begin - 1 : end + 1], "start_frame": np.array([begin - 1])}
        audio: NDArray[np.float32] = session.run(None, feeds)[0]
        return audio[..., 320:-320]

    whole = decode(1, 199)
    for frames in (1, 2, 3, 5, 17, 64):
        for begin in range(1, 199 - frames, 7):
            expected = whole[..., (begin - 1) * 320 : (begin + frames - 1) * 320]
            np.testing.assert_array_equal(decode(begin, begin + frames), expected)
