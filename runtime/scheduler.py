"""Who is in flight: waiting requests, slots, and the plan of each tick. No device code, no arrays of latents.

`schedule()` gives the next tick as a value; `commit()` takes note that it ran. Which slots finish is known from their
schedules alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.batch import LaneBatch, Row, SlotStep, TickBatch
from runtime.config import Deployment
from runtime.request import NEUTRAL, Condition, Dcw, GenerationRequest, StepParameters, is_everywhere
from runtime.timesteps import schedule


@dataclass(slots=True)
class Slot:
    """A generation in flight: its seat in the lane of its length, where it is, and what its step needs.

    `kept` turns true once the negative velocity that guidance mode "initialize" keeps has been computed.
    """

    request: GenerationRequest
    seat: int
    times: NDArray[np.float32]
    parameters: StepParameters
    features: frozenset[str]
    row_features: frozenset[str]
    step: int = 0
    kept: bool = False

    @property
    def steps(self) -> int:
        """K, the number of steps of the whole generation."""
        return len(self.times) - 1

    @property
    def frames(self) -> int:
        """T."""
        return self.request.frames

    @property
    def is_guided(self) -> bool:
        """Whether guidance changes this slot's velocity."""
        return "guidance" in self.features


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """Which rows a lane has, and per slot which are its own: the same object as long as nobody comes, goes or
    changes."""

    rows: tuple[Row, ...]
    executes: tuple[tuple[int, int, int], ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...]
    features: frozenset[str]
    row_features: frozenset[str]


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
    _layouts: dict[int, tuple[list[Any], list[Slot], LaneLayout]] = field(default_factory=dict)

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
        """A slot at step 0 on the lowest free seat of its lane."""
        taken = {slot.seat for slot in self.lane(request.frames)}
        seat = next(seat for seat in range(self.depth) if seat not in taken)
        times = schedule(request.steps, shift=request.shift, denoise=request.denoise)
        slot = Slot(request, seat, times, NEUTRAL, frozenset(), frozenset())
        self.apply_parameters(slot)
        return slot

    def lane(self, frames: int) -> list[Slot]:
        """The slots of one length, in seat order."""
        return sorted((slot for slot in self.slots.values() if slot.frames == frames), key=lambda slot: slot.seat)

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
        """The next tick, lanes in order of their length."""
        lengths = sorted({slot.frames for slot in self.slots.values()})
        return TickBatch(self.tick, tuple(self._lane_batch(self.lane(frames)) for frames in lengths))

    def commit(self, batch: TickBatch) -> list[Slot]:
        """Every slot of the batch has taken its step; returns those whose last step it was, no longer in flight."""
        self.tick += 1
        finished = []
        for step in (step for lane in batch.lanes for step in lane.slots):
            slot = self.slots.get(step.request.id)
            if slot is None:
                continue
            slot.step += 1
            slot.kept = slot.kept or bool(step.negatives)
            if step.is_last:
                finished.append(self.slots.pop(step.request.id))
        return finished

    def remove(self, request_id: str) -> bool:
        """Take a request out, waiting or in flight; False where it is neither."""
        return self.waiting.remove(request_id) is not None or self.slots.pop(request_id, None) is not None

    def _lane_batch(self, slots: list[Slot]) -> LaneBatch:
        active = [(slot, active_conditions(slot), active_negatives(slot)) for slot in slots]
        key = [
            (id(slot), slot.features, slot.row_features, list(map(id, pos)), list(map(id, neg)))
            for slot, pos, neg in active
        ]
        known = self._layouts.get(slots[0].frames)
        if known is None or known[0] != key:
            known = self._layouts[slots[0].frames] = (key, slots, self._lay_out_lane(active))
        layout = known[2]
        steps = zip(slots, layout.positives, layout.negatives, strict=True)
        return LaneBatch(
            frames=slots[0].frames,
            seats=slots[-1].seat + 1,
            slots=tuple(_slot_step(slot, pos, neg) for slot, pos, neg in steps),
            rows=layout.rows,
            executes=layout.executes,
            features=layout.features,
            row_features=layout.row_features,
        )

    def _lay_out_lane(self, active: list[tuple[Slot, tuple[Condition, ...], tuple[Condition, ...]]]) -> LaneLayout:
        positives = [(slot, condition) for slot, conditions, _ in active for condition in conditions]
        negatives = [(slot, condition) for slot, _, conditions in active for condition in conditions]
        rows, executes = self._lay_out(positives, negatives)
        index = {(row.seat, id(row.condition), negative): i for i, (row, negative) in enumerate(rows)}
        blend = any(len(pos) > 1 or len(neg) > 1 for _, pos, neg in active)
        return LaneLayout(
            rows=tuple(row for row, _ in rows),
            executes=executes,
            positives=tuple(tuple(index[slot.seat, id(c), False] for c in pos) for slot, pos, _ in active),
            negatives=tuple(tuple(index[slot.seat, id(c), True] for c in neg) for slot, _, neg in active),
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
                rows += [(Row(slot.seat, condition, slot.request), negative) for slot, condition, negative in chunk]
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


TOKEN_MULTIPLE = 8


def active_conditions(slot: Slot) -> tuple[Condition, ...]:
    """The positive conditions of the slot's present step; the first one where none is active."""
    conditions = slot.request.conditions
    return tuple(c for c in conditions if c.active(slot.step, slot.steps)) or conditions[:1]


def active_negatives(slot: Slot) -> tuple[Condition, ...]:
    """The negative conditions to execute now: none without guidance or where a kept velocity stands in."""
    if not slot.is_guided or uses_kept(slot):
        return ()
    negatives = slot.request.negatives
    return tuple(c for c in negatives if c.active(slot.step, slot.steps)) or negatives[:1]


def uses_kept(slot: Slot) -> bool:
    """Residual guidance: the negative is the initial noise ("self"), or the velocity kept from before
    ("initialize")."""
    mode = slot.request.guidance_mode
    return slot.is_guided and (mode == "self" or (mode == "initialize" and slot.kept))


def step_features(request: GenerationRequest, parameters: StepParameters) -> frozenset[str]:
    """What the step graph must be able to do for this slot ("blend" depends on the step and is added per tick)."""
    can_guide = bool(request.negatives) or request.guidance_mode == "self"
    is_guided = can_guide and not _is(parameters.guidance, 1.0)
    is_sde = request.solver == "sde" or (parameters.sde_curve is not None and request.source is not None)
    has_target = request.target is not None and (
        request.target.curve is not None or not _is(parameters.x0_strength, 0.0)
    )
    used = {
        "guidance": is_guided,
        "rcfg": is_guided and request.guidance_mode != "full",
        "mask": request.mask is not None,
        "target": has_target,
        "sde": is_sde,
        "ode_noise": not is_sde and not _is(parameters.ode_noise, 0.0),
        "dcw": has_dcw(parameters.dcw),
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def row_features(request: GenerationRequest, parameters: StepParameters) -> frozenset[str]:
    """What must happen to this slot's latents before the decoder sees them."""
    used = {"mask": request.mask is not None, "gain": not _is(parameters.channel_gain, 1.0)}
    return frozenset(name for name, is_used in used.items() if is_used)


def has_dcw(dcw: Dcw | None) -> bool:
    """Whether a correction corrects anything."""
    return dcw is not None and not (
        is_everywhere(dcw.low, 0.0) and (dcw.mode != "double" or is_everywhere(dcw.high, 0.0))
    )


def fit(parameters: StepParameters, frames: int) -> StepParameters:
    """The same parameters with every curve at T = `frames`, interpolated linearly where it has another length."""
    changes: dict[str, Any] = {}
    for name, value in vars(parameters).items():
        if isinstance(value, np.ndarray) and len(value) != frames and name != "channel_gain":
            changes[name] = resample(value, frames)
    if parameters.dcw is not None:
        changes["dcw"] = Dcw(parameters.dcw.mode, _fit(parameters.dcw.low, frames), _fit(parameters.dcw.high, frames))
    gain = parameters.channel_gain
    if isinstance(gain, np.ndarray) and gain.ndim == 2 and len(gain) != frames:
        changes["channel_gain"] = np.stack([resample(column, frames) for column in gain.T], axis=1)
    return StepParameters(**{**vars(parameters), **changes}) if changes else parameters


def resample(values: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """A curve of any length, interpolated linearly at half-pixel centres to `frames` values; ends held."""
    positions = (np.arange(frames) + 0.5) * (len(values) / frames) - 0.5
    values_at: NDArray[np.float32] = np.interp(positions, np.arange(len(values)), values).astype(np.float32)
    return values_at


def _fit(value: float | NDArray[np.float32], frames: int) -> float | NDArray[np.float32]:
    return resample(value, frames) if isinstance(value, np.ndarray) and len(value) != frames else value


def _is(value: Any, number: float) -> bool:
    return value is None or is_everywhere(value, number)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _slot_step(slot: Slot, positives: tuple[int, ...], negatives: tuple[int, ...]) -> SlotStep:
    return SlotStep(
        seat=slot.seat,
        request=slot.request,
        step=slot.step,
        steps=slot.steps,
        time=float(slot.times[slot.step]),
        next_time=float(slot.times[slot.step + 1]),
        positives=positives,
        negatives=negatives,
        use_kept=uses_kept(slot),
    )
