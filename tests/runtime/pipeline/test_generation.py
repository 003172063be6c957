"""Generations longer than a canvas: nothing kept changes, seams do not show, seeds are derived, leaving cancels."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import Built
from factories import TinySpec
from numpy.typing import NDArray

from runtime.errors import QueueFullError, RequestError, ShapeError
from runtime.pipeline.generation import LongGeneration, next_request, run, run_audio, seed_of
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.segments import plan
from runtime.tick.events import Event, Finished, Started
from runtime.tick.record import TickRecord

SPEC = TinySpec()
T, C, KEEP = SPEC.canvas_frames, SPEC.channels, SPEC.overlap_frames
LONG_S = 3.0  # 76 frames: three segments


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built()) as opened:
        yield opened


def options(**values: object) -> GenerationOptions:
    return parse_options({"prompt": "a", "seed": 1, "seconds": LONG_S, **values})


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, C)).astype(np.float32)


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it comes true before long, on a busy machine too."""
    deadline_s = time.monotonic() + 30.0
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return holds()


def whole(pipeline: Pipeline, generation: LongGeneration) -> NDArray[np.float32]:
    return np.concatenate(list(run(pipeline, generation)))


def test_seeds_of_later_stretches_are_others_and_always_the_same() -> None:
    seeds = [seed_of(7, index) for index in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [seed_of(7, index) for index in range(100)]
    assert seed_of(8, 1) != seed_of(7, 1)


def test_requests_keep_the_tail_and_generate_the_rest(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options())
    assert (generation.total_frames, generation.total_samples, generation.segments) == (76, 24_000, 3)
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
        parts.append(generation.take(made))
    assert masks == [KEEP, 12]
    assert seeds == [seed_of(1, index) for index in range(3)]
    assert sum(len(part) for part in parts) == 76
    assert generation.next_request() is None


def test_a_long_generation_is_whole_and_repeatable(pipeline: Pipeline) -> None:
    first = whole(pipeline, LongGeneration(pipeline, options()))
    assert first.shape == (76, C)
    assert np.isfinite(first).all()
    assert np.array_equal(first, whole(pipeline, LongGeneration(pipeline, options())))
    assert np.abs(first - whole(pipeline, LongGeneration(pipeline, options(seed=2)))).max() > 0.01


def test_the_beginning_does_not_depend_on_the_length(pipeline: Pipeline) -> None:
    long, short = (
        whole(pipeline, LongGeneration(pipeline, options())),
        whole(pipeline, LongGeneration(pipeline, options(seconds=1.28))),
    )
    assert np.array_equal(long[:T], short)


def test_a_seed_is_drawn_once_for_the_whole(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seed=None))
    request = generation.next_request()
    assert request is not None
    assert request.seed == generation.seed
    assert len({LongGeneration(pipeline, options(seed=None)).seed for _ in range(4)}) > 1


@pytest.mark.parametrize("window", [1, 7, 200])
def test_audio_across_stretches_equals_the_full_decode(pipeline: Pipeline, window: int) -> None:
    assert pipeline.codec is not None
    generation = LongGeneration(pipeline, options(seconds=2.99))
    heard = np.concatenate(list(run_audio(pipeline, generation, window_frames=window)))
    full = pipeline.codec.decode(whole(pipeline, LongGeneration(pipeline, options(seconds=2.99))))
    assert len(heard) == round(2.99 * SPEC.sample_rate_hz) < len(full)
    assert np.abs(heard - full[: len(heard)]).max() < 1e-5


def test_a_long_source_is_cut_per_segment(pipeline: Pipeline) -> None:
    source = latents(76)
    generation = LongGeneration(pipeline, options(seconds=None), source=source)
    assert generation.total_frames == 76
    for segment in plan(76, T, KEEP):
        request = generation.next_request()
        assert request is not None
        assert np.array_equal(request.source, source[segment.start_frame : segment.end_frame])
        generation.take(latents(T))


def test_repaint_of_a_long_source_keeps_the_rest_to_the_bit(pipeline: Pipeline) -> None:
    source = latents(76)
    result = whole(
        pipeline,
        LongGeneration(pipeline, options(seconds=None, repaint=[{"start_s": 1.0, "end_s": 2.0}]), source=source),
    )
    assert np.array_equal(result[:25], source[:25])
    assert np.array_equal(result[50:], source[50:])
    assert np.abs(result[25:50] - source[25:50]).max() > 0.01


def test_going_on_from_a_source(pipeline: Pipeline) -> None:
    source = latents(20)
    generation = LongGeneration(pipeline, options(repaint=[{"start_s": 0.8, "end_s": LONG_S}]), source=source)
    result = whole(pipeline, generation)
    assert result.shape == (76, C)
    assert np.array_equal(result[:20], source)
    assert np.abs(np.diff(result[20:], axis=0)).max(axis=1).min() > 0.0


def test_curves_run_over_the_whole(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(velocity_scale=[0.0, 1.0]))
    whole_curve = np.linspace(0.0, 1.0, 76)
    for segment in plan(76, T, KEEP):
        request = generation.next_request()
        assert request is not None
        expected = whole_curve[segment.start_frame : segment.end_frame]
        assert np.allclose(request.parameters.velocity_scale, expected, atol=1e-6)
        generation.take(latents(T))


def test_options_may_change_between_segments(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=None), endless=True)
    assert (generation.total_frames, generation.total_samples, generation.segments) == (None, None, None)
    generation.take(latents(T))
    generation.options = options(prompt="b", steps=2)
    request = generation.next_request()
    assert request is not None
    assert pipeline.text_encoder is not None
    assert np.array_equal(request.conditions[0].tokens, pipeline.text_encoder.encode("b"))
    assert request.steps == 2
    for index in range(5):
        assert generation.take(latents(T, index)).shape == (T - KEEP, C)
    assert generation.done_frames == T + 5 * (T - KEEP)


def test_one_stretch_by_hand_has_the_seed_of_its_place(pipeline: Pipeline) -> None:
    for index, segment in enumerate(plan(76, T, KEEP)):
        request = next_request(pipeline, options(), segment, latents(T))
        assert request.seed == seed_of(1, index)


def test_wrong_latents_are_refused(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=1.0))
    with pytest.raises(ShapeError, match="got 3 frames of latents, expected 32 frames"):
        generation.take(latents(3))
    generation.take(latents(32))
    with pytest.raises(ShapeError, match="all is done"):
        generation.take(latents(32))


def test_what_was_generated_beyond_the_end_is_not_given_out(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=0.5))
    request = generation.next_request()
    assert request is not None
    assert (generation.total_frames, request.frames) == (14, 16)
    made = latents(16)
    assert np.array_equal(generation.take(made), made[:14])
    assert generation.next_request() is None


@pytest.mark.parametrize("seconds", [0.1, 1.28, 1.3, 2.24, 2.25, 3.0, 20.0])
def test_the_number_of_stretches_is_known(pipeline: Pipeline, seconds: float) -> None:
    generation = LongGeneration(pipeline, options(seconds=seconds))
    count = 0
    while (request := generation.next_request()) is not None:
        generation.take(latents(request.frames))
        count += 1
    assert generation.segments == count


@contextmanager
def second_stretch_in_flight(
    pipeline: Pipeline, generation: LongGeneration
) -> Iterator[tuple[Generator[NDArray[np.float32], None, None], list[Event]]]:
    """The pieces of a generation after its first, while the tick thread stands still in the second segment."""
    go_on = threading.Event()
    go_on.set()
    events: list[Event] = []

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, Finished):
            go_on.clear()

    def stand_still(record: TickRecord) -> None:
        go_on.wait(60.0)

    pipeline.loop.observers.append(stand_still)
    pieces = run(pipeline, generation, note)
    try:
        next(pieces)
        yield pieces, events
    finally:
        go_on.set()
        pipeline.loop.observers.remove(stand_still)


def test_the_next_stretch_is_in_flight_while_the_last_one_is_used(pipeline: Pipeline) -> None:
    with second_stretch_in_flight(pipeline, LongGeneration(pipeline, options())) as (pieces, events):
        assert eventually(lambda: pipeline.loop.stats().slots_active == 1)
        assert sum(isinstance(event, Finished) for event in events) == 1
    pieces.close()


def test_every_stretch_starts_and_finishes_once(pipeline: Pipeline) -> None:
    events: list[Event] = []
    assert len(list(run(pipeline, LongGeneration(pipeline, options()), events.append))) == 3
    assert [type(event) for event in events if isinstance(event, (Started, Finished))] == [Started, Finished] * 3


def test_leaving_early_cancels_what_is_in_flight(pipeline: Pipeline) -> None:
    before = pipeline.loop.stats().outcomes
    with second_stretch_in_flight(pipeline, LongGeneration(pipeline, options())) as (pieces, _):
        pieces.close()
    assert eventually(lambda: pipeline.loop.stats().outcomes["cancelled"] == before["cancelled"] + 1)
    assert pipeline.loop.stats().outcomes["ok"] == before["ok"] + 1
    assert pipeline.loop.stats().slots_active == 0


def test_refusals_reach_the_caller(pipeline: Pipeline, built: Built) -> None:
    with pytest.raises(RequestError, match="needs a source"):
        next(run(pipeline, LongGeneration(pipeline, options(denoise=0.5))))
    deployment = built()
    none_free = deployment.runtime.model_copy(update={"depth": 1, "queue": 0})
    with open_pipeline(deployment.model_copy(update={"runtime": none_free})) as small:
        with (
            second_stretch_in_flight(small, LongGeneration(small, options())) as (pieces, _),
            pytest.raises(QueueFullError),
        ):
            next(run(small, LongGeneration(small, options())))
        pieces.close()


def test_a_decoder_without_context_is_extended_by_the_mask_alone(built: Built) -> None:
    with open_pipeline(built(context=False)) as pipeline:
        assert pipeline.overlap_frames == T // 4
        generation = LongGeneration(pipeline, options())
        first = generation.take(latents(T))
        request = generation.next_request()
        assert request is not None
        assert request.context is None
        assert request.mask is not None
        assert np.array_equal(request.mask.original[: T // 4], first[-T // 4 :])
        assert whole(pipeline, LongGeneration(pipeline, options())).shape == (76, C)
