"""What executes of planner and sampler read and write: `steps` of them in a chain, with `width` tokens per row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.planner import PlannerGraphSpec, PlannerSpec
from runtime.devices.device import ALIGNMENT_BYTES, Device, Stream, Tensor
from runtime.devices.packed_vectors import PackedVectors, host_view
from runtime.engines.engine import Engine, Execution
from runtime.language.constraints import Constraint
from runtime.language.kv_cache import KvCache
from runtime.language.live_sequence import LiveSequence
from runtime.language.sequence import uniform

# Sampler inputs that a sequence keeps, with the value of a place without one.
PER_SEQUENCE = {"positive_row": 0, "negative_row": 0, "guidance": 1.0, "temperature": 1.0, "top_k": 1, "top_p": 1.0}
_INTEGERS = ("positive_row", "negative_row", "top_k")
_UNKNOWN = object()


class Vector:
    """A small vector on the device, and its host side for item assignments."""

    def __init__(self, vectors: PackedVectors, count: int, dtype: Any, value: float = 0) -> None:
        self.tensor, host = vectors.take(count, dtype)
        host[...] = value
        self.items = host_view(host)


def vectors_bytes(rows: int, widths: Sequence[tuple[int, int]], chunk: int) -> int:
    """What PackedVectors must hold for steps of these (width, steps), and prefills of `chunk` tokens by two graphs."""
    pieces = [rows] * (len(PER_SEQUENCE) + 1) + 2 * ([chunk] + [1] * 4)
    for width, steps in widths:
        pieces += [rows * width] * (2 + steps) + [rows] * (1 + 2 * steps)
    return sum(-(-8 * count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for count in pieces)


class SequenceVectors:
    """What does not change while a sequence lives: of each row its sequence, of each sequence rows and sampling."""

    def __init__(self, vectors: PackedVectors, spec: PlannerSpec, sequences: int) -> None:
        rows = 2 * sequences
        self._values = {
            name: Vector(vectors, sequences, np.int64 if name in _INTEGERS else np.float32, value)
            for name, value in PER_SEQUENCE.items()
        }
        self._row_sequence = Vector(vectors, rows, np.int64)

    def write(self, live: LiveSequence) -> None:
        """Set a sequence's values."""
        request, index = live.request, live.slot.index
        values = {
            "positive_row": live.rows[0],
            "negative_row": live.rows[-1],
            "guidance": request.guidance,
            "temperature": request.temperature or 1.0,
            "top_k": request.top_k if request.temperature else 1,
            "top_p": request.top_p,
        }
        for name, value in values.items():
            self._values[name].items[index] = value
        for row in live.rows:
            self._row_sequence.items[row] = index

    def rest(self, live: LiveSequence) -> None:
        """A place without a sequence draws from row 0, and its rows take those tokens."""
        for name, value in PER_SEQUENCE.items():
            self._values[name].items[live.slot.index] = value
        for row in live.rows:
            self._row_sequence.items[row] = 0

    def sampler_tensors(self, rows: int, sequences: int) -> dict[str, Tensor]:
        """Sampler input -> memory."""
        tensors = {name: vector.tensor.view(sequences) for name, vector in self._values.items()}
        return {**tensors, "row_sequence": self._row_sequence.tensor.view(rows)}


class StepBuffers:
    """A decode (width 1: every execute feeds what the one before has drawn) or a verify (one execute).

    draft: of the smaller graph, which draws from all tokens. `drawn[step][sequence * width + place]` are the tokens of
    the last launch on the host, `finite[step][sequence]` its flags, both valid once it is done.
    """

    def __init__(
        self, device: Device, vectors: PackedVectors, shared: SequenceVectors, spec: PlannerSpec, sequences: int, *,
        width: int, steps: int, draft: PlannerGraphSpec | None = None,
    ) -> None:  # fmt: skip
        self._graph = draft or spec
        self.width, self.steps, self._is_draft, self._shared, self._device = width, steps, bool(draft), shared, device
        rows, self._vocabulary, self._capacity = 2 * sequences, spec.vocabulary, self._graph.capacity
        self._tokens = Vector(vectors, rows * width, np.int64)
        self._pick = Vector(vectors, rows * width, np.int64)
        self._window = Vector(vectors, rows, np.int64, self._graph.window_input)
        self._positions = [Vector(vectors, rows, np.int64) for _ in range(steps)]
        self._writes = [Vector(vectors, rows, np.int64) for _ in range(steps)]
        self._uniforms = [Vector(vectors, sequences * width, np.float32) for _ in range(steps)]
        for place in range(rows * width):
            self._pick.items[place] = place % width
        self._fed = [self._tokens.tensor, *[device.zeros((rows * width,), np.int64) for _ in range(steps)]]
        self._logits = device.zeros((rows * width * spec.vocabulary,), np.float32)
        self._places = sequences * width
        self._allowed = device.zeros((steps * self._places, spec.vocabulary), np.bool_)
        self._allowed_host: NDArray[np.bool_] = device.mirror(self._allowed)
        self._allowed_keys: list[object] = [_UNKNOWN] * (steps * self._places)
        self._stride = -(-sequences * width // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._drawn = device.zeros((steps, self._stride), np.int64)
        self._finite = device.zeros((steps, self._stride), np.bool_)
        self.drawn = device.staging((steps, self._stride), np.int64)
        self.finite = device.staging((steps, self._stride), np.bool_)

    def bind(
        self, graph: Engine, sampler: Engine, cache: KvCache, rows: int, sequences: int, span: int
    ) -> list[Execution]:
        """Graph and sampler of every step, in order. Raises ShapeError, EngineError."""
        found = []
        for step in range(self.steps):
            found.append(self.bind_graph(graph, cache, rows, span, step))
            found.append(sampler.bind(self._sampler_tensors(step, rows, sequences)))
        return found

    @property
    def num_executes(self) -> int:
        """Executes of the graph."""
        return self.steps

    def bind_graph(self, graph: Engine, cache: KvCache, rows: int, span: int, step: int = 0) -> Execution:
        """The graph of one step. Raises ShapeError, EngineError."""
        return graph.bind(self._planner_tensors(step, rows) | cache.tensors(0, rows, span))

    def forget(self, index: int) -> None:
        """Another sequence takes this place: which tokens are allowed there is not known."""
        for step in range(self.steps):
            first = step * self._places + index * self.width
            self._allowed_keys[first : first + self.width] = [_UNKNOWN] * self.width

    def write(self, live: LiveSequence, stream: Stream) -> None:
        """Set what the next launch feeds and draws for a sequence; one that is not ready only keeps its rows alive.

        Where it draws more than it will take, the next tokens overwrite what this left in the cache.
        """
        for place, row in enumerate(live.rows):
            position, first = live.position(place), row * self.width
            for step in range(self.steps):
                self._positions[step].items[row] = position + step
                self._writes[step].items[row] = (position + step) % self._capacity
            self._tokens.items[first] = live.next_token(place)
            for offset in range(1, self.width):
                self._tokens.items[first + offset] = live.drafts[offset - 1] if offset <= len(live.drafts) else 0
        if live.is_ready:
            (self._write_chain if self.width == 1 else self._write_verify)(live, stream)

    def write_known(self, live: LiveSequence) -> None:
        """Feed the tokens before the newest one again: the cache may hold drafts there that were wrong."""
        for place, row in enumerate(live.rows):
            start = max(0, live.position(place) - self.width)
            start -= max(0, start % self._capacity + self.width - self._capacity)
            self._positions[0].items[row], self._writes[0].items[row] = start, start % self._capacity
            for offset, token in enumerate(live.known(place, start, self.width)):
                self._tokens.items[row * self.width + offset] = token

    def rest(self, live: LiveSequence) -> None:
        """Rows without a sequence work on their first positions."""
        for step in range(self.steps):
            for row in live.rows:
                self._positions[step].items[row] = self._writes[step].items[row] = 0

    def download(self, stream: Stream) -> None:
        """Begin to copy tokens and flags to the host."""
        self._device.download(self.drawn, self._drawn, stream)
        self._device.download(self.finite, self._finite, stream)

    def _write_chain(self, live: LiveSequence, stream: Stream) -> None:
        """What may come at every step, where any token that may comes before it; `keys` says what that was."""
        constraint = None if self._is_draft else copy.copy(live.constraint)
        live.keys = []
        for step in range(self.steps):
            allowed = self._write_choice(live, step, 0, constraint, stream)
            live.keys.append(None if constraint is None else constraint.key)
            if constraint is not None:
                constraint.advance(int(allowed.argmax()))
                if constraint.is_done:
                    return

    def _write_verify(self, live: LiveSequence, stream: Stream) -> None:
        """What may come behind every draft. One that may not come is dropped, with those behind it."""
        constraint = copy.copy(live.constraint)
        for place in range(self.width):
            allowed = self._write_choice(live, 0, place, constraint, stream)
            if place == len(live.drafts):
                return
            draft = live.drafts[place]
            if not allowed[draft]:
                del live.drafts[place:]
                return
            if constraint is not None:
                constraint.advance(draft)
                if constraint.is_done:
                    del live.drafts[place + 1 :]
                    return

    def _write_choice(
        self, live: LiveSequence, step: int, place: int, constraint: Constraint | None, stream: Stream
    ) -> NDArray[np.bool_]:
        """What may come, which is returned, and the number that chooses from it: 0 takes the likeliest token."""
        index = live.slot.index * self.width + place
        is_greedy = live.request.temperature == 0 or (constraint is not None and constraint.is_greedy)
        number = 0.0 if is_greedy else uniform(live.request.seed, live.count + step + place)
        self._uniforms[step].items[index] = number
        return self._allow(step * self._places + index, constraint, stream)

    def _allow(self, number: int, constraint: Constraint | None, stream: Stream) -> NDArray[np.bool_]:
        key = None if constraint is None else constraint.key
        row: NDArray[np.bool_] = self._allowed_host[number]
        if self._allowed_keys[number] != key:
            self._allowed_keys[number] = key
            if constraint is None:
                row[...] = True
            else:
                constraint.write_allowed(row)
            self._device.upload(self._allowed.view(self._vocabulary, start=number * self._vocabulary), row, stream)
        return row

    def _planner_tensors(self, step: int, rows: int) -> dict[str, Tensor]:
        names, width = self._graph.inputs, self.width
        return {
            names.tokens: self._fed[step].view(rows, width),
            names.position: self._positions[step].tensor.view(rows),
            names.write: self._writes[step].tensor.view(rows),
            names.window: self._window.tensor.view(rows),
            names.pick: self._pick.tensor.view(rows, width, 1),
            self._graph.outputs.logits: self._logits.view(rows, width, self._vocabulary),
        }

    def _sampler_tensors(self, step: int, rows: int, sequences: int) -> dict[str, Tensor]:
        width, start = self.width, step * self._stride
        return {
            **self._shared.sampler_tensors(rows, sequences),
            "logits": self._logits.view(rows, width, self._vocabulary),
            "uniform": self._uniforms[step].tensor.view(sequences, width),
            "allowed": self._allowed.view(
                sequences, width, self._vocabulary, start=step * self._places * self._vocabulary
            ),
            "tokens": self._drawn.view(sequences, width, start=start),
            "row_tokens": self._fed[step + 1].view(rows, width),
            "finite": self._finite.view(sequences, start=start),
        }
