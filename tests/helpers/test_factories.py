"""Properties of the tiny bundles that other tests rely on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from helpers.factories import tiny_bundle, tiny_deployment
from numpy.typing import NDArray
from tokenizers import Tokenizer

from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment

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


def test_a_bundle_and_a_deployment_load(tmp_path: Path) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path, depth=3, channels=4))
    bundle = load_bundle(deployment.bundle)
    assert (bundle.latents.channels, deployment.runtime.depth) == (4, 3)
    assert bundle.codec is not None
    assert bundle.codec.sample_rate_hz == bundle.latents.frame_rate_hz * bundle.codec.hop_samples


@pytest.mark.parametrize("left_out", ["context", "mask", "codec", "encode", "text_encoder"])
def test_parts_can_be_left_out(tmp_path: Path, left_out: str) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path, **{left_out: False}))
    assert (bundle.context is None) == (left_out == "context")
    assert (bundle.codec is None) == (left_out == "codec")
    assert (bundle.text_encoder is None) == (left_out == "text_encoder")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second, other = (tiny_bundle(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (second / path.name).read_bytes()
    assert (first / "decoder.onnx").read_bytes() != (other / "decoder.onnx").read_bytes()


@pytest.mark.parametrize("name", list(decoder_feeds()))
def test_the_velocity_depends_on_every_input(tmp_path: Path, name: str) -> None:
    path = tiny_bundle(tmp_path) / "decoder.onnx"
    feeds = decoder_feeds()
    changed = feeds | {name: np.float32(1) - feeds[name]}
    assert np.abs(run(path, feeds)[0] - run(path, changed)[0]).max() > 1e-3


def test_masked_tokens_do_not_matter(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path) / "decoder.onnx"
    feeds = decoder_feeds()
    changed = feeds["encoder_hidden_states"].copy()
    changed[0, 3:] += 100
    np.testing.assert_array_equal(run(path, feeds)[0], run(path, feeds | {"encoder_hidden_states": changed})[0])


def test_a_codec_window_with_its_margin_equals_the_whole(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path) / "codec_decode.onnx"
    latents = np.random.default_rng(3).standard_normal((1, 12, 8)).astype(np.float32)
    whole = run(path, {"latents": latents, "start_frame": np.array([40], np.int64)})[0]
    part = run(path, {"latents": latents[:, 3:9], "start_frame": np.array([43], np.int64)})[0]
    assert whole.shape == (1, 2, 12 * 320)
    np.testing.assert_allclose(part[..., 320:-320], whole[..., 4 * 320 : 8 * 320], atol=1e-6)
    encoded = run(path.with_name("codec_encode.onnx"), {"audio": whole})[0]
    assert encoded.shape == (1, 12, 8)


def test_the_text_encoder_takes_the_tokenizers_tokens(tmp_path: Path) -> None:
    folder = tiny_bundle(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("").ids == [0]
    ids = np.array([tokenizer.encode("Über 88 bpm").ids], np.int64)
    condition, mask = run(folder / "text_encoder.onnx", {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert condition.shape == (*ids.shape, 12)
    assert mask.dtype == np.float32


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
