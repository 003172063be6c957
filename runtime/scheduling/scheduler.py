"""Who is in flight: waiting requests, slots, and the plan of each tick. No device code, no arrays of latents.

`schedule()` gives the next tick as a value; `commit()` takes note that it ran. Which slots finish is known from their
schedules alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from runtime.config.deployment import Deployment
from runtime.denoise.row_layout import (
    TOKEN_MULTIPLE,
    RowLayout,
    _slot_step,
    _union,
    active_conditions,
    active_negatives,
)
from runtime.requests.request import NEUTRAL, Condition, GenerationRequest, StepParameters, fit
from runtime.requests.timesteps import schedule
from runtime.scheduling.batch import BucketBatch, Row, TickBatch
from runtime.scheduling.slot import Slot, row_features, step_features


class WaitingLine:
    """First come, first served within a client; clients take turns."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[GenerationRequest]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[GenerationRequest]:
        return (request for line in self._lines.values() for request in line)

    def push(self, request: GenerationRequest) -> None:
        """Stand at the end of the client's line."""
        self._lines.setdefault(request.client, deque()).append(request)

    def pop(self) -> GenerationRequest:
        """The head of the line whose turn it is; that client's next turn comes after all others'."""
        client, line = self._lines.popitem(last=False)
        request = line.popleft()
        if line:
            self._lines[client] = line
        return request

    def remove(self, request_id: str) -> GenerationRequest | None:
        """Leave the line; None where the request does not wait."""
        found = next((request for request in self if request.id == request_id), None)
        if found is not None:
            line = self._lines[found.client]
            line.remove(found)
            if not line:
                del self._lines[found.client]
        return found


@dataclass
class Scheduler:
    """Admission and slots. `fold_tokens`: rows of unequal L may share an execute (the decoder has a mask).

    `row_multiple`: T -> at which rows an execute may begin.
    """

    deployment: Deployment
    fold_tokens: bool
    row_multiple: Callable[[int], int] = lambda frames: 1
    waiting: WaitingLine = field(default_factory=WaitingLine)
    slots: dict[str, Slot] = field(default_factory=dict)
    overrides: dict[str, StepParameters] = field(default_factory=dict)
    tick: int = 0
    _layouts: dict[int, tuple[list[Any], list[Slot], RowLayout]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Slots in all."""
        return self.deployment.runtime.depth

    def admit(self) -> list[Slot]:
        """Move waiting requests into free slots; returns the newly taken ones."""
        admitted = []
        while self.waiting and len(self.slots) < self.depth:
            slot = self.make_slot(self.waiting.pop())
            self.slots[slot.request.id] = slot
            admitted.append(slot)
        return admitted

    def make_slot(self, request: GenerationRequest) -> Slot:
        """A slot at step 0 on the lowest free slot_index of its bucket."""
        taken = {slot.slot_index for slot in self.bucket(request.frames)}
        slot_index = next(slot_index for slot_index in range(self.depth) if slot_index not in taken)
        times = schedule(request.steps, shift=request.shift, denoise=request.denoise)
        slot = Slot(request, slot_index, times, NEUTRAL, frozenset(), frozenset())
        self.apply_parameters(slot)
        return slot

    def bucket(self, frames: int) -> list[Slot]:
        """The slots of one length, in slot order."""
        return sorted((slot for slot in self.slots.values() if slot.frames == frames), key=lambda slot: slot.slot_index)

    def override(self, session: str, parameters: StepParameters | None) -> list[Slot]:
        """Set or take away a session's step parameters; returns its slots in flight."""
        if parameters is None:
            self.overrides.pop(session, None)
        else:
            self.overrides[session] = parameters
        affected = [slot for slot in self.slots.values() if slot.request.session == session]
        for slot in affected:
            self.apply_parameters(slot)
        return affected

    def apply_parameters(self, slot: Slot) -> None:
        """Resolve a slot's step parameters, session over request over neutral, and the features that they need."""
        override = self.overrides.get(slot.request.session, StepParameters())
        slot.parameters = fit(override, slot.frames).over(slot.request.parameters).over(NEUTRAL)
        slot.features = step_features(slot.request, slot.parameters)
        slot.row_features = row_features(slot.request, slot.parameters)

    def schedule(self) -> TickBatch:
        """The next tick, buckets in order of their length."""
        lengths = sorted({slot.frames for slot in self.slots.values()})
        return TickBatch(self.tick, tuple(self._bucket_batch(self.bucket(frames)) for frames in lengths))

    def commit(self, batch: TickBatch) -> list[Slot]:
        """Every slot of the batch has taken its step; returns those whose last step it was, no longer in flight."""
        self.tick += 1
        finished = []
        for step in (step for bucket in batch.buckets for step in bucket.slots):
            slot = self.slots.get(step.request.id)
            if slot is None:
                continue
            slot.step += 1
            slot.has_cached_negative = slot.has_cached_negative or bool(step.negatives)
            if step.is_last:
                finished.append(self.slots.pop(step.request.id))
        return finished

    def remove(self, request_id: str) -> bool:
        """Take a request out, waiting or in flight; False where it is neither."""
        return self.waiting.remove(request_id) is not None or self.slots.pop(request_id, None) is not None

    def _bucket_batch(self, slots: list[Slot]) -> BucketBatch:
        active = [(slot, active_conditions(slot), active_negatives(slot)) for slot in slots]
        key = [
            (id(slot), slot.features, slot.row_features, list(map(id, pos)), list(map(id, neg)))
            for slot, pos, neg in active
        ]
        known = self._layouts.get(slots[0].frames)
        if known is None or known[0] != key:
            known = self._layouts[slots[0].frames] = (key, slots, self._lay_out_bucket(active))
        layout = known[2]
        steps = zip(slots, layout.positives, layout.negatives, strict=True)
        return BucketBatch(
            frames=slots[0].frames,
            slot_count=slots[-1].slot_index + 1,
            slots=tuple(_slot_step(slot, pos, neg) for slot, pos, neg in steps),
            rows=layout.rows,
            executes=layout.executes,
            features=layout.features,
            row_features=layout.row_features,
        )

    def _lay_out_bucket(self, active: list[tuple[Slot, tuple[Condition, ...], tuple[Condition, ...]]]) -> RowLayout:
        positives = [(slot, condition) for slot, conditions, _ in active for condition in conditions]
        negatives = [(slot, condition) for slot, _, conditions in active for condition in conditions]
        rows, executes = self._lay_out(positives, negatives)
        index = {(row.slot_index, id(row.condition), negative): i for i, (row, negative) in enumerate(rows)}
        blend = any(len(pos) > 1 or len(neg) > 1 for _, pos, neg in active)
        return RowLayout(
            rows=tuple(row for row, _ in rows),
            executes=executes,
            positives=tuple(tuple(index[slot.slot_index, id(c), False] for c in pos) for slot, pos, _ in active),
            negatives=tuple(tuple(index[slot.slot_index, id(c), True] for c in neg) for slot, _, neg in active),
            features=_union(slot.features for slot, _, _ in active) | ({"blend"} if blend else set()),
            row_features=_union(slot.row_features for slot, _, _ in active),
        )

    def _lay_out(
        self, positives: list[tuple[Slot, Condition]], negatives: list[tuple[Slot, Condition]]
    ) -> tuple[list[tuple[Row, bool | None]], tuple[tuple[int, int, int], ...]]:
        """Rows in execution order (True marks a negative, None a spare one) and the executes over them."""
        fused = self.deployment.runtime.fused_guidance
        marked = [(*pair, False) for pair in positives] + [(*pair, True) for pair in negatives]
        passes = [marked] if fused else [marked[: len(positives)], marked[len(positives) :]]
        rows: list[tuple[Row, bool | None]] = []
        executes: list[tuple[int, int, int]] = []
        for group in (group for part in passes for group in self._groups(part)):
            tokens = self._padded(max(len(condition.tokens) for _, condition, _ in group))
            limit = self.deployment.rows_limit(group[0][0].frames, tokens)
            for begin in range(0, len(group), limit):
                chunk = group[begin : begin + limit]
                spare = -len(rows) % self.row_multiple(chunk[0][0].frames)
                rows += [(row, None) for row, _ in rows[-1:] * spare]
                executes.append((len(rows), len(rows) + len(chunk), tokens))
                rows += [
                    (Row(slot.slot_index, condition, slot.request), negative) for slot, condition, negative in chunk
                ]
        return rows, tuple(executes)

    def _groups(self, marked: list[tuple[Slot, Condition, bool]]) -> list[list[tuple[Slot, Condition, bool]]]:
        """Rows that may share an execute: all of them, or, without a condition mask, those of equal L."""
        if self.fold_tokens:
            return [marked] if marked else []
        lengths = sorted({len(condition.tokens) for _, condition, _ in marked})
        return [[item for item in marked if len(item[1].tokens) == length] for length in lengths]

    def _padded(self, tokens: int) -> int:
        """L of an execute: with a mask, rounded up so that few shapes occur; without one, exact."""
        if not self.fold_tokens:
            return tokens
        ranges = self.deployment.shapes
        rounded = max(-(-tokens // TOKEN_MULTIPLE) * TOKEN_MULTIPLE, min(shape.tokens.min for shape in ranges))
        return min(rounded, self.deployment.max_tokens)
