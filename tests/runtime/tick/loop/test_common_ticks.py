"""The common ticks: which there are, and that their generations make every one of them until it replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import Built, Loops, resized
from helpers.backends import SIMULATED, Backend
from helpers.generations import GUIDED, Inbox, make, run_all

from runtime.config.bundle import load_bundle
from runtime.config.deployment import GPU_TOKEN_MULTIPLE, Deployment, ShapeRange
from runtime.tick.loop.common_ticks import TICKS_PER_SHAPE, common_ticks
from runtime.tick.loop.tick_loop import TickLoop


def with_tokens(deployment: Deployment, most: int, **runtime: int) -> Deployment:
    """The deployment on TensorRT, with a range of tokens."""
    (shape,) = deployment.shapes
    shape = shape.model_copy(update={"tokens": ShapeRange(min=1, opt=8, max=most)})
    changed = deployment.runtime.model_copy(update=runtime)
    return deployment.model_copy(update={"shapes": (shape,), "target": "tensorrt", "runtime": changed})


def test_there_are_three_token_buckets_of_every_length_within_the_engines_range(built: Built) -> None:
    bundle, requests = load_bundle(built().bundle), [make("a", 32), make("b", 16)]
    found = common_ticks(requests, bundle, with_tokens(built(), 200))
    assert [(ticks.request.frames, ticks.tokens) for ticks in found] == [
        (frames, tokens) for frames in (32, 16) for tokens in (GPU_TOKEN_MULTIPLE, 2 * GPU_TOKEN_MULTIPLE, 200)
    ]
    few = common_ticks(requests, bundle, with_tokens(built(), 200, captured_graphs=16, depth=4))
    assert [ticks.tokens for ticks in few] == [GPU_TOKEN_MULTIPLE, 2 * GPU_TOKEN_MULTIPLE]


def test_without_a_condition_mask_tokens_are_those_of_the_generation(built: Built) -> None:
    bundle = load_bundle(built(mask=False).bundle)
    (found,) = common_ticks([make("a", 32)], bundle, with_tokens(built(mask=False), 200))
    assert found.tokens == len(make("a", 32).conditions[0].tokens)


def test_there_are_none_where_nothing_is_captured(built: Built) -> None:
    bundle, on_gpu = load_bundle(built().bundle), with_tokens(built(), 32)
    off = on_gpu.model_copy(update={"runtime": on_gpu.runtime.model_copy(update={"capture": False})})
    for deployment in (built(), off, on_gpu.model_copy(update={"target": "cuda"})):
        assert common_ticks([make("a")], bundle, deployment) == []
    compiling = off.model_copy(update={"target": "tensorrt-rtx"})
    assert len(common_ticks([make("a")], bundle, compiling)) == 1, "their kernels are compiled"


def test_every_number_of_generations_has_its_ticks(built: Built) -> None:
    request = make("a", **GUIDED)
    (common,) = common_ticks([request], load_bundle(built().bundle), with_tokens(built(), 32, depth=3))
    generations = common.generations()
    assert [one.steps for one in generations] == [3 * TICKS_PER_SHAPE, 2 * TICKS_PER_SHAPE, TICKS_PER_SHAPE]
    assert {one.conditions[0].tokens.shape for one in generations} == {(32, 12)}
    np.testing.assert_array_equal(generations[0].conditions[0].tokens[:3], request.conditions[0].tokens)
    assert {one.negatives for one in generations} == {request.negatives}
    assert len({one.id for one in generations} | {request.id}) == 4
    assert len(replace(common, depth=64).generations()) == 200 // TICKS_PER_SHAPE


@pytest.fixture
def backend() -> Backend:
    return SIMULATED[0]


@pytest.fixture
def loop(loops: Loops, built: Built, backend: Backend) -> TickLoop:
    return loops(resized(built(max_rows=16, backend=backend), 3, 8))


def come_and_go(loop: TickLoop) -> list[int]:
    """Per tick, how many launches did not replay, while one to three generations are in flight."""
    not_replayed, inbox = [], Inbox()
    for index in range(6):
        loop.submit(make(f"{index}", steps=4 + index % 3), inbox)
        for _ in range(2):
            record = loop.tick()
            assert record is not None
            not_replayed.append(len(record.frames) - record.replayed + record.captured)
    while loop.tick() is not None:
        pass
    return not_replayed


def test_after_the_common_ticks_every_tick_replays(loop: TickLoop) -> None:
    common = common_ticks([make("a")], loop.bundle, loop.deployment)
    for ticks in common:
        run_all(loop, *ticks.generations())
    assert sum(come_and_go(loop)) == 0


def test_without_them_the_first_ticks_do_not(loop: TickLoop) -> None:
    """What the test above would see."""
    assert sum(come_and_go(loop)) > 6
