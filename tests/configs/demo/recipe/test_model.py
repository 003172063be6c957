"""The model: clocks that tick with the corpus, tokens that say the tempo, a timbre encoder that hears no notes."""

import numpy as np
import numpy.typing as npt
import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from configs.demo.recipe.corpus.rendering import nearest_frames  # noqa: E402
from configs.demo.recipe.corpus.vocabulary import ALWAYS_ID, FIRST_TEMPO_ID, TOKEN_IDS, token_ids  # noqa: E402
from configs.demo.recipe.latents import CHANNELS, SILENCE  # noqa: E402
from configs.demo.recipe.model import MIN_TIME, NUM_FIXED, NUM_SPARE, DemoModel, new_model, num_parameters  # noqa: E402

FRAMES = 64


@pytest.fixture(scope="module")
def model() -> DemoModel:
    return new_model(seed=0).eval()


def clean(
    model: DemoModel, names: list[str], known_frames: int = 0, hint: float = SILENCE, time: float = 0.8
) -> npt.NDArray[np.float32]:
    """The estimate for a piece with known frames of 0, or with hints of one level."""
    context = torch.ones(1, FRAMES, 2 * CHANNELS)
    context[:, :, :CHANNELS] = hint
    context[:, :known_frames, CHANNELS:] = 0.0
    latents = torch.randn(1, FRAMES, CHANNELS, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[ALWAYS_ID, *token_ids(names)]])
    reference = torch.full((1, 3, CHANNELS), SILENCE)
    with torch.no_grad():
        found = model.clean(latents, torch.tensor([time]), ids, torch.ones(ids.shape), reference, context)
    return np.asarray(found.numpy())


def test_it_has_the_size_of_the_design(model: DemoModel) -> None:
    assert num_parameters(model) == pytest.approx(4.7e6, rel=0.02)


def test_a_seed_gives_one_model() -> None:
    first, again = (new_model(seed=4).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    ("bpm", "meter", "beats_per_bar", "parts"), [(97, "4/4", 4, 2), (60, "3/4", 3, 2), (110, "6/8", 2, 3)]
)
def test_pulses_are_where_the_corpus_starts_notes(
    model: DemoModel, bpm: int, meter: str, beats_per_bar: int, parts: int
) -> None:
    rhythm = model.fixed_columns[token_ids([f"bpm:{bpm}", f"meter:{meter}"]), :3].sum(dim=0)[None]
    pulses = model.decoder.pulses(rhythm, torch.arange(256.0)[None, :, None])[0].numpy()
    for column, beats in enumerate((beats_per_bar, 1.0, 1 / parts, 1 / (2 * parts))):
        starts = nearest_frames(np.arange(256) * beats * 1500 / bpm)
        assert set(np.flatnonzero(pulses[:, column])) == {start for start in starts if start < 256}


def test_waves_have_the_period_of_the_bar(model: DemoModel) -> None:
    rhythm = model.fixed_columns[token_ids(["bpm:100", "meter:3/4"]), :3].sum(dim=0)[None]
    waves = model.decoder.waves(rhythm, torch.arange(200.0)[None, :, None])[0].numpy()
    half = waves.shape[1] // 2
    assert waves[15, 1] == pytest.approx(0.0, abs=1e-5)  # a beat has 15 frames, a bar 45
    assert waves[45, half + 7] == pytest.approx(1.0, abs=1e-5)


def test_the_tempo_and_the_meter_move_the_clocks(model: DemoModel) -> None:
    slow, fast = (clean(model, [f"bpm:{bpm}", "meter:4/4"]) for bpm in (70, 71))
    assert np.abs(slow - fast).max() > 1e-4
    assert np.abs(slow - clean(model, ["bpm:70", "meter:3/4"])).max() > 1e-4


def test_the_scale_stands_in_every_frame(model: DemoModel) -> None:
    captured = []
    handle = model.decoder.masked.register_forward_pre_hook(lambda _, args: captured.append(args[4]))
    try:
        clean(model, ["bpm:100", "meter:4/4", "key:c", "mode:major"])
        clean(model, ["bpm:100", "meter:4/4", "key:c"])
    finally:
        handle.remove()
    first = 2 * CHANNELS - NUM_SPARE
    white_keys = [1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1]
    assert torch.all(captured[0][0, :, first : first + 12] == torch.tensor(white_keys))
    assert not captured[1][0, :, first : first + 12].any()


def test_every_tempo_has_a_token_between_those_of_its_anchors(model: DemoModel) -> None:
    table = model.token_table()[:, NUM_FIXED:]
    at = FIRST_TEMPO_ID + np.array([0, 5, 15])
    first, between, last = (table[int(index)] for index in at)
    assert torch.allclose(between, first * 2 / 3 + last / 3, atol=1e-5)
    assert TOKEN_IDS["bpm:65"] == at[1]


@pytest.mark.parametrize(
    ("known_frames", "hint", "has_pulses"), [(0, SILENCE, True), (8, SILENCE, False), (0, 1.0, False)]
)
def test_pulses_are_for_pieces_from_the_top(model: DemoModel, known_frames: int, hint: float, has_pulses: bool) -> None:
    captured = []
    handle = model.decoder.masked.register_forward_pre_hook(lambda _, args: captured.append(args[4]))
    try:
        clean(model, ["bpm:100", "meter:4/4"], known_frames, hint)
    finally:
        handle.remove()
    assert bool(captured[0][0, :, -4:].any()) == has_pulses


def test_the_velocity_leads_to_the_estimate(model: DemoModel) -> None:
    condition, mask = torch.zeros(1, 2, 96), torch.ones(1, 2)
    latents, context = torch.ones(1, 4, CHANNELS), torch.ones(1, 4, 2 * CHANNELS)
    for time in (0.5, MIN_TIME):
        inputs = (latents, torch.tensor([time]), condition, mask, context)
        with torch.no_grad():
            velocity, estimate = model.decoder(*inputs), model.decoder.clean(*inputs)
        assert torch.allclose(latents - time * velocity, estimate, atol=1e-5)


def test_the_timbre_encoder_hears_instruments_and_no_notes(model: DemoModel) -> None:
    reference = torch.full((2, 30, CHANNELS), SILENCE)
    reference[1, :, :55] = 3.0
    with torch.no_grad():
        notes = model.timbre(reference)
        reference[1, :, 57] = 4.0
        instrument = model.timbre(reference)
    assert notes.shape == (2, 2, 96)
    assert torch.equal(notes[0], notes[1])
    assert not notes[:, :, :NUM_FIXED].any()
    assert (instrument[0] - instrument[1]).abs().max() > 1e-3
