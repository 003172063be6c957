"""Instruments' level curves: pianos decay, strings swell, organs hold, bells ring on."""

import numpy as np

from configs.demo.recipe.corpus.envelopes import CURVES, ENVELOPE_INDEX, ENVELOPES, RELEASE_FRAMES, RELEASES
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS
from configs.demo.recipe.latents import FloatArray


def curve(name: str) -> FloatArray:
    found: FloatArray = CURVES[ENVELOPE_INDEX[name]]
    return found


def test_every_pitched_instrument_has_an_envelope() -> None:
    names = {name for layer in LAYERS if layer != "drums" for name in INSTRUMENTS[layer]}
    assert names | {"kick", "snare", "hat"} == set(ENVELOPES)


def test_curves_are_levels() -> None:
    assert CURVES.min() >= 0.0
    assert CURVES.max() <= 1.0
    assert RELEASES.shape == (len(ENVELOPES), RELEASE_FRAMES + 1)
    assert np.all(RELEASES[:, -1] == 1.0)


def test_instruments_differ_as_they_do() -> None:
    assert curve("piano")[50] < 0.3 < curve("organ")[50]
    assert np.all(np.diff(curve("strings")[:4]) > 0)
    assert curve("marimba")[8] < 0.05
    assert curve("flute").argmax() > curve("harp").argmax() == 0
    assert ENVELOPES["bells"].ring_frames > ENVELOPES["harp"].ring_frames > ENVELOPES["organ"].ring_frames


def test_a_tremolo_has_no_steps_that_look_like_onsets() -> None:
    assert np.diff(curve("electric piano")[3:]).max() < 0.05
