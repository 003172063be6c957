"""Generations longer than a canvas: kept frames, seams, seeds, curves, cancellation."""

import io
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import soundfile
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec
from numpy.typing import NDArray

from runtime.audio.codec_queue import CodecQueue
from runtime.audio.encoding import to_s16
from runtime.audio.finishing import block_energies, loudness_lufs
from runtime.audio.window_decoder import CROSSFADE_S
from runtime.base.errors import NoNotesError, QueueFullError, RequestError, ShapeError
from runtime.config.deployment import ModelIdentity
from runtime.music.envelopes import PLAIN, level_curve
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.seeds import segment_seed
from runtime.tick.loop.events import Event, Finished, Started
from runtime.tick.loop.record import TickRecord

SPEC = TinySpec()
T, C, KEEP = SPEC.canvas_frames, SPEC.channels, SPEC.overlap_frames
LONG_S = 3.0  # 76 frames: three segments


def options(**values: object) -> GenerationOptions:
    return parse_options({"prompt": "a", "seed": 1, "seconds": LONG_S, **values})


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, C)).astype(np.float32)


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether `holds` becomes true within 30 s."""
    deadline_s = time.monotonic() + 30.0
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return holds()


def whole(
    pipeline: Pipeline, generation: LongGeneration, on_event: Callable[[Event], None] | None = None
) -> NDArray[np.float32]:
    return np.concatenate(list(generate_latents(pipeline, generation, on_event)))


def test_segment_seeds_differ_and_are_deterministic() -> None:
    seeds = [segment_seed(7, index) for index in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [segment_seed(7, index) for index in range(100)]
    assert segment_seed(8, 1) != segment_seed(7, 1)


def test_requests_keep_the_tail_and_generate_the_other_frames(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options())
    assert (generation.total_frames, generation.total_samples, generation.num_segments) == (76, 24_000, 3)
    parts, masks, seeds = [], [], []
    for index in range(3):
        request = generation.next_request()
        assert request is not None
        seeds.append(request.seed)
        made = latents(request.frames, index)
        if request.mask is not None:
            kept = int((np.asarray(request.mask.mask) == 0.0).sum())
            before = np.concatenate(parts)[-kept:]
            assert np.array_equal(request.mask.original[:kept], before)
            assert np.array_equal(request.context[:kept, :C], before)
            assert (request.context[kept:, C:] == 1.0).all()
            made[:kept] = before
            masks.append(kept)
        parts.append(generation.append(made))
    assert masks == [KEEP, 12]
    assert seeds == [segment_seed(1, index) for index in range(3)]
    assert sum(len(part) for part in parts) == 76
    assert generation.next_request() is None


def test_a_long_generation_is_complete_and_repeatable_and_begins_as_a_short_one(pipeline: Pipeline) -> None:
    first = whole(pipeline, LongGeneration(pipeline, options()))
    assert first.shape == (76, C)
    assert np.isfinite(first).all()
    assert np.array_equal(first, whole(pipeline, LongGeneration(pipeline, options())))
    assert np.abs(first - whole(pipeline, LongGeneration(pipeline, options(seed=2)))).max() > 0.01
    assert np.array_equal(first[:T], whole(pipeline, LongGeneration(pipeline, options(seconds=1.28))))


@pytest.fixture(scope="module")
def telling(built: Built) -> Iterator[Pipeline]:
    """A model that tells what prompts mean."""
    with open_pipeline(built(meaning=True, words=("calm", "chant"), more=FEW_VARIANTS)) as opened:
        yield opened


def test_what_the_seed_draws_is_in_every_segment_and_not_in_what_was_given(telling: Pipeline) -> None:
    generation = LongGeneration(telling, options(prompt="chant", seed=5))
    ((kind, genre),) = [meaning.drawn for meaning in generation.meanings if meaning.drawn]
    tokens = telling.text_encoder.encode(f"chant, {genre}")
    for index in range(3):
        request = generation.next_request()
        assert request is not None
        assert np.array_equal(request.conditions[0].tokens, tokens)
        generation.append(latents(request.frames, index))
    assert (kind, generation.options.prompt) == ("genre", "chant")
    assert generation.metadata().options["prompt"] == "chant"


def test_what_a_file_says_draws_the_same_again(telling: Pipeline) -> None:
    first = LongGeneration(telling, options(prompt="chant", seed=None, seconds=1.28))
    again = LongGeneration(telling, parse_options(first.metadata().options))
    assert again.meanings == first.meanings
    assert np.array_equal(whole(telling, first), whole(telling, again))


def test_a_condition_takes_the_place_of_prompts_and_what_they_mean(telling: Pipeline) -> None:
    tokens = telling.text_encoder.encode("rock")
    generation = LongGeneration(telling, options(prompt=""), GenerationInputs(condition=tokens))
    request = generation.next_request()
    assert request is not None
    assert (generation.meanings, np.array_equal(request.conditions[0].tokens, tokens)) == ((), True)


def test_a_model_that_does_not_tell_says_nothing(pipeline: Pipeline) -> None:
    assert LongGeneration(pipeline, options(prompt="chant")).meanings == ()


def test_a_missing_seed_is_drawn_once_per_generation(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seed=None))
    request = generation.next_request()
    assert request is not None
    assert request.seed == generation.seed
    assert len({LongGeneration(pipeline, options(seed=None)).seed for _ in range(4)}) > 1


@pytest.mark.parametrize("window", [1, 7, 200])
def test_audio_across_segments_equals_the_full_decode(pipeline: Pipeline, window: int) -> None:
    assert pipeline.codec is not None
    generation = LongGeneration(pipeline, options(seconds=2.99, finish=False))
    pcm = np.concatenate(list(generate_audio(pipeline, generation, window_frames=window)))
    full = pipeline.codec.decode(whole(pipeline, LongGeneration(pipeline, options(seconds=2.99))))
    assert len(pcm) == round(2.99 * SPEC.sample_rate_hz) < len(full)
    assert np.abs(pcm - full[: len(pcm)]).max() < 1e-5


def test_finished_audio_is_at_its_level_with_all_windows(pipeline: Pipeline) -> None:
    whole_audio, raw = (finished(pipeline, 200, finish=is_finished) for is_finished in (True, False))
    rate_hz = SPEC.sample_rate_hz
    before, after = (loudness_lufs(block_energies(pcm, rate_hz)) for pcm in (raw, whole_audio))
    assert before is not None
    assert before > -4.0, "the tiny codec is louder than 12 dB can mend"
    assert after == pytest.approx(before - 12.0, abs=1.0)
    assert np.abs(whole_audio).max() <= 10 ** (-1 / 20)
    assert not whole_audio[0].any()
    assert np.abs(whole_audio[-1]).max() < 1e-3
    for window_frames in (1, 7):
        assert np.abs(finished(pipeline, window_frames) - whole_audio).max() < 1e-5
    assert np.array_equal(finished(pipeline, 7), finished(pipeline, 7))


def test_what_is_decoded_for_its_loudness_is_not_decoded_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pipeline.codec is not None
    decode, starts = pipeline.codec._decode, []
    monkeypatch.setattr(pipeline.codec, "_decode", lambda *values: starts.append(values[1]) or decode(*values))
    finished(pipeline, 7)
    assert len(set(starts)) == len(starts) > 2


@pytest.mark.parametrize("values", [{"finish": False}, {}, {"seconds": 0.9}])
def test_windows_are_decoded_at_once_and_are_the_same(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, values: dict[str, object]
) -> None:
    codec = pipeline.codec
    assert codec is not None
    monkeypatch.setattr(codec, "queue", CodecQueue(1))
    expected = finished(pipeline, 7, **values)
    decode, lock, inside, are_two = codec._decode, threading.Lock(), [], threading.Event()

    def watched(latents: NDArray[np.float32], start_frame: int) -> NDArray[np.float32]:
        with lock:
            inside.append(start_frame)
            if len(inside) == 2:
                are_two.set()
        if start_frame:
            assert are_two.wait(30)
        pcm = decode(latents, start_frame)
        with lock:
            inside.remove(start_frame)
        return pcm

    monkeypatch.setattr(codec, "_decode", watched)
    monkeypatch.setattr(codec, "queue", CodecQueue(2))
    assert np.array_equal(finished(pipeline, 7, **values), expected)
    assert are_two.is_set()


def test_workers_are_alone_while_no_generation_is_in_flight(pipeline: Pipeline) -> None:
    assert pipeline.codec is not None
    seen: list[bool] = []

    def note(event: Event) -> None:
        if isinstance(event, Finished) and pipeline.codec is not None:
            seen.append(pipeline.codec.queue._is_alone())

    whole(pipeline, LongGeneration(pipeline, options(seconds=0.9)), note)
    assert seen == [True]
    with second_segment_in_flight(pipeline, LongGeneration(pipeline, options())) as (pieces, _):
        assert not pipeline.codec.queue._is_alone()
    pieces.close()


def test_every_tick_lets_the_codec_go_first(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pipeline.codec is not None
    shared = pipeline.loop._shared
    assert shared.before_tick == pipeline.codec.queue.hold
    held: list[int] = []
    monkeypatch.setattr(shared, "before_tick", lambda _: held.append(pipeline.loop.stats().ticks))
    before = pipeline.loop.stats().ticks
    whole(pipeline, LongGeneration(pipeline, options(seconds=0.9)))
    assert set(range(before + 1, pipeline.loop.stats().ticks)) <= set(held)


def finished(pipeline: Pipeline, window_frames: int, **values: object) -> NDArray[np.float32]:
    generation = LongGeneration(pipeline, options(**values))
    return np.concatenate(list(generate_audio(pipeline, generation, window_frames=window_frames)))


def test_each_segment_gets_its_part_of_a_long_source(pipeline: Pipeline) -> None:
    source = latents(76)
    generation = LongGeneration(pipeline, options(seconds=None), GenerationInputs(source=source))
    assert generation.total_frames == 76
    while (segment := generation.segment) is not None:
        request = generation.next_request()
        assert request is not None
        assert np.array_equal(request.source, source[segment.start_frame :][: segment.frames])
        generation.append(latents(T))


def test_a_source_is_continued(pipeline: Pipeline) -> None:
    source = latents(20)
    generation = LongGeneration(
        pipeline, options(repaint=[{"start_s": 0.8, "end_s": LONG_S}]), GenerationInputs(source=source)
    )
    result = whole(pipeline, generation)
    assert result.shape == (76, C)
    assert np.array_equal(result[:20], source)
    assert np.abs(np.diff(result[20:], axis=0)).max(axis=1).min() > 0.0


def wav(samples: NDArray[np.int16]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SPEC.sample_rate_hz, format="WAV", subtype="PCM_16")
    return file.getvalue()


def audio_of(pipeline: Pipeline, data: bytes, window_frames: int = 64, **values: object) -> NDArray[np.int16]:
    inputs = GenerationInputs(source=pipeline.inputs.read_source(data), source_audio=pipeline.inputs.open_audio(data))
    generation = LongGeneration(pipeline, options(**{"seconds": None, **values}), inputs)
    return to_s16(np.concatenate(list(generate_audio(pipeline, generation, window_frames=window_frames))))


@pytest.mark.parametrize("window_frames", [1, 9, 200])
def test_a_repaint_keeps_the_samples_of_its_source(pipeline: Pipeline, window_frames: int) -> None:
    """In every window, segment and format of 16 bits; only a crossfade lies on the kept side of a join."""
    assert pipeline.codec is not None
    rate_hz, fade = SPEC.sample_rate_hz, round(CROSSFADE_S * SPEC.sample_rate_hz)
    source = to_s16(pipeline.codec.decode(latents(76)) + 0.1)
    result = audio_of(pipeline, wav(source), window_frames, repaint=[{"start_s": 1.0, "end_s": 1.4}])
    begin, end = rate_hz, round(1.4 * rate_hz)
    assert result.shape == source.shape
    assert np.array_equal(result[: begin - fade], source[: begin - fade])
    assert np.array_equal(result[end + fade :], source[end + fade :])
    assert (result[begin:end] != source[begin:end]).any(axis=1).mean() > 0.9
    joins, rest = (np.abs(np.diff(pcm.astype(int), axis=0)).max(axis=1) for pcm in (result, source))
    near = np.r_[begin - 2 * fade : begin + 2, end - 2 : end + 2 * fade]
    assert joins[near].max() <= max(rest.max(), joins[begin:end].max()) + 2**16 / fade


def test_what_is_generated_is_as_loud_as_what_is_kept_around_it(pipeline: Pipeline) -> None:
    """But for what the limiter takes from noise at this level; at the usual -16 LUFS it would be 4 dB too quiet."""
    source_lufs = -8.0
    assert pipeline.codec is not None
    rate_hz, decoded = SPEC.sample_rate_hz, pipeline.codec.decode(latents(76))
    plain = loudness_lufs(block_energies(decoded, rate_hz))
    assert plain is not None
    source = to_s16(decoded * np.float32(10 ** ((source_lufs - plain) / 20)))
    result = audio_of(pipeline, wav(source), repaint=[{"start_s": 1.0, "end_s": 2.0}])
    passage = result[rate_hz : 2 * rate_hz].astype(np.float32) / 32768
    assert loudness_lufs(block_energies(passage, rate_hz)) == pytest.approx(source_lufs, abs=2.5)
    assert np.array_equal(result[: rate_hz // 2], source[: rate_hz // 2])


def test_a_longer_generation_continues_the_samples_of_its_source(pipeline: Pipeline) -> None:
    source = to_s16(np.random.default_rng(0).uniform(-0.5, 0.5, (SPEC.hop_samples * 30 + 7, 2)).astype(np.float32))
    result = audio_of(pipeline, wav(source), seconds=LONG_S)
    kept = 30 * SPEC.hop_samples - round(CROSSFADE_S * SPEC.sample_rate_hz)
    assert len(result) == round(LONG_S * SPEC.sample_rate_hz)
    assert np.array_equal(result[:kept], source[:kept])
    assert np.abs(result[len(source) :]).max() > 0


def test_without_denoising_the_source_is_the_result(pipeline: Pipeline) -> None:
    source = to_s16(np.random.default_rng(0).uniform(-0.5, 0.5, (SPEC.hop_samples * 40, 2)).astype(np.float32))
    assert np.array_equal(audio_of(pipeline, wav(source), denoise=0.0), source)


def test_curves_span_the_whole_generation(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(velocity_scale=[0.0, 1.0]))
    whole_curve = np.linspace(0.0, 1.0, 76)
    while (segment := generation.segment) is not None:
        request = generation.next_request()
        assert request is not None
        expected = whole_curve[segment.start_frame :][: segment.frames]
        assert np.allclose(request.parameters.velocity_scale, expected, atol=1e-6)
        generation.append(latents(T))


def test_latents_of_the_wrong_length_are_refused(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=1.0))
    with pytest.raises(ShapeError, match="got 3 frames of latents, expected 32 frames"):
        generation.append(latents(3))
    generation.append(latents(32))
    with pytest.raises(ShapeError, match="the generation is complete"):
        generation.append(latents(32))


def test_frames_beyond_the_end_are_cut_off(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=0.5))
    request = generation.next_request()
    assert request is not None
    assert (generation.total_frames, request.frames) == (14, 16)
    made = latents(16)
    assert np.array_equal(generation.append(made), made[:14])
    assert generation.next_request() is None


@pytest.mark.parametrize("seconds", [0.1, 1.28, 1.3, 2.24, 2.25, 3.0, 20.0])
def test_num_segments_is_the_number_of_requests(pipeline: Pipeline, seconds: float) -> None:
    generation = LongGeneration(pipeline, options(seconds=seconds))
    count = 0
    while (request := generation.next_request()) is not None:
        generation.append(latents(request.frames))
        count += 1
    assert generation.num_segments == count


@contextmanager
def second_segment_in_flight(
    pipeline: Pipeline, generation: LongGeneration
) -> Iterator[tuple[Generator[NDArray[np.float32], None, None], list[Event]]]:
    """The pieces of a generation after its first, while the tick thread waits in the second segment."""
    has_finished, waits, resume = threading.Event(), threading.Event(), threading.Event()
    first_tick, events = pipeline.loop.stats().ticks, list[Event]()

    def wait_in_tick(record: TickRecord) -> None:
        if has_finished.is_set():
            waits.set()
            resume.wait(60.0)
        if record.finished and record.tick >= first_tick:  # that of a generation before may be told late
            has_finished.set()

    pipeline.loop.observers.append(wait_in_tick)
    pieces = generate_latents(pipeline, generation, events.append)
    try:
        next(pieces)
        assert waits.wait(60.0)
        yield pieces, events
    finally:
        resume.set()
        pipeline.loop.observers.remove(wait_in_tick)


def test_the_next_segment_is_in_flight_while_the_last_one_is_used(pipeline: Pipeline) -> None:
    with second_segment_in_flight(pipeline, LongGeneration(pipeline, options())) as (pieces, events):
        assert pipeline.loop.stats().slots_active == 1
        assert sum(isinstance(event, Finished) for event in events) == 1
    pieces.close()


def test_closing_the_generator_cancels_the_segment_in_flight(pipeline: Pipeline) -> None:
    before = pipeline.loop.stats().outcomes
    with second_segment_in_flight(pipeline, LongGeneration(pipeline, options())) as (pieces, _):
        pieces.close()
    assert eventually(lambda: pipeline.loop.stats().outcomes["cancelled"] == before["cancelled"] + 1)
    assert pipeline.loop.stats().outcomes["ok"] == before["ok"] + 1
    assert eventually(lambda: pipeline.loop.stats().slots_active == 0)


def test_refused_requests_raise_in_the_caller(pipeline: Pipeline, built: Built) -> None:
    with pytest.raises(RequestError, match="needs a source"):
        next(generate_latents(pipeline, LongGeneration(pipeline, options(denoise=0.5))))
    deployment = built()
    none_free = deployment.runtime.model_copy(update={"depth": 1, "queue": 0})
    with open_pipeline(deployment.model_copy(update={"runtime": none_free})) as small:
        with (
            second_segment_in_flight(small, LongGeneration(small, options())) as (pieces, _),
            pytest.raises(QueueFullError),
        ):
            next(generate_latents(small, LongGeneration(small, options())))
        pieces.close()


def test_without_context_input_segments_are_joined_by_the_mask(built: Built) -> None:
    with open_pipeline(built(context=False)) as pipeline:
        assert pipeline.lengths.overlap_frames == T // 4
        generation = LongGeneration(pipeline, options())
        first = generation.append(latents(T))
        request = generation.next_request()
        assert request is not None
        assert request.context is None
        assert request.mask is not None
        assert np.array_equal(request.mask.original[: T // 4], first[-T // 4 :])
        assert whole(pipeline, LongGeneration(pipeline, options())).shape == (76, C)


def test_metadata_has_what_was_given_and_digests_of_the_inputs(pipeline: Pipeline) -> None:
    plain = LongGeneration(pipeline, parse_options({"prompt": "a"}))
    made = plain.metadata()
    assert (made.model, made.model_version) == (pipeline.bundle.name, pipeline.bundle.version)
    assert ModelIdentity(made.bundle_sha256, made.precision) == pipeline.identity
    assert (made.options, made.inputs) == ({"prompt": "a", "seed": plain.seed}, {})
    given = options(prompt=[{"text": "a"}], dcw={"mode": "low", "low": 0.01})
    first, same, other = (
        LongGeneration(pipeline, given, GenerationInputs(source=latents(T, seed))).metadata() for seed in (1, 1, 2)
    )
    assert first.options == {
        "prompt": [{"text": "a"}], "dcw": {"mode": "low", "low": 0.01}, "seed": 1, "seconds": LONG_S,
    }  # fmt: skip
    assert first == same
    assert first.inputs != other.inputs
    assert parse_options(first.options) == given


def test_steps_and_events_are_those_of_all_segments(pipeline: Pipeline) -> None:
    assert LongGeneration(pipeline, options()).num_steps == 3 * pipeline.bundle.sampler.steps
    generation, events = LongGeneration(pipeline, options(steps=5)), list[Event]()
    assert generation.num_steps == 3 * 5
    assert len(list(generate_latents(pipeline, generation, events.append))) == 3
    assert [type(event) for event in events if isinstance(event, (Started, Finished))] == [Started, Finished] * 3


@pytest.fixture(scope="module")
def noted(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(notes=True, structure=True)) as opened:
        yield opened


NOTE = {"pitch": 40, "start_s": 1.0, "seconds": 0.4, "velocity": 127, "layer": "bass"}


def test_notes_are_hints_over_those_that_are_there_in_every_segment(noted: Pipeline) -> None:
    """The bass has channels 0 to 2; frames 25 to 34 are the note's, and the phrase's."""
    structure = latents(80)
    inputs = GenerationInputs(structure=structure)
    notes = [NOTE, {**NOTE, "start_s": 2.2}]
    contexts = []
    for values in ({}, {"notes": notes}, {"notes": notes, "notes_strength": 0.5}):
        generation = LongGeneration(noted, options(**values), inputs)
        hints = np.zeros((generation.total_frames, C), np.float32)
        while (request := generation.next_request()) is not None:
            segment = generation.segment
            assert segment is not None
            assert request.context is not None
            new = slice(segment.start_frame + segment.keep_frames, segment.start_frame + segment.frames)
            hints[new] = request.context[segment.keep_frames :, :C][: len(hints[new])]
            generation.append(np.zeros((segment.frames, C), np.float32))
        contexts.append(hints)
    plain, full, half = contexts
    assert np.flatnonzero((plain != full).any(axis=1)).tolist() == list(range(25, 65))
    assert np.flatnonzero((plain != full).any(axis=0)).tolist() == [0, 1, 2]
    levels = (full - noted.bundle.silence(len(full)))[:, 1] / 0.5
    assert levels[[25, 26, 35, 54, 55]] == pytest.approx([1.0, 0.92, 0.0, 0.0, 1.0], abs=1e-5)
    np.testing.assert_allclose(half, (plain + full) / 2, atol=1e-5)


def test_exact_notes_are_in_the_latents(noted: Pipeline) -> None:
    generation = LongGeneration(noted, options(notes=[NOTE], notes_exact=True))
    made = whole(noted, generation)
    levels = (made - noted.bundle.silence(len(made)))[25:35, :3] / 0.5
    np.testing.assert_allclose(levels[:, 1], level_curve(PLAIN, 10), atol=1e-5)
    assert np.abs(levels[:, [0, 2]]).max() < 1e-5
    other = whole(noted, LongGeneration(noted, options(notes=[NOTE])))
    assert not np.array_equal(made[25:35, :3], other[25:35, :3])
    np.testing.assert_array_equal(made[25:32, 3:], other[25:32, 3:])  # of the same segment


def test_a_generation_without_a_length_is_as_long_as_its_notes(noted: Pipeline) -> None:
    long = options(notes=[{**NOTE, "start_s": 3.0}], seconds=None)
    assert LongGeneration(noted, long).total_frames == 86
    assert LongGeneration(noted, options(notes=[NOTE], seconds=None)).total_frames == max(T, 36)
    assert LongGeneration(noted, options(notes=[NOTE], seconds=0.5)).total_samples == 4000


def test_notes_that_would_have_no_effect_are_refused(noted: Pipeline, pipeline: Pipeline, built: Built) -> None:
    source = GenerationInputs(source=latents(76))
    for values, inputs, field in (
        ({"notes_strength": 0.5}, GenerationInputs(), "notes_strength"),
        ({"notes_exact": True}, GenerationInputs(), "notes_exact"),
        ({"notes": [NOTE], "notes_exact": True, "mask": [0, 1]}, source, "notes_exact"),
        ({"notes": [{**NOTE, "layer": "flute"}]}, GenerationInputs(), "notes.0.layer"),
    ):
        with pytest.raises(RequestError) as error:
            LongGeneration(noted, options(**values), inputs)
        assert error.value.field == field
    with pytest.raises(NoNotesError, match=r"has no \[notes\]") as refused:
        LongGeneration(pipeline, options(notes=[NOTE]))
    assert (refused.value.code, refused.value.field) == ("no_notes", "notes")
    with open_pipeline(built(notes=True)) as without_hints, pytest.raises(NoNotesError, match=r"\[structure\]"):
        LongGeneration(without_hints, options(notes=[NOTE]))


def test_what_a_file_says_plays_the_same_notes_again(noted: Pipeline) -> None:
    generation = LongGeneration(noted, options(notes=[NOTE], notes_exact=True))
    again = LongGeneration(noted, parse_options(generation.metadata().options))
    np.testing.assert_array_equal(whole(noted, generation), whole(noted, again))


@pytest.mark.parametrize(("tempo", "bar"), [("250 bpm, 2/4", 12), ("300 bpm, 3/4", 15)])
def test_without_a_planner_what_follows_has_the_hints_of_its_first_bars(noted: Pipeline, tempo: str, bar: int) -> None:
    contexts = hints_given(noted, options(prompt=f"a, {tempo}"))
    assert len(contexts) == 3
    silence, length = noted.bundle.silence(T), min(T // bar, 4) * bar
    np.testing.assert_array_equal(contexts[0], silence)
    expected = silence[0, :3] + 0.7 * (latents(T, 0)[:length, :3] - silence[0, :3])  # of the bass
    following = np.arange(T, 2 * T - KEEP)
    np.testing.assert_allclose(contexts[1][KEEP:, :3], expected[following % length], atol=1e-5)


@pytest.mark.parametrize("given", ["", "structure", "source"])
def test_what_has_no_tempo_or_something_to_follow_repeats_nothing(noted: Pipeline, given: str) -> None:
    inputs = GenerationInputs(**{given: latents(80, 9)}) if given else NO_INPUTS  # type: ignore[arg-type]
    asked = options(prompt="a, 250 bpm" if given else "a")
    made = [hints_given(noted, asked, inputs, scale) for scale in (0.0, 1.0)]
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


def hints_given(
    pipeline: Pipeline, options: GenerationOptions, inputs: GenerationInputs = NO_INPUTS, scale: float = 1.0
) -> list[NDArray[np.float32]]:
    """What each segment's context has of new frames `[T, C]`; what is generated are the latents of its number."""
    generation, found = LongGeneration(pipeline, options, inputs), []
    while (request := generation.next_request()) is not None:
        segment = generation.segment
        assert segment is not None
        assert request.context is not None
        given = request.context[:, :C].copy()
        given[: segment.keep_frames] = 0.0
        found.append(given)
        generation.append(scale * latents(segment.frames, len(found) - 1))
    return found


@pytest.fixture(scope="module")
def moody(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(meaning=True, notes=True, words=("calm", "thin"), more=FEW_VARIANTS)) as opened:
        yield opened


def test_a_part_with_a_mood_of_its_own_has_its_level_in_every_segment(moody: Pipeline) -> None:
    """The bass has channels 0 to 2. The model does not read the mood."""
    plain = whole(moody, LongGeneration(moody, options(prompt="bass, drums")))
    generation = LongGeneration(moody, options(prompt="calm bass, drums"))
    made, silence = whole(moody, generation), moody.bundle.silence(1)[0]
    np.testing.assert_allclose((made - silence)[:, :3], (plain - silence)[:, :3] * 10 ** (-0.3), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made[:, 3:], plain[:, 3:])
    (meaning,) = generation.meanings
    assert (meaning.bound_names, meaning.played_text.split(", ")[:2]) == (
        {"soft": ["electric bass"]},
        ["bass", "drums"],
    )
    assert "soft: electric bass -6 dB" in str(meaning)


def test_levels_of_parts_follow_the_weights_of_prompts(moody: Pipeline) -> None:
    prompts = [{"text": "calm bass, drums", "weight": [1.0, 0.0]}, {"text": "bass, drums", "weight": [0.0, 1.0]}]
    generation = LongGeneration(moody, options(prompt=prompts))
    made = np.ones((generation.total_frames, C), np.float32)
    zeros = iter(range(99))
    found = [generation.append(made[: generation.segment.frames]) for _ in zeros if generation.segment is not None]
    level = np.concatenate(found)[:, 0] - moody.bundle.silence(1)[0, 0]
    np.testing.assert_allclose(20 * np.log10(level[[0, -1]] / level[-1]), [-6.0, 0.0], atol=0.1)


def test_a_sparse_part_loses_notes(moody: Pipeline) -> None:
    generation = LongGeneration(moody, options(prompt="thin bass, drums", bpm=None))
    segment = generation.segment
    assert segment is not None
    made = np.array(moody.bundle.silence(segment.frames))
    made[::4, 0] += 0.5
    silence = moody.bundle.silence(1)[0]
    kept = np.flatnonzero(generation.append(made)[:, 0] > silence[0] + 0.1)
    assert kept.tolist() == list(range(0, segment.frames, 12))


def test_what_keeps_its_source_keeps_its_levels(moody: Pipeline) -> None:
    source = latents(40)
    given = options(prompt="calm bass, drums", repaint=[{"start_s": 0.4, "end_s": 0.8}], seconds=None)
    made = whole(moody, LongGeneration(moody, given, GenerationInputs(source=source)))
    np.testing.assert_array_equal(made[:10], source[:10])


@pytest.fixture(scope="module")
def breathing(built: Built) -> Iterator[Pipeline]:
    """The upright bass has an envelope."""
    with open_pipeline(built(notes=True, structure=True, envelopes=True)) as opened:
        yield opened


def held_bass(pipeline: Pipeline, frames: int) -> NDArray[np.float32]:
    """Latents of an upright bass that holds a note."""
    made = pipeline.bundle.silence(frames).copy()
    made[:, [1, 5]] += 0.5 * np.array([0.8, 1.0], np.float32)
    return made


def test_notes_have_the_envelopes_of_their_instruments_over_all_segments(breathing: Pipeline, noted: Pipeline) -> None:
    pieces = []
    for pipeline in (noted, breathing):
        generation, parts = LongGeneration(pipeline, options()), []
        while (request := generation.next_request()) is not None:
            if parts:  # What follows hears it as it is.
                assert request.mask is not None
                assert request.mask.original is not None
                assert np.array_equal(request.mask.original[:KEEP], np.concatenate(parts)[-KEEP:])
            parts.append(generation.append(held_bass(pipeline, request.frames)))
        pieces.append(np.concatenate(parts))
    plain, made = pieces
    assert np.array_equal(plain, held_bass(noted, 76))
    levels = (made - breathing.bundle.silence(76))[:, 1] / 0.5
    assert levels[[0, 1, 25]] == pytest.approx([0.8, 0.64, 0.64 * 0.92**24], abs=1e-5)
    assert np.diff(levels).max() < 1e-6, "no stroke where segments join"
    np.testing.assert_array_equal(np.delete(made, 1, axis=1), np.delete(plain, 1, axis=1))


def test_a_held_note_is_struck_again_on_beats_unless_it_was_given(breathing: Pipeline) -> None:
    """At 75 bpm a beat has 20 frames."""
    made = []
    for values in ({"prompt": "75 bpm"}, {"prompt": "75 bpm", "notes": [{**NOTE, "start_s": 0.0, "seconds": 3.04}]}):
        generation = LongGeneration(breathing, options(**values))
        while (request := generation.next_request()) is not None:
            made.append(generation.append(held_bass(breathing, request.frames)))
    levels = (np.concatenate(made) - breathing.bundle.silence(152))[:, 1] / 0.5
    assert (np.flatnonzero(np.diff(levels[:76]) > 0.05) + 1).tolist() == [40]
    assert not (np.diff(levels[76:]) > 0.05).any()


def test_a_cover_has_the_beat_of_its_source(breathing: Pipeline) -> None:
    """Not that of the tempo which a prompt names: held notes are struck where others begin."""
    generation, parts = LongGeneration(breathing, options(prompt="75 bpm"), GenerationInputs(structure=latents(76))), []
    while (request := generation.next_request()) is not None:
        parts.append(held_bass(breathing, request.frames))
        parts[-1][-5:-2, 2] += 0.3
        parts[-1] = generation.append(parts[-1])
    levels = (np.concatenate(parts) - breathing.bundle.silence(76))[:, 1:3] / 0.5
    struck = [np.flatnonzero(np.diff(levels[:, key]) > 0.05) + 1 for key in (0, 1)]
    assert len(struck[0]) >= 1
    assert set(struck[0]) <= set(struck[1])


def test_what_is_kept_of_a_source_keeps_its_levels(breathing: Pipeline) -> None:
    source = held_bass(breathing, 76)
    for values in ({"repaint": [{"start_s": 1.0, "end_s": 2.0}]}, {"denoise": 0.0}):
        generation = LongGeneration(breathing, options(seconds=None, **values), GenerationInputs(source=source))
        result = whole(breathing, generation)
        assert np.array_equal(result[:25], source[:25])
        assert np.array_equal(result[50:], source[50:])


def test_exact_notes_are_those_of_the_instrument_that_plays(breathing: Pipeline) -> None:
    generation = LongGeneration(breathing, options(notes=[{**NOTE, "seconds": 2.0}], notes_exact=True))
    parts = []
    while (request := generation.next_request()) is not None:
        parts.append(generation.append(held_bass(breathing, request.frames)))
    levels = (np.concatenate(parts) - breathing.bundle.silence(76))[:, 1] / 0.5
    assert levels[[25, 26, 50]] == pytest.approx([1.0, 0.8, 0.8 * 0.92**24], abs=1e-5)
