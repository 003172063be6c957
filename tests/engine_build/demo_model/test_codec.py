"""The codec: windows that join, also hours into a stream; correct audio; audio back to the same roll."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from engine_build.demo_model.codec import DECODE_MARGIN_FRAMES, ENCODE_MARGIN_FRAMES, build_decoder, build_encoder
from engine_build.demo_model.corpus.songs import LAYERS, draw_song, render
from engine_build.demo_model.latents import (
    CHANNELS,
    FIRST_PITCH,
    HAT,
    HOP_SAMPLES,
    KICK,
    SAMPLE_RATE_HZ,
    SNARE,
    latents_from_levels,
    levels_from_latents,
)
from engine_build.demo_model.timbre import PHASE_STEPS, all_partials, pitch_frequency_hz

FloatArray = npt.NDArray[np.float32]
HOURS_IN = 10**6 * 25


def open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def decoder() -> ort.InferenceSession:
    return open_session(build_decoder())


@pytest.fixture(scope="module")
def encoder() -> ort.InferenceSession:
    return open_session(build_encoder())


def decode(session: ort.InferenceSession, latents: FloatArray, start_frame: int = 0) -> FloatArray:
    start = np.full(len(latents), start_frame, np.int64)
    audio: FloatArray = session.run(None, {"latents": latents, "start_frame": start})[0]
    return audio


def encode(session: ort.InferenceSession, audio: FloatArray) -> FloatArray:
    latents: FloatArray = session.run(None, {"audio": audio})[0]
    return latents


def full_song(frames: int, seed: int = 3) -> FloatArray:
    song = replace(draw_song(np.random.default_rng(seed)), layers=frozenset(LAYERS), density=1)
    return latents_from_levels(render(song, frames))[None]


def silence(frames: int) -> FloatArray:
    return latents_from_levels(np.zeros((1, frames, CHANNELS), np.float32))


@pytest.mark.parametrize("start_frame", [0, 1, PHASE_STEPS - 40, HOURS_IN])
def test_a_decoded_window_equals_the_full_decode(decoder: ort.InferenceSession, start_frame: int) -> None:
    latents = full_song(96)
    whole = decode(decoder, latents, start_frame)
    begin, end, margin = 30, 61, DECODE_MARGIN_FRAMES
    window = decode(decoder, latents[:, begin - margin : end + margin], start_frame + begin - margin)
    trimmed = window[:, :, margin * HOP_SAMPLES : -margin * HOP_SAMPLES]
    assert np.abs(trimmed - whole[:, :, begin * HOP_SAMPLES : end * HOP_SAMPLES]).max() < 1e-4


def test_an_encoded_window_equals_the_full_encode(decoder: ort.InferenceSession, encoder: ort.InferenceSession) -> None:
    audio = decode(decoder, full_song(80))
    whole = encode(encoder, audio)
    begin, end, margin = 30, 50, ENCODE_MARGIN_FRAMES
    window = encode(encoder, audio[:, :, (begin - margin) * HOP_SAMPLES : (end + margin) * HOP_SAMPLES])
    assert np.abs(window[:, margin:-margin] - whole[:, begin:end]).max() < 1e-4


def test_silence_stays_silence_in_decode_and_encode(
    decoder: ort.InferenceSession, encoder: ort.InferenceSession
) -> None:
    assert not decode(decoder, silence(10)).any()
    assert np.array_equal(encode(encoder, np.zeros((1, 2, 10 * HOP_SAMPLES), np.float32)), silence(10))


def test_the_residue_of_denoising_is_silent(decoder: ort.InferenceSession) -> None:
    noise = 0.05 * np.random.default_rng(0).standard_normal((1, 20, CHANNELS)).astype(np.float32)
    assert np.abs(decode(decoder, silence(20) + noise)).max() < 1e-3


def test_everything_at_once_stays_within_full_scale(decoder: ort.InferenceSession) -> None:
    loud = latents_from_levels(np.ones((1, 20, CHANNELS), np.float32))
    assert np.abs(decode(decoder, loud)).max() <= 1.0
    assert 0.3 < np.abs(decode(decoder, full_song(128))).max() < 0.98


@pytest.mark.parametrize("pitch", [36, 57, 69, 95])
def test_a_pitch_sounds_at_its_frequency(decoder: ort.InferenceSession, pitch: int) -> None:
    levels = np.zeros((1, 50, CHANNELS), np.float32)
    levels[:, :, pitch - FIRST_PITCH] = 1.0
    audio = decode(decoder, latents_from_levels(levels), HOURS_IN)[0].mean(axis=0)[HOP_SAMPLES:]
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio))))
    peak_hz = np.argmax(spectrum) * SAMPLE_RATE_HZ / len(audio)
    assert peak_hz == pytest.approx(440.0 * 2 ** ((pitch - 69) / 12), abs=0.6)


def test_frequencies_are_in_tune_to_a_thousandth() -> None:
    for index in range(60):
        assert pitch_frequency_hz(index) == pytest.approx(440.0 * 2 ** ((FIRST_PITCH + index - 69) / 12), abs=1e-3)


def test_no_partial_aliases() -> None:
    highest_hz = all_partials().cycles.max() * 25.0 / PHASE_STEPS
    assert highest_hz < SAMPLE_RATE_HZ / 2


def test_audio_is_stereo(decoder: ort.InferenceSession) -> None:
    left, right = decode(decoder, full_song(64))[0]
    assert np.abs(left - right).max() > 0.01
    assert np.corrcoef(left, right)[0, 1] > 0.5


@pytest.mark.parametrize("drum", [KICK, SNARE, HAT])
def test_a_hit_rings_and_ends(decoder: ort.InferenceSession, drum: int) -> None:
    levels = np.zeros((1, 12, CHANNELS), np.float32)
    levels[0, 2, drum] = 1.0
    audio = np.abs(decode(decoder, latents_from_levels(levels))[0]).max(axis=0)
    assert not audio[: 2 * HOP_SAMPLES].any()
    assert audio[2 * HOP_SAMPLES : 3 * HOP_SAMPLES].max() > 0.1
    assert audio[(2 + DECODE_MARGIN_FRAMES) * HOP_SAMPLES :].max() < 1e-3


@pytest.mark.parametrize("seed", [3, 8])
def test_encode_finds_the_roll_that_was_decoded(
    decoder: ort.InferenceSession, encoder: ort.InferenceSession, seed: int
) -> None:
    latents = full_song(128, seed)
    found = levels_from_latents(encode(encoder, decode(decoder, latents)))
    levels = levels_from_latents(latents)
    assert np.corrcoef(found.ravel(), levels.ravel())[0, 1] > 0.8
    for drum in (KICK, SNARE, HAT):
        assert np.corrcoef(found[0, :, drum], levels[0, :, drum])[0, 1] > 0.8


def test_encode_finds_notes_of_another_timbre(encoder: ort.InferenceSession) -> None:
    time_s = np.arange(60 * HOP_SAMPLES) / SAMPLE_RATE_HZ
    tone = sum(0.1 / harmonic * np.sin(2 * np.pi * 220.0 * harmonic * time_s) for harmonic in range(1, 5))
    audio = np.tile(np.asarray(tone, np.float32), (1, 2, 1))
    level = levels_from_latents(encode(encoder, audio))[0, 20:40].mean(axis=0)
    assert int(np.argmax(level)) == 57 - FIRST_PITCH


def test_a_batch_has_a_start_frame_per_row(decoder: ort.InferenceSession) -> None:
    latents = full_song(40)
    feed = {"latents": np.concatenate([latents, latents]), "start_frame": np.array([0, 777], np.int64)}
    together = decoder.run(None, feed)[0]
    assert np.abs(together[1:] - decode(decoder, latents, 777)).max() < 1e-5
    assert np.abs(together[0] - together[1]).max() > 1e-3
