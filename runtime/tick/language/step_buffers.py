"""What executes of planner and sampler read and write: a chain of `steps` of them with `width` tokens per row each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.config.planner import LanguageGraphSpec, PlannerSpec
from runtime.devices.device import ALIGNMENT_BYTES, Device, Stream, Tensor
from runtime.devices.memory import PackedVectors, host_view
from runtime.engines.engine import Engine, Execution
from runtime.tick.language.constraints import Constraint
from runtime.tick.language.kv_cache import KvCache
from runtime.tick.language.sequence import Draw, LiveSequence
from runtime.tick.scheduling.slot import Slot


class SamplerTensor(NamedTuple):
    """Shape letters and dtype."""

    letters: str
    dtype: str = "float32"


# positive_row, negative_row: the sequence's rows, the same row twice without guidance. row_sequence: a row's sequence.
# top_k: 0 for no limit, 1 for the likeliest token. uniform: in [0, 1). allowed: the tokens that may come.
SAMPLER_INPUTS: Mapping[str, SamplerTensor] = {
    "logits": SamplerTensor("RGV"),
    "positive_row": SamplerTensor("N", "int64"),
    "negative_row": SamplerTensor("N", "int64"),
    "row_sequence": SamplerTensor("R", "int64"),
    "guidance": SamplerTensor("N"),
    "temperature": SamplerTensor("N"),
    "top_k": SamplerTensor("N", "int64"),
    "top_p": SamplerTensor("N"),
    "uniform": SamplerTensor("NG"),
    "allowed": SamplerTensor("NGV", "bool"),
}
# row_tokens: a row's tokens are its sequence's. finite: False where a logit of the sequence is not a number.
SAMPLER_OUTPUTS: Mapping[str, SamplerTensor] = {
    "tokens": SamplerTensor("NG", "int64"),
    "row_tokens": SamplerTensor("RG", "int64"),
    "finite": SamplerTensor("N", "bool"),
}


# Sampler inputs that a sequence keeps, with the value of a place without one.
PER_SEQUENCE = {"positive_row": 0, "negative_row": 0, "guidance": 1.0, "temperature": 1.0, "top_k": 1, "top_p": 1.0}
_INTEGERS = ("positive_row", "negative_row", "top_k")
_UNKNOWN = object()


class Vector:
    """A small vector on the device, and its host side for item assignments."""

    def __init__(self, vectors: PackedVectors, count: int, dtype: Any, value: float = 0) -> None:
        self.tensor, host = vectors.take(count, dtype)  # [count]
        host[...] = value
        self.items = host_view(host)


def vectors_bytes(rows: int, widths: Sequence[tuple[int, int]], chunk: int) -> int:
    """What PackedVectors must hold for steps of these (width, steps), and prefills of `chunk` tokens by two graphs."""
    pieces = [rows] * (len(PER_SEQUENCE) + 1) + 2 * ([chunk] + [1] * 4)
    for width, steps in widths:
        pieces += [rows * width] * 3 * steps + [rows] * (1 + 2 * steps)
    return sum(-(-8 * count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for count in pieces)


class SequenceVectors:
    """What does not change while a sequence lives: of each row its sequence, of each sequence rows and sampling."""

    def __init__(self, vectors: PackedVectors, spec: PlannerSpec, sequences: int) -> None:
        rows = 2 * sequences
        self._values = {
            name: Vector(vectors, sequences, np.int64 if name in _INTEGERS else np.float32, value)
            for name, value in PER_SEQUENCE.items()
        }
        self._row_sequence = Vector(vectors, rows, np.int64)  # [R]

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
        tensors = {name: vector.tensor.view(sequences) for name, vector in self._values.items()}  # [N] each
        return {**tensors, "row_sequence": self._row_sequence.tensor.view(rows)}  # [R]


class _FeedDrawn:
    """An execution that copies what a step has drawn to where the next one reads it: each row's first token."""

    def __init__(self, device: Device, drawn: Tensor, tokens: Tensor, rows: int, width: int) -> None:
        self._device = device
        # [1] to [1], per row
        self._pairs = [(tokens.view(1, start=row * width), drawn.view(1, start=row)) for row in range(rows)]

    def prepare(self, stream: Stream) -> bool:
        """True: a copy needs nothing."""
        return True

    def launch(self, stream: Stream) -> None:
        """Put the copies on the stream."""
        for target, source in self._pairs:
            self._device.copy(target, source, stream)

    def make(self) -> None:
        """Does nothing: warm_up makes nothing."""

    warm_up = launch

    def release(self) -> None:
        """Does nothing."""


class StepBuffers:
    """A chain of decodes, or a verify: one execute, which draws a token behind each of the `width` that it feeds.

    Every decode feeds the token that the one before has drawn, and behind it up to `width - 1` that are forced there,
    and draws one. draft: of the smaller graph, which draws from all tokens. `drawn[step][sequence * draws + place]` are
    the tokens of the last launch on the host, `finite[step][sequence]` its flags, both valid once it is done.
    """

    def __init__(
        self, device: Device, vectors: PackedVectors, shared: SequenceVectors, spec: PlannerSpec, sequences: int, *,
        width: int, steps: int, draws: int = 1, draft: LanguageGraphSpec | None = None,
    ) -> None:  # fmt: skip
        self._graph = draft or spec
        self.width, self.steps, self.draws, self._shared, self._device = width, steps, draws, shared, device
        self._is_draft, self._vocabulary, self._capacity = bool(draft), spec.vocabulary, self._graph.capacity
        rows = 2 * sequences
        self._tokens = [Vector(vectors, rows * width, np.int64) for _ in range(steps)]  # [R, width] per step
        self._picks = [Vector(vectors, rows * draws, np.int64) for _ in range(steps)]  # [R, draws] per step
        self._window = Vector(vectors, rows, np.int64, self._graph.window_input)  # [R]
        self._positions = [Vector(vectors, rows, np.int64) for _ in range(steps)]  # [R] per step
        self._writes = [Vector(vectors, rows, np.int64) for _ in range(steps)]  # [R] per step
        self._uniforms = [Vector(vectors, sequences * draws, np.float32) for _ in range(steps)]  # [N, draws] per step
        for place in range(rows * draws):
            self._picks[0].items[place] = place % draws
        self._row_tokens = [device.zeros((rows * draws,), np.int64) for _ in range(steps)]  # [R, draws] per step
        self._logits = device.zeros((rows * draws * spec.vocabulary,), np.float32)  # [R, draws, V], flat
        self._places = sequences * draws
        self._allowed_stride = -(-self._places * spec.vocabulary // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._allowed = device.zeros((steps * self._allowed_stride,), np.bool_)  # [steps, N, draws, V], flat
        self._allowed_host: NDArray[np.bool_] = device.mirror(self._allowed)
        self._allowed_keys: list[object] = [_UNKNOWN] * (steps * self._places)
        self._stride = -(-self._places // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._drawn = device.zeros((steps, self._stride), np.int64)  # [steps, N * draws, aligned]
        self._finite = device.zeros((steps, self._stride), np.bool_)  # [steps, N, aligned]
        self.drawn = device.staging((steps, self._stride), np.int64)  # [steps, N * draws, aligned]
        self.finite = device.staging((steps, self._stride), np.bool_)  # [steps, N, aligned]

    def bind(
        self, graph: Engine, sampler: Engine, cache: KvCache, rows: int, sequences: int, span: int
    ) -> list[Execution]:
        """Graph and sampler of every step, in order. Raises ShapeError, EngineError."""
        found = []
        for step in range(self.steps):
            found.append(self.bind_graph(graph, cache, rows, span, step))
            found.append(sampler.bind(self._sampler_tensors(step, rows, sequences)))
            if self._copies_drawn and step + 1 < self.steps:
                drawn, tokens = self._row_tokens[step], self._tokens[step + 1].tensor
                found.append(_FeedDrawn(self._device, drawn, tokens, rows, self.width))
        return found

    @property
    def _copies_drawn(self) -> bool:
        """Whether what is drawn has to be copied to be fed: with one token per row, it is read where it is drawn."""
        return self.width > 1

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
            first = step * self._places + index * self.draws
            self._allowed_keys[first : first + self.draws] = [_UNKNOWN] * self.draws

    def write(self, live: LiveSequence, stream: Stream) -> None:
        """Set what the next launch feeds and draws for a sequence; one that is not ready only keeps its rows alive.

        Where it feeds or draws more than it will take, the next tokens overwrite what this left in the cache.
        """
        for place, row in enumerate(live.rows):
            self._tokens[0].items[row * self.width] = live.next_token(place)
        if self.draws > 1:
            self._feed(live, 0, 0, live.drafts)
        if not live.is_ready:
            for step in range(self.steps):
                self._feed(live, step, 0, ())
        elif self.draws == 1:
            self._write_chain(live, stream)
        else:
            self._write_verify(live, stream)

    def write_known(self, live: LiveSequence) -> None:
        """Feed the tokens before the newest one again: the cache may hold drafts there that were wrong."""
        for place, row in enumerate(live.rows):
            start = max(0, live.position(place) - self.width)
            start -= max(0, start % self._capacity + self.width - self._capacity)
            self._positions[0].items[row], self._writes[0].items[row] = start, start % self._capacity
            for offset, token in enumerate(live.known(place, start, self.width)):
                self._tokens[0].items[row * self.width + offset] = token

    def rest(self, live: LiveSequence) -> None:
        """Rows without a sequence work on their first positions."""
        for step in range(self.steps):
            for row in live.rows:
                self._positions[step].items[row] = self._writes[step].items[row] = 0

    def download(self, stream: Stream) -> None:
        """Begin to copy tokens and flags to the host."""
        self._device.download(self.drawn, self._drawn, stream)
        self._device.download(self.finite, self._finite, stream)

    def take(self, live: LiveSequence, bad: list[tuple[Slot, int]]) -> None:
        """Take a sequence's tokens up to the first step that was not finite, which is noted in `bad`."""
        index = live.slot.index
        flags = [bool(self.finite[step, index]) for step in range(self.steps)]
        good = flags.index(False) if False in flags else len(flags)
        first = index * self.draws
        drawn = [int(token) for step in range(good) for token in self.drawn[step, first : first + self.draws]]
        taken = live.accept(drawn) if self.draws == 1 else live.accept_verified(drawn)
        if good < len(flags) and live.num_used == len(drawn) and not live.has_ended:
            live.is_finite = False
            bad.append((live.slot, live.count))
        if taken and live.request.on_tokens is not None:
            live.request.on_tokens(taken)

    def _feed(self, live: LiveSequence, step: int, offset: int, behind: Sequence[int]) -> None:
        """Feed a step's first token, which stands `offset` behind the newest one, and others behind it."""
        for place, row in enumerate(live.rows):
            position, first = live.position(place) + offset, row * self.width
            self._positions[step].items[row] = position
            self._writes[step].items[row] = position % self._capacity
            for number in range(1, self.width):
                self._tokens[step].items[first + number] = behind[number - 1] if number <= len(behind) else 0
            if self.draws == 1:
                self._picks[step].items[row] = len(behind)

    def _write_chain(self, live: LiveSequence, stream: Stream) -> None:
        """What may come at every step, where any token that may come before it; `draws` says what that was."""
        constraint = None if self._is_draft else copy.copy(live.constraint)
        live.draws, offset, is_done = [], 0, False
        for step in range(self.steps):
            forced = () if is_done else live.forced_run(constraint, self.width - 1)
            self._feed(live, step, offset, [token for token, _ in forced])
            offset += len(forced) + 1
            if is_done:
                continue
            allowed = self._write_choice(live, step, offset - 1, 0, constraint, stream)
            live.draws.append(Draw(forced, None if constraint is None else constraint.key))
            if constraint is not None:
                constraint.advance(int(allowed.argmax()))
                is_done = constraint.is_done

    def _write_verify(self, live: LiveSequence, stream: Stream) -> None:
        """What may come behind every draft. One that may not come is dropped, with those behind it."""
        constraint = copy.copy(live.constraint)
        for place in range(self.width):
            allowed = self._write_choice(live, 0, place, place, constraint, stream)
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
        self, live: LiveSequence, step: int, offset: int, place: int, constraint: Constraint | None, stream: Stream
    ) -> NDArray[np.bool_]:
        """What may come as the new token number `offset`, which is returned, and the number that chooses from it.

        Number 0 takes the likeliest token.
        """
        index = live.slot.index * self.draws + place
        is_greedy = live.request.temperature == 0 or (constraint is not None and constraint.is_greedy)
        number = 0.0 if is_greedy else live.request.uniform(live.count + offset)
        self._uniforms[step].items[index] = number
        return self._allow(step, index, constraint, stream)

    def _allow(self, step: int, index: int, constraint: Constraint | None, stream: Stream) -> NDArray[np.bool_]:
        key = None if constraint is None else constraint.key
        number, start = step * self._places + index, step * self._allowed_stride + index * self._vocabulary
        row: NDArray[np.bool_] = self._allowed_host[start : start + self._vocabulary]
        if self._allowed_keys[number] != key:
            self._allowed_keys[number] = key
            if constraint is None:
                row[...] = True  # [V]
            else:
                constraint.write_allowed(row)
            self._device.upload(self._allowed.view(self._vocabulary, start=start), row, stream)  # [V]
        return row

    def _planner_tensors(self, step: int, rows: int) -> dict[str, Tensor]:
        names, width = self._graph.inputs, self.width
        is_read_in_place = step > 0 and not self._copies_drawn
        tokens = self._row_tokens[step - 1] if is_read_in_place else self._tokens[step].tensor
        return {
            names.tokens: tokens.view(rows, width),  # [R, width]
            names.position: self._positions[step].tensor.view(rows),  # [R]
            names.write: self._writes[step].tensor.view(rows),  # [R]
            names.window: self._window.tensor.view(rows),  # [R]
            names.pick: self._picks[step].tensor.view(rows, self.draws, 1),  # [R, draws, 1]
            self._graph.outputs.logits: self._logits.view(rows, self.draws, self._vocabulary),  # [R, draws, V]
        }

    def _sampler_tensors(self, step: int, rows: int, sequences: int) -> dict[str, Tensor]:
        draws, start = self.draws, step * self._stride
        return {
            **self._shared.sampler_tensors(rows, sequences),
            "logits": self._logits.view(rows, draws, self._vocabulary),  # [R, draws, V]
            "uniform": self._uniforms[step].tensor.view(sequences, draws),  # [N, draws]
            # [N, draws, V]
            "allowed": self._allowed.view(sequences, draws, self._vocabulary, start=step * self._allowed_stride),
            "tokens": self._drawn.view(sequences, draws, start=start),  # [N, draws]
            "row_tokens": self._row_tokens[step].view(rows, draws),  # [R, draws]
            "finite": self._finite.view(sequences, start=start),  # [N]
        }
