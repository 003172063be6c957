"""The decoder's batch: what each execute reads, and which rows are written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.generations import CONDITIONS, GUIDED, C, D, X, make, rand
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.devices.device import ALIGNMENT_BYTES, HostDevice, Stream, Tensor
from runtime.devices.memory import PackedVectors
from runtime.requests.request import Condition, StepParameters
from runtime.tick.denoise.prepared import prepare, resolve
from runtime.tick.denoise.row_buffers import ALIGNED, RowBuffers, row_multiple
from runtime.tick.denoise.row_layout import LayoutRules, LiveSlot, RowLayout
from runtime.tick.loop.tick_loop import TickLoop
from runtime.tick.runner import TickContext
from runtime.tick.scheduling.slot import Slot

FRAMES, CAPACITY = 16, 8


class CountingDevice(HostDevice):
    """Counts uploads and copies on the device."""

    num_uploads = num_copies = 0

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        self.num_uploads += 1
        super().upload(target, source, stream)

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        self.num_copies += 1
        super().copy(target, source, stream)


class Batch:
    """Row buffers on the host for a tiny decoder, laid out with at most `max_rows` per execute."""

    def __init__(self, loop: TickLoop) -> None:
        self.device, self.loop = CountingDevice(), loop
        self.vectors = PackedVectors(self.device, CAPACITY * ALIGNMENT_BYTES)
        self.rows = RowBuffers(
            TickContext(self.device, self.device.main, loop.engines, loop.bundle, loop.deployment),
            self.vectors,
            self.vectors.take(CAPACITY * ALIGNED, np.float32),
            frames=FRAMES,
            capacity=CAPACITY,
        )

    def lay_out(self, *live: LiveSlot, previous: RowLayout | None = None) -> RowLayout:
        layout = LayoutRules(self.loop.deployment, True, 1).lay_out(FRAMES, live, previous)
        self.device.num_uploads = self.device.num_copies = 0
        self.rows.lay_out(layout)
        return layout

    def tensors(self, layout: RowLayout) -> list[dict[str, NDArray[Any]]]:
        """By role, what each execute reads."""
        roles = self.loop.bundle.decoder.inputs
        names = {getattr(roles, role): role for role in ("latents", "time", "condition", "condition_mask", "context")}
        found = []
        for execute in layout.executes:
            bound = self.rows.decoder_tensors(*execute, self.rows.hidden_states)
            assert all(tensor.address % ALIGNMENT_BYTES == 0 for tensor in bound.values())
            found.append({names[name]: tensor.host for name, tensor in bound.items() if tensor.host is not None})
        return found


def live(index: int, **changes: Any) -> LiveSlot:
    request = make(f"{index}", FRAMES, **changes)
    work = prepare(request, resolve(request, StepParameters()), C)
    return LiveSlot(Slot(request.id, None, work, FRAMES, request.steps, index=index), work, False)


@pytest.fixture
def batch(loops: Loops) -> Batch:
    return Batch(loops(max_rows=3))


def test_conditions_are_padded_and_masked_and_contexts_are_those_of_their_slots(batch: Batch) -> None:
    contexts = [np.full((FRAMES, X), index, np.float32) for index in range(2)]
    slots = [live(index, conditions=(CONDITIONS[index + 1],), context=contexts[index]) for index in range(2)]
    (reads,) = batch.tensors(batch.lay_out(*slots))
    tokens = reads["condition"].shape[1]
    assert reads["condition"].shape == (2, tokens, D)
    for index in range(2):
        values = CONDITIONS[index + 1].tokens
        np.testing.assert_array_equal(reads["condition"][index, : len(values)], values)
        assert (reads["condition"][index, len(values) :] == 0).all()
        assert reads["condition_mask"][index].tolist() == [1] * len(values) + [0] * (tokens - len(values))
        np.testing.assert_array_equal(reads["context"][index], contexts[index])


def test_the_mask_says_how_often_a_token_counts(batch: Batch) -> None:
    """Also where the same tokens count otherwise."""
    tokens, counts = rand(3, D), np.array([1, 5, 2], np.float32)
    slots = [live(index, conditions=(Condition(tokens, counts=each),)) for index, each in enumerate((1.0, counts, 1.0))]
    (reads,) = batch.tensors(batch.lay_out(*slots))
    for mask, each in zip(reads["condition_mask"], ([1, 1, 1], [1, 5, 2], [1, 1, 1]), strict=True):
        assert mask.tolist() == [*each, *[0] * (len(mask) - 3)]


def test_times_and_slots_follow_the_rows(batch: Batch) -> None:
    layout = batch.lay_out(live(0, **GUIDED), live(2, **GUIDED))
    assert len(layout.executes) == 2
    batch.rows.set_numbers([(0.9,), (0.0,), (0.3,)])
    times = np.concatenate([reads["time"] for reads in batch.tensors(layout)])
    np.testing.assert_allclose(times, [[0.9, 0.0, 0.3][row.slot_index] for row in layout.rows])
    assert batch.rows.row_slots.host[: len(layout.rows)].tolist() == [row.slot_index for row in layout.rows]


TABLE_OF_SLOTS = 1


def check_reads(batch: Batch, layout: RowLayout, *slots: LiveSlot) -> None:
    """The only execute reads the conditions and contexts of these slots, in their order."""
    (reads,) = batch.tensors(layout)
    for slot, condition, mask, context in zip(
        slots, reads["condition"], reads["condition_mask"], reads["context"], strict=True
    ):
        request = slot.work.request
        values = request.conditions[0].tokens
        np.testing.assert_array_equal(condition[: len(values)], values)
        assert (condition[len(values) :] == 0).all()
        assert mask.tolist() == [1] * len(values) + [0] * (len(mask) - len(values))
        np.testing.assert_array_equal(context, request.context)


def own(index: int, tokens: int = 3) -> LiveSlot:
    """A slot with a condition and a context of its own."""
    return live(index, conditions=(Condition(rand(tokens, D)),), context=rand(FRAMES, X))


def test_only_rows_that_changed_are_written(batch: Batch) -> None:
    one, two = own(0), own(1)
    first = batch.lay_out(one, two)
    batch.lay_out(one, two, previous=first)
    assert (batch.device.num_uploads, batch.device.num_copies) == (TABLE_OF_SLOTS, 0)
    other = own(1, tokens=5)
    layout = batch.lay_out(one, other, previous=first)
    condition_padding_mask_context = 4
    assert (batch.device.num_uploads, batch.device.num_copies) == (TABLE_OF_SLOTS + condition_padding_mask_context, 0)
    check_reads(batch, layout, one, other)


def test_a_row_that_moves_into_a_free_place_is_copied_on_the_device(batch: Batch) -> None:
    first, leaves, last = own(0), own(1), own(2)
    before = batch.lay_out(first, leaves, last)
    layout = batch.lay_out(first, last, previous=before)
    condition_mask_context = 3
    assert (batch.device.num_uploads, batch.device.num_copies) == (TABLE_OF_SLOTS, condition_mask_context)
    check_reads(batch, layout, first, last)


def test_rows_of_one_generation_share_an_upload_of_its_context(batch: Batch) -> None:
    batch.lay_out(live(0, **GUIDED))
    conditions_padding_masks, context = 2 * 3, 1
    assert batch.device.num_uploads == TABLE_OF_SLOTS + conditions_padding_masks + context
    assert batch.device.num_copies == 1


def test_a_context_stays_where_another_condition_needs_more_tokens(batch: Batch) -> None:
    one, two, longer = own(0), own(1), own(1, tokens=12)
    first = batch.lay_out(one, two)
    layout = batch.lay_out(one, longer, previous=first)
    assert layout.executes[0].tokens > first.executes[0].tokens
    conditions_padding_masks, context = 2 * 3, 1
    assert batch.device.num_uploads == TABLE_OF_SLOTS + conditions_padding_masks + context
    check_reads(batch, layout, one, longer)


def test_a_row_behind_the_batch_is_written_again_where_other_tokens_lay_over_it(batch: Batch) -> None:
    slots = [own(index) for index in range(3)]
    batch.lay_out(*slots)
    batch.lay_out(slots[0], own(1, tokens=12))
    check_reads(batch, batch.lay_out(*slots), *slots)


def test_a_row_is_written_again_where_its_execute_begins_elsewhere(batch: Batch) -> None:
    slots = [live(index, conditions=(CONDITIONS[index % 4],)) for index in range(5)]
    batch.lay_out(*slots)
    layout = batch.lay_out(*slots[2:])
    (reads,) = batch.tensors(layout)
    for index, condition in enumerate((CONDITIONS[2], CONDITIONS[3], CONDITIONS[0])):
        values = condition.tokens
        np.testing.assert_array_equal(reads["condition"][index, : len(values)], values)
        assert (reads["condition"][index, len(values) :] == 0).all()


@given(st.integers(1, 2000), st.integers(1, 200))
def test_executes_begin_where_their_latents_are_aligned(frames: int, channels: int) -> None:
    multiple = row_multiple(frames, channels)
    assert multiple * frames * channels * 4 % ALIGNMENT_BYTES == 0
    assert all(rows * frames * channels * 4 % ALIGNMENT_BYTES for rows in range(1, multiple))
