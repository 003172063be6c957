"""An ear for instruments, trained and tried on the corpus by way of the codec."""

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest

from configs.demo.recipe.codec.decoder import build_decoder
from configs.demo.recipe.evaluation.instruments import CLIP_FRAMES, solo, train_ear
from configs.demo.recipe.instruments import INSTRUMENTS, channels_of
from configs.demo.recipe.latents import SILENCE, FloatArray


@pytest.fixture(scope="module")
def decode() -> Callable[[FloatArray], FloatArray]:
    session = ort.InferenceSession(build_decoder().SerializeToString(), providers=["CPUExecutionProvider"])

    def run(latents: FloatArray) -> FloatArray:
        feed = {"latents": latents[None], "start_frame": np.zeros(1, np.int64)}
        return np.asarray(session.run(None, feed)[0][0].T, np.float32)

    return run


def test_a_solo_has_one_layer() -> None:
    latents = solo("melody", "flute", [1, 2])
    others = np.setdiff1d(np.arange(64), channels_of("melody"))
    assert latents.shape == (CLIP_FRAMES, 64)
    assert np.all(latents[:, others] == np.float32(SILENCE))
    assert (latents > 1.0).any()


def test_it_tells_basses_apart(decode: Callable[[FloatArray], FloatArray]) -> None:
    ear = train_ear(decode, layers=("bass",), songs_per_instrument=4)
    names = INSTRUMENTS["bass"]
    heard = [ear.instrument("bass", decode(solo("bass", name, [3, index]))) for index, name in enumerate(names)]
    assert sum(one == name for one, name in zip(heard, names, strict=True)) >= 3
