"""How generations end: last notes that ring out from a bar line on, fades, cuts, and ends of sources."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.factories import TinySpec
from helpers.tiny_planner import KEYED_PLAN
from numpy.typing import NDArray

from runtime.audio.finishing import FADE_OUT_S, Finisher
from runtime.base.errors import RequestError
from runtime.config.notes import NotesSpec
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.ending import CUT, LAST_FRAMES, RING_S, SILENT_S, LastNotes, ending_of
from runtime.requests.options import GenerationOptions, parse_options

SPEC = TinySpec()
C, RATE_HZ, SAMPLES_HZ = SPEC.channels, 25, SPEC.sample_rate_hz
NOTES = NotesSpec.model_validate(
    {
        "scale": 0.5,
        "on": 0.12,
        "off": 0.06,
        "layers": [
            {"name": "pad", "channels": [0, 1, 2, 3, 4], "keys": [48, 50, 52, 55, 60]},
            {"name": "drums", "channels": [5, 6], "keys": [38, 36], "is_percussion": True},
            {"name": "flute", "channels": [7], "keys": [72]},
        ],
    }
)
SILENCE = np.full(C, -0.25, np.float32)


def options(**values: Any) -> GenerationOptions:
    return parse_options({"prompt": "a", "seed": 1, "seconds": 4.0, "steps": 2, **values})


def audio_of(pipeline: Pipeline, generation: LongGeneration, window: int = 64) -> NDArray[np.float32]:
    return np.concatenate(list(generate_audio(pipeline, generation, window_frames=window)))


def latents_of(pipeline: Pipeline, generation: LongGeneration) -> NDArray[np.float32]:
    return np.concatenate(list(generate_latents(pipeline, generation)))


@pytest.fixture(scope="module")
def planned(built: Built) -> Iterator[Pipeline]:
    """A model whose plans name a key, and with notes."""
    with open_pipeline(built(notes=True, planner={"capacity": 1024, "plan": KEYED_PLAN})) as opened:
        yield opened


def test_the_last_notes_of_a_plan_ring_from_a_bar_line_on(planned: Pipeline) -> None:
    asked = {"plan": True, "bpm": 240, "time_signature": 4}
    ringing, cut = (LongGeneration(planned, options(**asked, ending=ending)) for ending in ("auto", "cut"))
    assert (ringing.ending.ring_frame, cut.ending.ring_frame) == (50, None), (
        "a bar has 25 frames, 1.6 s are left to ring"
    )
    made, plain = latents_of(planned, ringing), latents_of(planned, cut)
    np.testing.assert_array_equal(made[:50], plain[:50])
    np.testing.assert_array_equal(made[50:, 5:], plain[50:, 5:])  # timbre, and what are no notes
    levels = (made - planned.bundle.silence(1)[0])[:, :5] / 0.5
    assert np.abs(levels[100 - LAST_FRAMES :]).max() < 1e-6
    audio = audio_of(planned, LongGeneration(planned, options(**asked)))
    assert not audio[-round(0.1 * SAMPLES_HZ) :].any()
    assert np.abs(audio[: 2 * SAMPLES_HZ]).max() > 0.1


def test_cut_is_the_codecs_audio_with_the_short_fades_of_all(pipeline: Pipeline) -> None:
    assert pipeline.codec is not None
    asked = options(seconds=1.28, ending="cut")
    generation = LongGeneration(pipeline, asked)
    pcm = pipeline.codec.decode(latents_of(pipeline, LongGeneration(pipeline, asked)))
    finisher = Finisher(SAMPLES_HZ, SPEC.hop_samples, len(pcm))
    decoder = generation.audio_decoder()
    finisher.measure([(0, pcm)], 0)
    assert decoder.finisher is not None
    decoder.finisher.measure([(0, pcm)], 0)
    np.testing.assert_array_equal(decoder.finisher.finish(pcm, 0), finisher.finish(pcm, 0))
    assert np.abs(audio_of(pipeline, generation)[-round(0.1 * SAMPLES_HZ) :]).max() > 0.05


def test_without_a_plan_audio_fades_from_a_bar_line_on(pipeline: Pipeline) -> None:
    cut, faded = (
        audio_of(pipeline, LongGeneration(pipeline, options(prompt="a, 240 bpm", ending=ending)))
        for ending in ("cut", "auto")
    )
    line, gain = 3 * SAMPLES_HZ, np.abs(faded).max(axis=1) / np.maximum(np.abs(cut).max(axis=1), 1e-9)
    np.testing.assert_allclose(faded[:line], cut[:line], atol=1e-6)
    blocks = gain[line : -round(SILENT_S * SAMPLES_HZ)].reshape(-1, 40).mean(axis=1)
    assert (np.diff(blocks) < 1e-3).all()
    assert not faded[-round(0.1 * SAMPLES_HZ) :].any()


def test_a_ring_is_written_the_same_in_any_parts() -> None:
    before = np.tile(SILENCE, (10, 1))
    before[:, [0, 2, 3, 5]] += np.float32([0.4, 0.4, 0.4, 0.3])
    before[:6, 7] += np.float32(0.2)
    new = np.tile(SILENCE + np.float32(0.1), (40, 1))

    def notes(*kept: str) -> LastNotes:
        return LastNotes(NOTES, SILENCE, (0, 4, 7), 20, 48, frozenset(kept))

    whole = notes().written(new, 10, before)
    ring = notes()
    first = ring.written(new[:15], 10, before)
    parts = [first, ring.written(new[15:], 25, np.concatenate((before, new[:15])))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(whole[:10], new[:10])
    levels = (whole - SILENCE)[10:] / 0.5  # [30, C]
    # The pad had three voices, drums have their lowest key, the flute has no louder note than before.
    assert levels[0, [0, 2, 3, 6, 7]] == pytest.approx([0.8, 0.8, 0.8, 0.6, 0.4], abs=0.01)
    assert (levels[3:, [1, 4, 5]] == 0.0).all()
    assert (np.diff(levels[:24, 0]) < 0.0).all()
    assert (np.abs(levels[24:, :8]) < 1e-6).all()
    np.testing.assert_array_equal(notes("pad").written(new, 10, before)[:, :5], new[:, :5])


@pytest.mark.parametrize(
    ("values", "fade_s"),
    [
        ({"repaint": [{"start_s": 1.0, "end_s": 2.0}], "seconds": None}, None),
        ({"repaint": [{"start_s": 3.0, "end_s": 4.0}]}, None),
        ({"mask": [0, 1]}, None),
        ({"denoise": 0.0}, None),
        ({"repaint": [{"start_s": 4.0, "end_s": 8.0}], "seconds": 8.0}, 1.0 - SILENT_S),
        ({"denoise": 0.5}, 1.0 - SILENT_S),
    ],
)
def test_the_end_of_a_source_stays_and_what_follows_it_fades(
    pipeline: Pipeline, values: dict[str, Any], fade_s: float | None
) -> None:
    source = GenerationInputs(source=np.zeros((100, C), np.float32))
    asked = options(**values)
    found = ending_of(asked, source, {}, asked.seconds or 4.0, pipeline.bundle, has_tonic=False)
    assert found == CUT if fade_s is None else found.fade_s == pytest.approx(fade_s)
    if fade_s is None:
        with pytest.raises(RequestError, match="the end is that of the source") as error:
            LongGeneration(pipeline, options(**values, ending="fade"), source)
        assert error.value.field == "ending"


@pytest.mark.parametrize(
    "values",
    [
        {"ending": "ring"},
        {"ending": "ring", "plan": True, "bpm": 96, "seconds": 1.5},
        {"ending": "fade", "finish": False},
    ],
)
def test_an_ending_that_is_not_possible_is_refused(planned: Pipeline, values: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        LongGeneration(planned, options(**{"plan": False, **values}))
    assert (error.value.field, bool(error.value.fix)) == ("ending", True)


@pytest.mark.parametrize("total_s", [0.3, 1.0, 4.0, 10.0, 47.3])
@pytest.mark.parametrize("bpm", [30.0, 97.0, 300.0])
def test_every_length_has_a_fade_that_is_no_more_than_half_of_it(
    pipeline: Pipeline, planned: Pipeline, total_s: float, bpm: float
) -> None:
    for has_tonic, model in ((False, pipeline), (True, planned)):
        found = ending_of(options(bpm=bpm, seconds=total_s), NO_INPUTS, {}, total_s, model.bundle, has_tonic=has_tonic)
        assert 0.0 < found.silent_s + found.fade_s <= total_s / 2 or found.ring_frame is not None
        if found.ring_frame is not None:
            assert 0 < found.ring_frame <= (total_s - RING_S) * RATE_HZ + 0.5
        assert CUT.fade_s == FADE_OUT_S
