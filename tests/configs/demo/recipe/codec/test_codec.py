"""The codec: its decoder, features, partials, drums and voices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
import pytest

from configs.demo.recipe.codec.decoder import DECODE_MARGIN_FRAMES, build_decoder
from configs.demo.recipe.codec.features import (
    BAND_EDGES_HZ,
    BLOCK_SAMPLES,
    DECIMATION,
    KERNEL_PITCHES,
    NUM_BANDS,
    NUM_FEATURES,
    band_sums,
    block_transform,
    decimator,
    feature_octaves,
    kernel_frequencies_hz,
    kernel_positions,
    kernel_windows,
)
from configs.demo.recipe.codec.partials import (
    ENSEMBLE_FRAMES,
    PHASE_STEPS,
    SOUNDS,
    layer_partials,
    pitch_cycles,
)
from configs.demo.recipe.codec.percussion import (
    DRUM_FRAMES,
    KITS,
    STRIKE_FRAMES,
    band_noise,
    drum_hits,
    strikes,
    take_shares,
)
from configs.demo.recipe.codec.voices import BAR_RATIOS, VOICES, amplitudes, voice_of
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.instruments import INSTRUMENTS, REGISTERS, TIMBRE_CHANNELS, timbre_levels
from configs.demo.recipe.latents import (
    CHANNELS,
    FIRST_PITCH,
    FRAME_RATE_HZ,
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


@pytest.mark.parametrize("index", [0, 24, 60, len(KERNEL_PITCHES) - 1])
def test_a_sine_gives_one_on_its_semitone(index: int) -> None:
    seconds, frequencies_hz = kernel_positions(), kernel_frequencies_hz()
    sine = np.cos(2 * np.pi * frequencies_hz[index] * seconds + 0.7)
    kernels = kernel_windows() * np.exp(-2j * np.pi * frequencies_hz[:, None] * seconds)
    magnitudes = np.abs(kernels @ sine)
    assert magnitudes[index] == pytest.approx(1.0, rel=0.02)
    assert magnitudes.argmax() == index
    assert magnitudes[np.abs(np.arange(len(magnitudes)) - index) > 6].max() < 0.03


def test_the_decimator_keeps_the_kernels_and_stops_aliases() -> None:
    gain = np.abs(np.fft.rfft(decimator(), SAMPLE_RATE_HZ))  # one bin per Hz
    assert gain[50] == pytest.approx(1.0, rel=0.01)
    assert gain[int(kernel_frequencies_hz()[-1])] > 0.9
    assert gain[SAMPLE_RATE_HZ // DECIMATION - int(kernel_frequencies_hz()[-1]) :].max() < 0.01


def test_bands_hold_the_energy_of_their_sines() -> None:
    samples = np.arange(BLOCK_SAMPLES) / SAMPLE_RATE_HZ
    centres = np.sqrt(np.array(BAND_EDGES_HZ[1:]) * np.array(BAND_EDGES_HZ[:-1]))
    for band in range(2, NUM_BANDS):
        spectrum = np.sin(2 * np.pi * centres[band] * samples) @ block_transform()
        energies = spectrum**2 @ band_sums()
        assert energies.argmax() == band
        assert energies[band] > 0.9 * energies.sum()


def test_octaves_are_those_of_the_features() -> None:
    octaves = feature_octaves()
    assert len(octaves) == NUM_FEATURES
    assert octaves[12] - octaves[0] == pytest.approx(1.0)


LAYERS = sorted(SOUNDS)


@pytest.mark.parametrize("pitch", [36, 57, 69, 87])
def test_pitches_are_in_equal_temperament(pitch: int) -> None:
    frequency_hz = pitch_cycles(pitch) * FRAME_RATE_HZ / PHASE_STEPS
    assert frequency_hz == pytest.approx(440.0 * 2 ** ((pitch - 69) / 12), abs=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
def test_partials_are_harmonics_or_modes_of_a_bar(layer: str) -> None:
    partials = layer_partials(layer)
    pitch = np.array([pitch_cycles(REGISTERS[layer][0] + int(index)) for index in partials.pitch_index])
    ratios = partials.cycles / pitch
    harmonic = np.abs(ratios - np.round(ratios)) < 1e-6
    bar = np.abs(ratios[:, None] - BAR_RATIOS).min(axis=1) < 1e-4
    assert (harmonic | bar).all()
    assert bar.any() == ("bells" in INSTRUMENTS[layer])


@pytest.mark.parametrize("layer", LAYERS)
def test_no_partial_reaches_half_its_layers_rate(layer: str) -> None:
    partials, sound = layer_partials(layer), SOUNDS[layer]
    highest_hz = partials.cycles.max() * FRAME_RATE_HZ / PHASE_STEPS
    assert highest_hz < sound.highest_hz < 0.45 * sound.hop_samples * FRAME_RATE_HZ


@pytest.mark.parametrize("layer", LAYERS)
def test_every_instrument_plays_every_pitch(layer: str) -> None:
    partials = layer_partials(layer)
    low, high = REGISTERS[layer]
    for gains in partials.soft + partials.loud:
        power = np.bincount(partials.pitch_index, gains**2)
        assert len(power) == high + 1 - low
        assert (power > 1e-4).all()


def test_detuned_copies_repeat_and_beat_slowly() -> None:
    copies = layer_partials("pad").copies
    assert copies.shape[1] == ENSEMBLE_FRAMES
    steps = np.abs(np.diff(copies, axis=1, append=copies[:, :1]))
    largest = 3 * 0.55 * 2 * np.pi * 4.5 / FRAME_RATE_HZ  # three copies of 0.55 at 4.5 Hz at most
    assert steps.max() < largest
    assert np.abs(np.abs(copies).mean() - 0.55 * np.sqrt(3)) < 0.15


def test_bass_is_in_the_middle_and_pads_are_wide() -> None:
    left, right = layer_partials("bass").direct
    np.testing.assert_array_equal(left, right)
    left, right = layer_partials("pad").direct
    assert np.abs(np.angle(left / right)).max() > 0.3


def share_above(sound: FloatArray, frequency_hz: float) -> float:
    power = np.abs(np.fft.rfft(sound.mean(axis=0))) ** 2
    return float(power[np.fft.rfftfreq(sound.shape[1], 1 / SAMPLE_RATE_HZ) > frequency_hz].sum() / power.sum())


def test_hits_start_and_end_in_silence() -> None:
    hits = drum_hits()
    assert hits.shape == (2, len(INSTRUMENTS["drums"]), 3, 2, DRUM_FRAMES * HOP_SAMPLES)
    assert np.abs(hits[..., 0]).max() < 1e-3
    assert np.abs(hits[..., -1]).max() < 1e-6
    peaks = np.abs(hits).max(axis=(3, 4))
    np.testing.assert_allclose(peaks, 2 * [[KITS[name].peaks for name in INSTRUMENTS["drums"]]], rtol=1e-5)


@pytest.mark.parametrize("kit", range(4))
def test_a_kick_is_low_and_a_hat_is_high(kit: int) -> None:
    kick, snare, hat = drum_hits()[0, kit]
    assert share_above(kick, 400.0) < 0.15
    assert share_above(kick, 150.0) > 0.001  # small speakers have something of it
    assert share_above(snare, 1000.0) > 0.3
    assert share_above(hat, 3000.0) > 0.95


def test_hits_ring_in_a_room_wider_than_the_hit() -> None:
    left, right = drum_hits()[0, 0, 1]
    early, late = slice(0, HOP_SAMPLES), slice(3 * HOP_SAMPLES, 7 * HOP_SAMPLES)
    assert np.sqrt(np.mean(left[late] ** 2)) > 1e-4
    assert np.corrcoef(left[late], right[late])[0, 1] < np.corrcoef(left[early], right[early])[0, 1]


def test_kits_differ() -> None:
    hits = drum_hits()[0].reshape(4, -1)
    similarity = np.corrcoef(hits)[~np.eye(4, dtype=bool)]
    assert similarity.max() < 0.9


def test_takes_share_their_tone_and_differ_in_their_noise() -> None:
    first, second = drum_hits()[:, 0, :, 0]
    kick, snare, hat = (np.corrcoef(one, other)[0, 1] for one, other in zip(first, second, strict=True))
    assert kick > 0.9
    assert abs(hat) < snare < 0.9
    np.testing.assert_allclose(take_shares().sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("layer", ["bass", "pad", "arp", "melody"])
def test_strikes_are_short_and_softer_than_notes(layer: str) -> None:
    sounds = strikes(layer)
    assert sounds.shape == (len(INSTRUMENTS[layer]), 2, STRIKE_FRAMES * HOP_SAMPLES)
    assert np.abs(sounds).max() < 0.1
    assert np.abs(sounds[..., -1]).max() < 1e-6


def test_noise_has_its_band() -> None:
    noise = band_noise(np.random.default_rng(0), 48_000, 1000.0, 2000.0)
    spectrum = np.abs(np.fft.rfft(noise[0])) ** 2
    assert spectrum[800:2600].sum() > 0.98 * spectrum.sum()
    assert np.abs(noise).max() == pytest.approx(1.0)


HARMONICS = np.arange(1.0, 17.0)


def centroid_hz(instrument: str, level: float, pitch_hz: float = 220.0) -> float:
    frequencies_hz = HARMONICS * pitch_hz
    soft, loud = amplitudes(VOICES[instrument], 1.0, HARMONICS, frequencies_hz)
    power = (soft + level * loud) ** 2
    return float((power * frequencies_hz).sum() / power.sum())


def test_every_instrument_has_a_voice_and_each_voice_an_instrument() -> None:
    pairs = [(layer, name) for layer, names in INSTRUMENTS.items() if layer != "drums" for name in names]
    assert {name for _, name in pairs} == set(VOICES)
    assert all(voice_of(layer, name) for layer, name in pairs)


def test_bars_have_the_modes_of_a_free_bar() -> None:
    # Euler and Bernoulli: cos(x) cosh(x) = 1, frequency as x squared.
    x = np.linspace(4.0, 15.0, 1_100_001)
    values = np.cos(x) - 1.0 / np.cosh(x)
    roots = x[np.flatnonzero(np.diff(np.sign(values)))]
    np.testing.assert_allclose(roots[1:4] ** 2 / roots[0] ** 2, BAR_RATIOS, atol=1e-3)


@pytest.mark.parametrize("instrument", sorted(VOICES))
def test_voices_are_equally_loud(instrument: str) -> None:
    pitch_hz = 440.0
    ratios = np.array([*HARMONICS, *BAR_RATIOS])
    soft, loud = amplitudes(VOICES[instrument], 0.5, ratios, ratios * pitch_hz)
    assert (soft >= 0).all()
    assert (loud >= 0).all()
    amplitude = np.sqrt(np.sum((soft + loud) ** 2))
    assert 0.3 < amplitude < 0.6


@pytest.mark.parametrize("instrument", ["piano", "guitar", "electric bass", "trumpet", "harp"])
def test_soft_notes_are_darker(instrument: str) -> None:
    assert centroid_hz(instrument, 0.2) < 0.97 * centroid_hz(instrument, 1.0)


def test_an_organ_is_as_bright_at_any_level() -> None:
    assert centroid_hz("organ", 0.2) == pytest.approx(centroid_hz("organ", 1.0), rel=0.01)


def test_a_whistle_is_darker_than_a_flute_and_a_flute_than_a_violin() -> None:
    whistle, flute, violin = (centroid_hz(name, 1.0, 880.0) for name in ("whistle", "flute", "violin"))
    assert whistle < flute < violin


def test_a_string_plucked_at_a_fifth_lacks_its_fifth_harmonic() -> None:
    soft, loud = amplitudes(VOICES["guitar"], 1.0, HARMONICS, HARMONICS * 200.0)
    full = soft + loud
    assert full[4] < 0.3 * min(full[3], full[5])
