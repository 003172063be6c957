"""The model: clocks that tick with the corpus, tokens that say the tempo."""

import numpy as np
import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from engine_build.demo_model.corpus.songs import TEMPOS_BPM, nearest_frame  # noqa: E402
from engine_build.demo_model.corpus.vocabulary import ALWAYS_ID, CONCEPT_IDS  # noqa: E402
from engine_build.demo_model.latents import CHANNELS  # noqa: E402
from engine_build.demo_model.model import DemoModel, new_model, num_parameters  # noqa: E402

FRAMES = 64


@pytest.fixture(scope="module")
def model() -> DemoModel:
    return new_model(seed=0).eval()


def velocity(model: DemoModel, tokens: list[int], known_frames: int = 0) -> np.ndarray:
    generator = torch.Generator().manual_seed(0)
    context = torch.ones(1, FRAMES, 2 * CHANNELS)
    context[:, :known_frames, CHANNELS:] = 0.0
    latents = torch.randn(1, FRAMES, CHANNELS, generator=generator)
    ids, mask = torch.tensor([tokens]), torch.ones(1, len(tokens))
    with torch.no_grad():
        return model(latents, torch.tensor([0.8]), ids, mask, context).numpy()


def test_it_has_the_size_of_the_design(model: DemoModel) -> None:
    assert num_parameters(model) == pytest.approx(2.8e6, rel=0.02)


def test_a_seed_gives_one_model() -> None:
    first, again = (new_model(seed=4).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("index", range(len(TEMPOS_BPM)))
def test_pulses_are_where_the_corpus_starts_notes(model: DemoModel, index: int) -> None:
    pulses = model.decoder._pulses(256)[index].numpy()
    frames_per_beat = 1500 / TEMPOS_BPM[index]
    for column, beats in enumerate((4.0, 1.0, 0.5, 0.25)):
        starts = {nearest_frame(count * beats * frames_per_beat) for count in range(256)}
        assert set(np.flatnonzero(pulses[:, column])) == {start for start in starts if start < 256}


def test_the_tempo_token_moves_the_clocks(model: DemoModel) -> None:
    slow, fast = (velocity(model, [ALWAYS_ID, CONCEPT_IDS[f"bpm:{bpm}"]]) for bpm in (70, 120))
    assert np.abs(slow - fast).max() > 1e-4


def test_pulses_are_for_pieces_from_the_top(model: DemoModel) -> None:
    captured = []
    handle = model.decoder.masked.register_forward_pre_hook(lambda _, args: captured.append(args[4]))
    try:
        for known_frames in (0, 8):
            velocity(model, [ALWAYS_ID, CONCEPT_IDS["bpm:100"]], known_frames)
    finally:
        handle.remove()
    assert captured[0][0, 0, -1] == 1.0
    assert not captured[1][0, :, -4:].any()
