"""The step graph's tables say which rows are whose, and every input of the graph is bound to memory that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.live_slots import CHANNELS, FRAMES, condition, deployment, guided, live_slot
from numpy.typing import NDArray

from runtime.devices.device import HostDevice, Tensor
from runtime.devices.memory import PackedVectors
from runtime.tick.denoise.row_layout import LayoutRules, LiveSlot, RowLayout
from runtime.tick.denoise.slot_fields import STEP_FEATURES, step_inputs, written_states
from runtime.tick.denoise.slot_state import SlotState, vectors_bytes
from runtime.tick.denoise.step_binding import StepBinding

SLOTS = 4
Bound = Mapping[str, Tensor]


@dataclass
class NamingEngine:
    """Binds nothing: its execution is the mapping of tensors."""

    features: frozenset[str]

    @property
    def inputs(self) -> list[str]:
        return [tensor.name for tensor in step_inputs(self.features)]

    @property
    def outputs(self) -> list[str]:
        return [f"next_{name}" for name in written_states(self.features)] + ["finite"]

    def bind(self, tensors: Bound) -> Bound:
        return tensors


class Step:
    """A step binding on the host, with the state it reads."""

    def __init__(self) -> None:
        self.device = HostDevice()
        vectors = PackedVectors(self.device, vectors_bytes(SLOTS, 0))
        self.state = SlotState(
            self.device, self.device.main, vectors, slot_count=SLOTS, frames=FRAMES, channels=CHANNELS
        )
        self.binding = StepBinding(self.device, self.device.main, self.state, 3)

    def bind(self, *live: LiveSlot, features: frozenset[str] = frozenset()) -> tuple[RowLayout, Bound]:
        layout = LayoutRules(deployment(32), True, 1).lay_out(FRAMES, live)
        self.binding.write(layout, blends="blend" in features)
        latents = self.state.double_buffer("latents").current.view(layout.slot_count, FRAMES, CHANNELS)
        velocity = self.device.zeros((len(layout.rows), FRAMES, CHANNELS), np.float32)
        engine: Any = NamingEngine(features)
        tensors: Any = self.binding.bind(engine, layout, latents, velocity)
        return layout, tensors


def values(tensors: Bound, name: str) -> NDArray[Any]:
    found = tensors[name].host
    assert found is not None
    return found


@pytest.fixture
def step() -> Step:
    return Step()


def test_a_slot_without_negatives_has_its_positive_row_in_their_place(step: Step) -> None:
    _, bound = step.bind(live_slot(0, **guided()), live_slot(2), features=frozenset({"guidance"}))
    assert values(bound, "positive_rows").tolist() == [[0], [0], [1]]
    assert values(bound, "negative_rows").tolist() == [[2], [0], [1]]


def test_a_slot_with_fewer_conditions_repeats_its_first_row_with_weight_zero(step: Step) -> None:
    curve = np.linspace(0, 1, FRAMES)
    blended = live_slot(0, conditions=(condition(weight=curve), condition(weight=0.25)))
    layout, bound = step.bind(blended, live_slot(1, conditions=(condition(weight=0.5),)), features=frozenset({"blend"}))
    assert layout.widths == (2, 1)
    assert values(bound, "positive_rows").tolist() == [[0, 1], [2, 2]]
    weights = values(bound, "positive_weights")
    np.testing.assert_allclose(weights[0], [curve, np.full(FRAMES, 0.25)], rtol=1e-6)
    assert weights[1].tolist() == [[1.0] * FRAMES, [0.0] * FRAMES]


def test_weights_of_an_earlier_layout_are_gone(step: Step) -> None:
    features = frozenset({"blend"})
    step.bind(live_slot(0, conditions=(condition(), condition(), condition())), features=features)
    _, bound = step.bind(live_slot(0), live_slot(1, conditions=(condition(), condition())), features=features)
    assert values(bound, "positive_weights")[:, :, 0].tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_only_weights_of_slots_with_other_conditions_are_written(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[tuple[int, ...]] = []
    upload = step.device.upload
    monkeypatch.setattr(
        step.device, "upload", lambda target, *rest: (uploaded.append(target.shape), upload(target, *rest))[1]
    )
    features, row = frozenset({"blend"}), (2 * FRAMES,)
    stays, leaves, joins = (live_slot(index, conditions=(condition(), condition(weight=0.5))) for index in (0, 1, 1))
    step.bind(stays, leaves, features=features)
    assert uploaded.count(row) == 2
    uploaded.clear()
    _, bound = step.bind(stays, joins, features=features)
    assert uploaded.count(row) == 1
    assert values(bound, "positive_weights")[:, :, 0].tolist() == [[1.0, 0.5], [1.0, 0.5]]


@pytest.mark.parametrize("features", [frozenset(), frozenset({"guidance"}), STEP_FEATURES - {"blend"}, STEP_FEATURES])
def test_every_tensor_of_the_graph_is_bound_in_its_shape(features: frozenset[str], step: Step) -> None:
    layout, bound = step.bind(live_slot(0, **guided()), live_slot(1), features=features)
    sizes = {"S": 2, "R": len(layout.rows), "T": FRAMES, "C": CHANNELS, "K": 1, "N": 1, "B": FRAMES // 2, "1": 1}
    for tensor in step_inputs(features):
        assert bound[tensor.name].shape == tuple(sizes[letter] for letter in tensor.letters), tensor.name
        assert bound[tensor.name].dtype == tensor.dtype, tensor.name
    names = {tensor.name for tensor in step_inputs(features)}
    assert bound.keys() == names | {f"next_{name}" for name in written_states(features)} | {"finite"}


def test_states_are_read_on_one_side_and_written_on_the_other(step: Step) -> None:
    features = frozenset({"guidance", "rcfg"})
    _, bound = step.bind(live_slot(0, **guided()), features=features)
    for name in written_states(features):
        buffer = step.state.double_buffer(name)
        assert (bound[name].address, bound[f"next_{name}"].address) == (buffer.current.address, buffer.other.address)


def test_flags_stay_as_they_are_for_as_many_ticks_as_are_kept(step: Step) -> None:
    _, bound = step.bind(live_slot(0), live_slot(1))
    seen = []
    for tick in range(3):
        values(bound, "finite")[...] = [True, tick == 1]
        seen.append(step.binding.finite(2))
    assert [flags.tolist() for flags in seen] == [[True, False], [True, True], [True, False]]
