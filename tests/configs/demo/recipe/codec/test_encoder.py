"""The encode graph: windows that join, silence, and the shipped weights: songs come back as they were."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from configs.demo.recipe.codec.decoder import build_decoder
from configs.demo.recipe.codec.encoder import (
    ENCODE_MARGIN_FRAMES,
    NUM_NOTES,
    build_encoder,
    build_features,
    denormalized,
    load_weights,
    normalized,
    save_weights,
    weight_shapes,
)
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.instruments import INSTRUMENTS, TIMBRE_CHANNELS, timbre_levels
from configs.demo.recipe.latents import (
    CHANNELS,
    HAT,
    HOP_SAMPLES,
    KICK,
    NUM_PITCHES,
    SNARE,
    FloatArray,
    latents_from_levels,
    levels_from_latents,
)

BUNDLE = Path("configs/demo")
NUM_SONGS = 8


def open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def random_weights(seed: int = 0) -> dict[str, FloatArray]:
    rng = np.random.default_rng(seed)
    return {name: np.float32(0.05) * rng.standard_normal(s, np.float32) for name, s in weight_shapes().items()}


@pytest.fixture(scope="module")
def decoder() -> ort.InferenceSession:
    return open_session(build_decoder())


def test_weights_come_back_from_their_file(tmp_path: Path) -> None:
    weights = random_weights()
    save_weights(tmp_path / "encoder.npz", weights)
    loaded = load_weights(tmp_path / "encoder.npz")
    assert loaded.keys() == weights.keys()
    assert all(np.array_equal(loaded[name], weights[name]) for name in weights)


def test_an_encoded_window_equals_the_full_encode() -> None:
    session = open_session(build_encoder(random_weights()))
    audio = 0.1 * np.random.default_rng(1).standard_normal((1, 2, 60 * HOP_SAMPLES), np.float32)
    whole = session.run(None, {"audio": audio})[0]
    begin, end, margin = 20, 40, ENCODE_MARGIN_FRAMES
    window = session.run(None, {"audio": audio[:, :, (begin - margin) * HOP_SAMPLES : (end + margin) * HOP_SAMPLES]})[0]
    assert whole.shape == (1, 60, CHANNELS)
    assert np.abs(whole).max() > 1.0
    assert np.abs(window[:, margin:-margin] - whole[:, begin:end]).max() < 1e-4


def test_features_are_logarithms_of_energies() -> None:
    energies = np.geomspace(1e-9, 1.0, 20, dtype=np.float32)
    np.testing.assert_allclose(denormalized(normalized(energies)), energies, rtol=1e-3, atol=1e-10)
    assert normalized(np.zeros(1, np.float32)) == 0.0


def test_louder_audio_has_the_features_of_more_energy() -> None:
    session = open_session(build_features())
    audio = 0.05 * np.random.default_rng(2).standard_normal((1, 2, 12 * HOP_SAMPLES), np.float32)
    soft, loud = (session.run(None, {"audio": gain * audio})[0] for gain in (np.float32(1.0), np.float32(2.0)))
    np.testing.assert_allclose(normalized(4.0 * denormalized(soft)), loud, atol=2e-3)


# The shipped weights --------------------------------------------------------------------------------------------------

Pair = tuple[FloatArray, FloatArray, dict[str, str]]


@pytest.fixture(scope="module")
def pairs(decoder: ort.InferenceSession) -> list[Pair]:
    """Levels `[T, C]` of held-out songs, what the bundle's encoder makes of their audio, and the instruments."""
    return list(encoded_songs(decoder, ort.InferenceSession(BUNDLE / "codec_encode.onnx")))


def encoded_songs(decoder: ort.InferenceSession, encoder: ort.InferenceSession) -> Iterator[Pair]:
    for seed in range(NUM_SONGS):
        rng = np.random.default_rng([1_000_003, seed])
        song = draw_song(rng)
        levels = render(song, 200, song.layers)
        feed = {"latents": latents_from_levels(levels)[None], "start_frame": np.zeros(1, np.int64)}
        audio = decoder.run(None, feed)[0] * np.float32(10.0 ** rng.uniform(-0.4, 0.3))
        found = levels_from_latents(encoder.run(None, {"audio": audio})[0])[0]
        yield levels, found, {layer: song.instruments[layer] for layer in song.layers}


def f1(expected: np.typing.NDArray[np.bool_], found: np.typing.NDArray[np.bool_]) -> float:
    return float(2 * (expected & found).sum() / (expected.sum() + found.sum()))


def test_notes_come_back(pairs: list[Pair]) -> None:
    levels, found = (np.concatenate([pair[index][:, :NUM_PITCHES] for pair in pairs]) for index in (0, 1))
    assert f1(levels > 0.12, found > 0.12) > 0.8


@pytest.mark.parametrize("drum", [KICK, SNARE, HAT])
def test_drums_come_back_within_a_frame(pairs: list[Pair], drum: int) -> None:
    levels, found = (np.concatenate([pair[index][:, drum] for pair in pairs]) for index in (0, 1))
    assert np.corrcoef(widened(levels), widened(found))[0, 1] > 0.8


def widened(levels: FloatArray) -> FloatArray:
    return np.asarray(np.convolve(levels, [0.5, 1.0, 0.5], "same"), np.float32)


def test_harmony_comes_back(pairs: list[Pair]) -> None:
    for levels, found, _ in pairs:
        if (chroma := chroma_of(levels)).any():
            assert np.sum(chroma * chroma_of(found)) > 0.9


def chroma_of(levels: FloatArray) -> FloatArray:
    """Unit vector `[12]` of the pitch classes' levels; zeros where there are none."""
    total = np.bincount(np.arange(NUM_PITCHES) % 12, levels[:, :NUM_PITCHES].sum(axis=0))
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-9), np.float32)


def test_instruments_come_back(pairs: list[Pair]) -> None:
    told = [heard_instrument(found, layer) == name for _, found, names in pairs for layer, name in names.items()]
    assert np.mean(told) > 0.6  # chance is 0.15


def heard_instrument(found: FloatArray, layer: str) -> str:
    """The instrument nearest to the median of the layer's timbre channels where it is present."""
    place = found[:, TIMBRE_CHANNELS[layer]]
    place = np.median(place[place[:, 0] > 0.1], axis=0) if (place[:, 0] > 0.1).any() else np.zeros(place.shape[1])
    distances = [np.sum((place - timbre_levels(layer, name)) ** 2) for name in INSTRUMENTS[layer]]
    return INSTRUMENTS[layer][int(np.argmin(distances))]


def test_silence_is_silence_to_the_bundles_encoder() -> None:
    session = ort.InferenceSession(BUNDLE / "codec_encode.onnx")
    levels = levels_from_latents(session.run(None, {"audio": np.zeros((1, 2, 20 * HOP_SAMPLES), np.float32)})[0])
    assert not levels[..., :NUM_NOTES].any()
