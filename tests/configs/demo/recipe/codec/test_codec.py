"""The decode graph: windows that join, also hours into a stream; tuning, instruments, stereo, vibrato, drums."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
import pytest

from configs.demo.recipe.codec.decoder import DECODE_MARGIN_FRAMES, build_decoder
from configs.demo.recipe.codec.partials import PHASE_STEPS
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.instruments import INSTRUMENTS, TIMBRE_CHANNELS, timbre_levels
from configs.demo.recipe.latents import (
    CHANNELS,
    FIRST_PITCH,
    HAT,
    HOP_SAMPLES,
    KICK,
    SAMPLE_RATE_HZ,
    SNARE,
    FloatArray,
    latents_from_levels,
)

HOURS_IN = 10**6 * 25
DEFAULTS = {layer: names[0] for layer, names in INSTRUMENTS.items()}


@pytest.fixture(scope="module")
def decoder() -> ort.InferenceSession:
    return ort.InferenceSession(build_decoder().SerializeToString(), providers=["CPUExecutionProvider"])


def decode(session: ort.InferenceSession, levels: FloatArray, start_frame: int = 0) -> FloatArray:
    """Audio `[2, N]` of levels `[T, C]`."""
    feed = {"latents": latents_from_levels(levels)[None], "start_frame": np.array([start_frame], np.int64)}
    audio: FloatArray = session.run(None, feed)[0][0]
    return audio


def silence(frames: int, instruments: Mapping[str, str] = DEFAULTS) -> FloatArray:
    """Levels `[T, C]` without notes."""
    levels = np.zeros((frames, CHANNELS), np.float32)
    for layer, name in instruments.items():
        levels[:, TIMBRE_CHANNELS[layer]] = timbre_levels(layer, name)
    return levels


def note(layer: str, instrument: str, pitches: Sequence[int], frames: int = 40) -> FloatArray:
    """Levels of notes from frame 2 to 30, at level 1."""
    levels = silence(frames, DEFAULTS | {layer: instrument})
    levels[2:30, [pitch - FIRST_PITCH for pitch in pitches]] = 1.0
    return levels


def full_song(frames: int, seed: int = 3) -> FloatArray:
    return render(draw_song(np.random.default_rng(seed)), frames)


def partial_levels_db(audio: FloatArray, frequencies_hz: Sequence[float]) -> FloatArray:
    """Levels of frequencies in the mono mix, relative to the strongest."""
    mono = audio.mean(axis=0) * np.hanning(audio.shape[1])
    seconds = np.arange(len(mono)) / SAMPLE_RATE_HZ
    values = [abs(np.exp(-2j * np.pi * hz * seconds) @ mono) for hz in frequencies_hz]
    return np.asarray(20 * np.log10(np.array(values) / max(values) + 1e-9), np.float32)


@pytest.mark.parametrize("start_frame", [0, 1, PHASE_STEPS - 40, HOURS_IN])
def test_a_decoded_window_equals_the_full_decode(decoder: ort.InferenceSession, start_frame: int) -> None:
    levels = full_song(96)
    whole = decode(decoder, levels, start_frame)
    begin, end, margin = 30, 61, DECODE_MARGIN_FRAMES
    window = decode(decoder, levels[begin - margin : end + margin], start_frame + begin - margin)
    trimmed = window[:, margin * HOP_SAMPLES : -margin * HOP_SAMPLES]
    assert np.abs(trimmed - whole[:, begin * HOP_SAMPLES : end * HOP_SAMPLES]).max() < 1e-4


def test_a_batch_has_a_start_frame_per_row(decoder: ort.InferenceSession) -> None:
    latents = latents_from_levels(np.stack([full_song(30), full_song(30, seed=4)]))
    together = decoder.run(None, {"latents": latents, "start_frame": np.array([5, 777], np.int64)})[0]
    for row, start in enumerate((5, 777)):
        alone = decoder.run(None, {"latents": latents[row : row + 1], "start_frame": np.array([start], np.int64)})[0]
        assert np.abs(together[row] - alone[0]).max() < 1e-5


def test_silence_stays_silence(decoder: ort.InferenceSession) -> None:
    assert not decode(decoder, np.zeros((10, CHANNELS), np.float32)).any()
    assert not decode(decoder, silence(10)).any()


def test_the_residue_of_denoising_is_silent(decoder: ort.InferenceSession) -> None:
    noise = 0.05 / 6 * np.random.default_rng(0).standard_normal((20, CHANNELS)).astype(np.float32)
    assert np.abs(decode(decoder, silence(20) + noise)).max() < 1e-3


def test_everything_at_once_stays_within_full_scale(decoder: ort.InferenceSession) -> None:
    assert np.abs(decode(decoder, np.ones((20, CHANNELS), np.float32))).max() <= 1.0
    assert 0.3 < np.abs(decode(decoder, full_song(128))).max() < 0.98


@pytest.mark.parametrize(("layer", "pitch"), [("bass", 36), ("pad", 57), ("arp", 69), ("melody", 87)])
def test_a_pitch_sounds_at_its_frequency(decoder: ort.InferenceSession, layer: str, pitch: int) -> None:
    instrument = "sub bass" if layer == "bass" else "piano"
    audio = decode(decoder, note(layer, instrument, [pitch]), HOURS_IN)[:, 4 * HOP_SAMPLES : 29 * HOP_SAMPLES]
    spectrum = np.abs(np.fft.rfft(audio.mean(axis=0) * np.hanning(audio.shape[1]), 8 * audio.shape[1]))
    peak_hz = np.argmax(spectrum) * SAMPLE_RATE_HZ / (8 * audio.shape[1])
    assert peak_hz == pytest.approx(440.0 * 2 ** ((pitch - 69) / 12), abs=0.3)


def test_instruments_have_their_partials(decoder: ort.InferenceSession) -> None:
    pitch_hz = 440.0
    frequencies_hz = [pitch_hz * ratio for ratio in (1, 2, 2.756, 4, 5.404)]
    bells, marimba, organ = (
        partial_levels_db(
            decode(decoder, note("arp", name, [69]))[:, 4 * HOP_SAMPLES : 29 * HOP_SAMPLES], frequencies_hz
        )
        for name in ("bells", "marimba", "synth")
    )
    assert (bells[[2, 4]] > -20).all()  # a bar's modes, which are no harmonics
    assert (organ[[2, 4]] < -55).all()
    assert marimba[3] > marimba[1] + 10  # a bar tuned to 1 : 4
    assert organ[1] > -20


def test_an_instrument_is_told_through_noise(decoder: ort.InferenceSession) -> None:
    clean = note("melody", "violin", [79])
    noisy = clean.copy()
    channels = list(TIMBRE_CHANNELS["melody"])
    noisy[:, channels] += np.random.default_rng(1).uniform(-0.12, 0.12, noisy[:, channels].shape).astype(np.float32)
    span = slice(6 * HOP_SAMPLES, 28 * HOP_SAMPLES)
    expected, found = (decode(decoder, levels)[:, span] for levels in (clean, noisy))
    assert np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)) < 0.15


def test_a_violin_swings_in_pitch_and_a_piano_does_not(decoder: ort.InferenceSession) -> None:
    pitch_hz = 440.0 * 2 ** ((79 - 69) / 12)
    assert 12.0 < pitch_swing_cents(decode(decoder, note("melody", "violin", [79], 60)), pitch_hz) < 24.0
    assert pitch_swing_cents(decode(decoder, note("melody", "piano", [79], 60)), pitch_hz) < 3.0


def pitch_swing_cents(audio: FloatArray, pitch_hz: float) -> float:
    """Half the range of the fundamental's frequency, by the phase of its baseband."""
    mono = audio.mean(axis=0)[6 * HOP_SAMPLES : 28 * HOP_SAMPLES]
    seconds = np.arange(len(mono)) / SAMPLE_RATE_HZ
    window = np.hanning(1600) / np.hanning(1600).sum()
    baseband = np.convolve(mono * np.exp(-2j * np.pi * pitch_hz * seconds), window, "valid")[::200]
    offsets_hz = np.diff(np.unwrap(np.angle(baseband))) * SAMPLE_RATE_HZ / 200 / (2 * np.pi)
    low, high = np.percentile(offsets_hz, [5, 95])
    return float(1200 / np.log(2) * (high - low) / 2 / pitch_hz)


def test_attacks_are_fast_or_slow(decoder: ort.InferenceSession) -> None:
    guitar, strings = (decode(decoder, note("pad", name, [57]))[:, 2 * HOP_SAMPLES :] for name in ("guitar", "strings"))
    early, full = slice(int(0.006 * 48_000), int(0.016 * 48_000)), slice(HOP_SAMPLES, 2 * HOP_SAMPLES)
    assert np.abs(guitar[:, early]).max() > 0.6 * np.abs(guitar[:, full]).max()
    assert np.abs(strings[:, early]).max() < 0.5 * np.abs(strings[:, full]).max()


def test_a_note_leaves_a_reverb_that_ends(decoder: ort.InferenceSession) -> None:
    audio = decode(decoder, note("pad", "piano", [57, 60], 44))
    rms = np.sqrt(np.mean(audio.reshape(2, 44, HOP_SAMPLES) ** 2, axis=(0, 2)))
    assert rms[31] > 0.05 * rms[28]
    assert (np.diff(rms[30:38]) <= 0).all()
    assert rms[39] == 0.0


def test_there_are_no_steps_between_frames(decoder: ort.InferenceSession) -> None:
    audio = decode(decoder, note("pad", "strings", [48, 55, 60]))[0]
    jumps = np.abs(np.diff(audio, 2))
    borders = jumps[HOP_SAMPLES - 3 :: HOP_SAMPLES][5:25].max()
    assert borders <= 1.2 * jumps[5 * HOP_SAMPLES : 25 * HOP_SAMPLES].max()
    assert abs(audio.mean()) < 1e-3


def test_the_doubled_rate_has_no_images(decoder: ort.InferenceSession) -> None:
    audio = decode(decoder, note("arp", "harp", [72]))[0, 5 * HOP_SAMPLES : 28 * HOP_SAMPLES]
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio))))
    images = spectrum[np.fft.rfftfreq(len(audio), 1 / SAMPLE_RATE_HZ) > 13_000]
    assert images.max() < 1e-3 * spectrum.max()


def test_audio_is_stereo(decoder: ort.InferenceSession) -> None:
    left, right = decode(decoder, full_song(64))
    assert np.abs(left - right).max() > 0.01
    assert 0.5 < np.corrcoef(left, right)[0, 1] < 0.99


@pytest.mark.parametrize("drum", [KICK, SNARE, HAT])
def test_a_hit_rings_and_ends(decoder: ort.InferenceSession, drum: int) -> None:
    levels = silence(14)
    levels[2, drum] = 1.0
    audio = np.abs(decode(decoder, levels)).max(axis=0)
    assert not audio[: 2 * HOP_SAMPLES].any()
    assert audio[2 * HOP_SAMPLES : 3 * HOP_SAMPLES].max() > 0.1
    assert audio[(2 + DECODE_MARGIN_FRAMES) * HOP_SAMPLES :].max() < 1e-3


def test_the_kit_is_chosen_by_its_channel(decoder: ort.InferenceSession) -> None:
    audio = []
    for kit in INSTRUMENTS["drums"]:
        levels = silence(12, {"drums": kit})
        levels[1, SNARE] = 1.0
        audio.append(decode(decoder, levels)[0])
    similarity = np.corrcoef(audio)[~np.eye(4, dtype=bool)]
    assert similarity.max() < 0.9
