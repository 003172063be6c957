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
from runtime.pipeline.generation import Extension, next_request, run, run_audio, seed_of
from runtime.pipeline.pipeline import Studio, open_studio
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.segments import plan
from runtime.tick.events import Event, Finished, Started
from runtime.tick.record import TickRecord

SPEC = TinySpec()
T, C, KEEP = SPEC.canvas_frames, SPEC.channels, SPEC.overlap_frames
LONG_S = 3.0  # 76 frames: three stretches


@pytest.fixture(scope="module")
def studio(built: Built) -> Iterator[Studio]:
    with open_studio(built()) as opened:
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


def whole(studio: Studio, extension: Extension) -> NDArray[np.float32]:
    return np.concatenate(list(run(studio, extension)))


def test_seeds_of_later_stretches_are_others_and_always_the_same() -> None:
    seeds = [seed_of(7, index) for index in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [seed_of(7, index) for index in range(100)]
    assert seed_of(8, 1) != seed_of(7, 1)


def test_requests_keep_the_tail_and_generate_the_rest(studio: Studio) -> None:
    extension = Extension(studio, options())
    assert (extension.total_frames, extension.total_samples, extension.stretches) == (76, 24_000, 3)
    parts, masks, seeds = [], [], []
    for index in range(3):
        request = extension.next_request()
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
        parts.append(extension.take(made))
    assert masks == [KEEP, 12]
    assert seeds == [seed_of(1, index) for index in range(3)]
    assert sum(len(part) for part in parts) == 76
    assert extension.next_request() is None


def test_a_long_generation_is_whole_and_repeatable(studio: Studio) -> None:
    first = whole(studio, Extension(studio, options()))
    assert first.shape == (76, C)
    assert np.isfinite(first).all()
    assert np.array_equal(first, whole(studio, Extension(studio, options())))
    assert np.abs(first - whole(studio, Extension(studio, options(seed=2)))).max() > 0.01


def test_the_beginning_does_not_depend_on_the_length(studio: Studio) -> None:
    long, short = whole(studio, Extension(studio, options())), whole(studio, Extension(studio, options(seconds=1.28)))
    assert np.array_equal(long[:T], short)


def test_a_seed_is_drawn_once_for_the_whole(studio: Studio) -> None:
    extension = Extension(studio, options(seed=None))
    request = extension.next_request()
    assert request is not None
    assert request.seed == extension.seed
    assert len({Extension(studio, options(seed=None)).seed for _ in range(4)}) > 1


@pytest.mark.parametrize("window", [1, 7, 200])
def test_audio_across_stretches_equals_the_full_decode(studio: Studio, window: int) -> None:
    assert studio.codec is not None
    extension = Extension(studio, options(seconds=2.99))
    heard = np.concatenate(list(run_audio(studio, extension, window_frames=window)))
    full = studio.codec.decode(whole(studio, Extension(studio, options(seconds=2.99))))
    assert len(heard) == round(2.99 * SPEC.sample_rate_hz) < len(full)
    assert np.abs(heard - full[: len(heard)]).max() < 1e-5


def test_a_long_source_is_cut_per_stretch(studio: Studio) -> None:
    source = latents(76)
    extension = Extension(studio, options(seconds=None), source=source)
    assert extension.total_frames == 76
    for stretch in plan(76, T, KEEP):
        request = extension.next_request()
        assert request is not None
        assert np.array_equal(request.source, source[stretch.start_frame : stretch.end_frame])
        extension.take(latents(T))


def test_repaint_of_a_long_source_keeps_the_rest_to_the_bit(studio: Studio) -> None:
    source = latents(76)
    result = whole(
        studio, Extension(studio, options(seconds=None, repaint=[{"start_s": 1.0, "end_s": 2.0}]), source=source)
    )
    assert np.array_equal(result[:25], source[:25])
    assert np.array_equal(result[50:], source[50:])
    assert np.abs(result[25:50] - source[25:50]).max() > 0.01


def test_going_on_from_a_source(studio: Studio) -> None:
    source = latents(20)
    extension = Extension(studio, options(repaint=[{"start_s": 0.8, "end_s": LONG_S}]), source=source)
    result = whole(studio, extension)
    assert result.shape == (76, C)
    assert np.array_equal(result[:20], source)
    assert np.abs(np.diff(result[20:], axis=0)).max(axis=1).min() > 0.0


def test_curves_run_over_the_whole(studio: Studio) -> None:
    extension = Extension(studio, options(velocity_scale=[0.0, 1.0]))
    whole_curve = np.linspace(0.0, 1.0, 76)
    for stretch in plan(76, T, KEEP):
        request = extension.next_request()
        assert request is not None
        expected = whole_curve[stretch.start_frame : stretch.end_frame]
        assert np.allclose(request.parameters.velocity_scale, expected, atol=1e-6)
        extension.take(latents(T))


def test_options_may_change_between_stretches(studio: Studio) -> None:
    extension = Extension(studio, options(seconds=None), endless=True)
    assert (extension.total_frames, extension.total_samples, extension.stretches) == (None, None, None)
    extension.take(latents(T))
    extension.options = options(prompt="b", steps=2)
    request = extension.next_request()
    assert request is not None
    assert studio.conditioner is not None
    assert np.array_equal(request.conditions[0].tokens, studio.conditioner.encode("b"))
    assert request.steps == 2
    for index in range(5):
        assert extension.take(latents(T, index)).shape == (T - KEEP, C)
    assert extension.done_frames == T + 5 * (T - KEEP)


def test_one_stretch_by_hand_has_the_seed_of_its_place(studio: Studio) -> None:
    for index, stretch in enumerate(plan(76, T, KEEP)):
        request = next_request(studio, options(), stretch, latents(T))
        assert request.seed == seed_of(1, index)


def test_wrong_latents_are_refused(studio: Studio) -> None:
    extension = Extension(studio, options(seconds=1.0))
    with pytest.raises(ShapeError, match="got 3 frames of latents, expected 32 frames"):
        extension.take(latents(3))
    extension.take(latents(32))
    with pytest.raises(ShapeError, match="all is done"):
        extension.take(latents(32))


def test_what_was_generated_beyond_the_end_is_not_given_out(studio: Studio) -> None:
    extension = Extension(studio, options(seconds=0.5))
    request = extension.next_request()
    assert request is not None
    assert (extension.total_frames, request.frames) == (14, 16)
    made = latents(16)
    assert np.array_equal(extension.take(made), made[:14])
    assert extension.next_request() is None


@pytest.mark.parametrize("seconds", [0.1, 1.28, 1.3, 2.24, 2.25, 3.0, 20.0])
def test_the_number_of_stretches_is_known(studio: Studio, seconds: float) -> None:
    extension = Extension(studio, options(seconds=seconds))
    count = 0
    while (request := extension.next_request()) is not None:
        extension.take(latents(request.frames))
        count += 1
    assert extension.stretches == count


@contextmanager
def second_stretch_in_flight(
    studio: Studio, extension: Extension
) -> Iterator[tuple[Generator[NDArray[np.float32], None, None], list[Event]]]:
    """The pieces of a generation after its first, while the tick thread stands still in the second stretch."""
    go_on = threading.Event()
    go_on.set()
    events: list[Event] = []

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, Finished):
            go_on.clear()

    def stand_still(record: TickRecord) -> None:
        go_on.wait(60.0)

    studio.loop.observers.append(stand_still)
    pieces = run(studio, extension, note)
    try:
        next(pieces)
        yield pieces, events
    finally:
        go_on.set()
        studio.loop.observers.remove(stand_still)


def test_the_next_stretch_is_in_flight_while_the_last_one_is_used(studio: Studio) -> None:
    with second_stretch_in_flight(studio, Extension(studio, options())) as (pieces, events):
        assert eventually(lambda: studio.loop.stats().slots_active == 1)
        assert sum(isinstance(event, Finished) for event in events) == 1
    pieces.close()


def test_every_stretch_starts_and_finishes_once(studio: Studio) -> None:
    events: list[Event] = []
    assert len(list(run(studio, Extension(studio, options()), events.append))) == 3
    assert [type(event) for event in events if isinstance(event, (Started, Finished))] == [Started, Finished] * 3


def test_leaving_early_cancels_what_is_in_flight(studio: Studio) -> None:
    before = studio.loop.stats().outcomes
    with second_stretch_in_flight(studio, Extension(studio, options())) as (pieces, _):
        pieces.close()
    assert eventually(lambda: studio.loop.stats().outcomes["cancelled"] == before["cancelled"] + 1)
    assert studio.loop.stats().outcomes["ok"] == before["ok"] + 1
    assert studio.loop.stats().slots_active == 0


def test_refusals_reach_the_caller(studio: Studio, built: Built) -> None:
    with pytest.raises(RequestError, match="needs a source"):
        next(run(studio, Extension(studio, options(denoise=0.5))))
    deployment = built()
    none_free = deployment.runtime.model_copy(update={"depth": 1, "queue": 0})
    with open_studio(deployment.model_copy(update={"runtime": none_free})) as small:
        with (
            second_stretch_in_flight(small, Extension(small, options())) as (pieces, _),
            pytest.raises(QueueFullError),
        ):
            next(run(small, Extension(small, options())))
        pieces.close()


def test_a_decoder_without_context_is_extended_by_the_mask_alone(built: Built) -> None:
    with open_studio(built(context=False)) as studio:
        assert studio.overlap_frames == T // 4
        extension = Extension(studio, options())
        first = extension.take(latents(T))
        request = extension.next_request()
        assert request is not None
        assert request.context is None
        assert request.mask is not None
        assert np.array_equal(request.mask.original[: T // 4], first[-T // 4 :])
        assert whole(studio, Extension(studio, options())).shape == (76, C)
