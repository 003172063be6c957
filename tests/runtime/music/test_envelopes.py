"""Envelopes of instruments: their curves, and what generated notes become, however their latents arrive."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.config.notes import EnvelopeSpec, InstrumentSpec, NoteLayerSpec, NotesSpec
from runtime.music.envelopes import HELD, PLAIN, RUNG_OUT, Breath, Marks, envelope_of, instruments_of, level_curve
from runtime.music.tracker import NoteTracker

PLUCKED = EnvelopeSpec(attack=(1.0, 0.8), decay=0.92, release=(0.35,))
BOWED = EnvelopeSpec(attack=(0.5, 0.75, 0.9), decay=1.0, sustain=1.0, release=(0.5, 0.25))
KEYS = tuple(range(36, 48))
SPEC = NotesSpec(
    scale=6.0,
    on=0.12,
    off=0.06,
    layers=(
        NoteLayerSpec(
            name="bass",
            channels=tuple(range(12)),
            keys=KEYS,
            timbre_channels=(12, 13),
            instruments=(
                InstrumentSpec(name="upright bass", levels=(0.3, 0.3), program=32, envelope=PLUCKED),
                InstrumentSpec(name="bowed bass", levels=(1.0, 0.3), program=43, envelope=BOWED),
            ),
        ),
        NoteLayerSpec(name="drums", channels=(14, 15), keys=(36, 38), is_percussion=True),
    ),
)
SILENCE = np.linspace(-0.5, 0.5, 17).astype(np.float32)
SECOND = 25
# The codec starts the noise of an attack at such a rise.
HAMMER = 0.05
Levels = NDArray[np.float32]


def latents_of(levels: Levels, instrument: int = 0) -> Levels:
    """Latents `[T, 17]` of the bass' levels `[T, n]`, of as many keys."""
    made = np.zeros((len(levels), 17), np.float32)
    made[:, : levels.shape[1]] = levels
    made[:, 12:14] = SPEC.layers[0].instruments[instrument].levels
    return (SILENCE + 6 * made).astype(np.float32)


def levels_of(latents: Levels) -> Levels:
    return ((latents - SILENCE) / 6)[:, :12]


def held(num_frames: int, level: float = 0.8, start: int = 3) -> Levels:
    levels = np.zeros((num_frames, 1), np.float32)
    levels[start:-3] = level
    return levels


def played(seed: int, num_frames: int = 200) -> Levels:
    """Levels of notes that hold, shake and are struck again, as plans without envelopes have them."""
    rng = np.random.default_rng(seed)
    levels = np.abs(rng.normal(0.0, 0.01, (num_frames, 12))).astype(np.float32)
    for key in range(12):
        frame = int(rng.integers(0, 20))
        while frame < num_frames:
            length = int(rng.integers(3, 70))
            shaking = 1.0 + 0.1 * rng.standard_normal(length)
            levels[frame : frame + length, key] = (rng.uniform(0.2, 0.9) * shaking)[: num_frames - frame]
            frame += length + int(rng.integers(0, 12))
    return levels


def every(frames: int, num_frames: int) -> NDArray[np.bool_]:
    return np.arange(num_frames) % frames == 0


def test_a_curve_has_its_attack_and_its_end() -> None:
    assert level_curve(PLUCKED, 5).tolist() == pytest.approx(
        [1.0, 0.8, 0.8 * 0.92, 0.8 * 0.92**2, 0.8 * 0.92**3 * 0.35]
    )
    assert level_curve(BOWED, 6).tolist() == pytest.approx([0.5, 0.75, 0.9, 0.9, 0.9 * 0.5, 0.9 * 0.25])
    assert level_curve(BOWED, 1).tolist() == [0.5]
    assert level_curve(HELD, 4).tolist() == pytest.approx([1.0, 1.0, 1.0, 0.35])
    assert len(level_curve(PLAIN, 0)) == 0


@pytest.mark.parametrize("instrument", [0, 1])
def test_the_nearest_instrument_plays(instrument: int) -> None:
    layer, latents = SPEC.layers[0], latents_of(held(20), instrument)
    latents[:, 12:14] += np.random.default_rng(1).normal(0.0, 0.6, (20, 2)).astype(np.float32)
    assert instruments_of(layer, np.array([layer.instruments[instrument].levels]))[0] == instrument
    assert envelope_of(SPEC, layer, latents, SILENCE) == (PLUCKED, BOWED)[instrument]
    assert envelope_of(SPEC, SPEC.layers[1], latents, SILENCE) is None
    assert envelope_of(SPEC, layer, latents[:0], SILENCE) is None


@pytest.mark.parametrize(("instrument", "after"), [(0, 0.8 * 0.92**24), (1, 1.0)])
def test_a_held_note_falls_as_its_instrument_does(instrument: int, after: float) -> None:
    raw = latents_of(held(60), instrument)
    made = levels_of(Breath(SPEC, SILENCE).shaped(raw))
    assert made[3 + SECOND, 0] / made[3, 0] == pytest.approx(after, rel=1e-4)
    assert made[3, 0] == pytest.approx(0.8)
    assert np.diff(made[3:, 0]).max() < 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_the_result_does_not_depend_on_where_latents_are_cut(seed: int) -> None:
    rng, raw = np.random.default_rng(seed), latents_of(played(seed), seed % 2)
    given, fixed = rng.random(raw.shape) < 0.1, rng.random((len(raw), 1)) < 0.1
    marks = Marks([None, every(11, len(raw))][seed // 2 % 2], given, np.repeat(fixed, raw.shape[1], axis=1))
    whole, cut = Breath(SPEC, SILENCE).shaped(raw, marks), Breath(SPEC, SILENCE)
    edges = sorted({0, len(raw), *rng.integers(0, len(raw), 12).tolist()})
    parts = [cut.shaped(raw[a:b], marks.part(a, b)) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(whole[fixed[:, 0]], raw[fixed[:, 0]])


@pytest.mark.parametrize("seed", range(6))
def test_what_has_its_envelopes_stays_as_it_is(seed: int) -> None:
    raw, marks = latents_of(played(seed), seed % 2), Marks(every(12, 200))
    once = Breath(SPEC, SILENCE).shaped(raw, marks)
    assert np.abs(once - raw).max() > 0.5
    np.testing.assert_allclose(Breath(SPEC, SILENCE).shaped(once, marks), once, atol=1e-5)
    assert (once <= raw).all()
    np.testing.assert_array_equal(once[:, 12:], raw[:, 12:])  # timbre, drums, what is no note


@pytest.mark.parametrize("seed", range(4))
def test_notes_begin_and_end_where_they_did_and_are_as_loud(seed: int) -> None:
    rng, levels = np.random.default_rng(seed), np.zeros((240, 12), np.float32)
    for key in range(12):
        for start in range(int(rng.integers(2, 30)), 200, 60):
            levels[start : start + int(rng.integers(4, 50)), key] = rng.uniform(0.2, 1.0)
    raw = latents_of(levels)
    made = Breath(SPEC, SILENCE).shaped(raw, Marks(np.zeros(240, bool)))
    found = [NoteTracker(SPEC, SILENCE).track(each) for each in (raw, made)]
    assert found[0] == found[1]
    assert len(found[0]) > 20


def test_silence_stays_silent() -> None:
    quiet = latents_of(np.random.default_rng(0).uniform(0.0, 0.11, (80, 12)).astype(np.float32))
    np.testing.assert_array_equal(Breath(SPEC, SILENCE).shaped(quiet, Marks(every(3, 80))), quiet)
    assert len(Breath(SPEC, SILENCE).shaped(quiet[:0])) == 0


def test_a_note_that_has_rung_out_is_struck_again_on_a_beat() -> None:
    raw, beats = latents_of(held(300)), every(14, 300)
    made = levels_of(Breath(SPEC, SILENCE).shaped(raw, Marks(beats)))[:, 0]
    strikes = np.flatnonzero(np.diff(made) > HAMMER)[1:] + 1
    assert len(strikes) >= 8
    assert beats[strikes].all()
    assert made[strikes] == pytest.approx(0.8)
    ringing = int(np.argmax(level_curve(PLUCKED, 100) < RUNG_OUT))
    assert np.diff(strikes).max() <= ringing + 14, "no longer than a beat"
    bowed = levels_of(Breath(SPEC, SILENCE).shaped(latents_of(held(300), 1), Marks(beats)))[:, 0]
    assert np.ptp(bowed[3:-3]) < 1e-6, "what is held does not ring out"


def test_a_note_that_a_caller_gave_rings_out() -> None:
    raw = latents_of(held(120))
    made = levels_of(Breath(SPEC, SILENCE).shaped(raw, Marks(every(14, 120), np.ones(raw.shape, bool))))[:, 0]
    assert np.flatnonzero(np.diff(made) > 0.01).tolist() == [2]
    assert SPEC.off < made[100] < 1.1 * SPEC.off, "it is held as long as it was"


def test_without_beats_it_is_struck_with_others() -> None:
    levels = np.concatenate((held(120), np.zeros((120, 1), np.float32)), axis=1)
    levels[70:75, 1] = 0.7
    made = levels_of(Breath(SPEC, SILENCE).shaped(latents_of(levels)))[:, 0]
    assert (np.flatnonzero(np.diff(made) > HAMMER) + 1).tolist() == [3, 70]


@pytest.mark.parametrize("instrument", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_what_shakes_in_a_held_note_is_no_stroke(instrument: int, seed: int) -> None:
    levels = held(200)
    drift = np.cumsum(np.random.default_rng(seed).normal(0.0, 0.05, 194))
    levels[3:-3, 0] *= np.clip(1.0 + drift, 0.75, 1.25)
    assert np.diff(levels[12:-3, 0]).max() > HAMMER
    made = levels_of(Breath(SPEC, SILENCE).shaped(latents_of(levels, instrument)))[:, 0]
    assert np.diff(made[12:]).max() < HAMMER


@pytest.mark.parametrize("cut", [4, 9, 27, 40, 77])
def test_it_goes_on_behind_what_was_heard(cut: int) -> None:
    """A session knows what it played, not what was generated: a held note is no new one."""
    raw, marks = latents_of(held(100)), Marks(every(30, 100))
    whole, after = Breath(SPEC, SILENCE).shaped(raw, marks), Breath(SPEC, SILENCE)
    after.hear(whole[:cut])
    np.testing.assert_allclose(after.shaped(raw[cut:], marks.part(cut)), whole[cut:], atol=1e-4)


def test_what_was_held_for_long_keeps_its_level() -> None:
    layer = SPEC.layers[0]
    steady = EnvelopeSpec(attack=(1.0,), decay=0.95, sustain=0.6, release=(0.35,))
    organ = layer.instruments[0].model_copy(update={"envelope": steady})
    spec = SPEC.model_copy(update={"layers": (layer.model_copy(update={"instruments": (organ,)}),)})
    raw, made = latents_of(held(600)), []
    for start in range(0, 600, 60):
        breath = Breath(spec, SILENCE)
        if made:
            breath.hear(np.concatenate(made)[-120:])
        made.append(breath.shaped(raw[start : start + 60]))
    assert levels_of(np.concatenate(made))[590, 0] == pytest.approx(0.48, rel=0.06)


@pytest.mark.parametrize(("instrument", "first", "last"), [(0, 0.8, 0.8 * 0.8 * 0.92**98), (1, 0.8, 0.8)])
def test_what_a_loop_holds_over_its_seam(instrument: int, first: float, last: float) -> None:
    """What rings out is struck again on the first beat, what sustains is not; every pass is like the one before."""
    levels = np.full((100, 1), 0.8, np.float32)
    raw, marks = latents_of(levels, instrument), Marks(every(1000, 100))
    breath, passes = Breath(SPEC, SILENCE), []
    for _ in range(3):
        passes.append(levels_of(breath.shaped(raw, marks))[:, 0])
        breath.repeat()
    assert passes[1][[0, 99]] == pytest.approx([first, max(last, 1.02 * SPEC.off)], abs=1e-4)
    np.testing.assert_allclose(passes[2], passes[1], atol=1e-5)


def test_what_has_died_away_over_the_seam_of_a_loop() -> None:
    """An envelope that ends in nothing has no level to hold: it is struck again, like every one that rings out."""
    layer = SPEC.layers[0]
    gone = EnvelopeSpec(attack=(1.0,), decay=0.5, release=(0.35,))
    short = layer.instruments[0].model_copy(update={"envelope": gone})
    spec = SPEC.model_copy(update={"layers": (layer.model_copy(update={"instruments": (short,)}),)})
    raw, breath = latents_of(np.full((100, 1), 0.8, np.float32)), Breath(spec, SILENCE)
    for _ in range(2):
        made = levels_of(breath.shaped(raw, Marks(every(1000, 100))))[:, 0]
        assert made[0] == pytest.approx(0.8, abs=1e-4)
        breath.repeat()
