"""Checks that graphs compute what they have to, before anything is built: rows alone and beside others, and stems.

A tick's rows belong to different generations, and a seed stands for one sound. A graph is executed as it is written, on
the CPU and in float32, at small sizes: what it computes is the same for every target, also where no engine can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from engine_build.compile.verify import inputs_at
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.reference_session import graph_session, model_of, model_session, onnxruntime_errors, run_reason
from engine_build.specs.engine_spec import IN_PLACE, EngineSpec, Port, Sizes
from runtime.audio.stems import layer_latents, summing
from runtime.base.errors import BuildError
from runtime.base.untrusted import quoted
from runtime.config.bundle import Bundle
from runtime.engines.graph_bodies import reads
from runtime.engines.value_shapes import RANDOM

# An odd number: a graph that works on halves of its batch does not take it.
ROWS, ROWS_OF_LARGE = 3, 2
# Of the largest value. Rows beside others are computed by the same kernels at the same sizes; a row alone is not.
BESIDE_LIMIT, ALONE_LIMIT = 1e-5, 1e-3
SMALLEST_PEAK = 1e-6

# Frames, tokens, tokens per row, cache slots: what decides how long an execute takes.
LENGTHS = "TLUE"
# What a padded execute has more.
MORE_TOKENS = 2
# Executes that have to be equal to the first.
REPEATS = 8
RANDOM_FIX = (
    "export it for inference (model.eval(), or training=TrainingMode.EVAL), without nodes that draw numbers: a tick "
    "draws a generation's noise itself, from its seed"
)
ROWS_FIX = (
    "export it without what reads the whole batch: a mean or a norm over the first axis, a row's neighbour, a scale of "
    "all rows, a size that is written as a constant"
)
MASK_FIX = (
    "export it so that tokens with 0 in the mask change nothing; if it has no such input, leave condition_mask out of "
    "bundle.toml"
)

COUNTS_FIX = (
    "export it so that the logarithm of condition_mask is added to the scores of attention; if it is not, leave "
    "mask_counts out of bundle.toml"
)

Array = NDArray[Any]
Arrays = Mapping[str, Array]


LIMIT_DB = -60.0
FRAMES = 64
# How many notes sound, of all that could.
SHARE = 0.15


def check_rows(specs: Iterable[EngineSpec], options: BuildConfig) -> None:
    """Check every graph that was read from a file. Raises BuildError with the node where the difference begins."""
    for spec in specs:
        if not isinstance(spec.graph.source, bytes):
            _Check(spec, options).run()


class _Check:
    """One graph, opened; its inputs at small sizes, and what it makes of them.

    Caches that outputs share with inputs may be most of the memory: they are not asked for.
    """

    def __init__(self, spec: EngineSpec, options: BuildConfig) -> None:
        self._spec, self._options = spec, options
        self._ports = [port for port in spec.outputs if port.values != IN_PLACE]
        self._outputs = [port.name for port in self._ports]
        self._session = graph_session(spec.graph, options)
        limits = [ranges["R"] for ranges in spec.ranges if "R" in ranges] or [(1, 1, 1)]
        self._least = min(least for least, _, _ in limits)
        most = min(ROWS_OF_LARGE if spec.graph.is_large else ROWS, max(sample.get("R", 1) for sample in spec.samples))
        self._rows = max(most, self._least)
        small: Sizes = min(spec.samples, key=lambda sizes: prod(map(sizes.__getitem__, sizes.keys() & set(LENGTHS))))
        self._sizes = {**small, "R": self._rows}
        self._feeds = inputs_at(spec.inputs, [self._sizes], 0)
        self._first = self._execute(self._feeds)

    def run(self) -> None:
        """Raises BuildError."""
        self._compare_again()
        for kept in range(self._rows if self._rows > 1 else 0):
            self._compare(self._beside_others(kept), kept, self._rows, "depends on the rows beside it")
            if self._least == 1:
                self._compare(self._alone(kept), kept, 1, "is not what it is alone")
        if "L" in self._spec.padded:
            self._compare_padded()
        for mask in (port for port in self._spec.inputs if port.values == "copies"):
            self._compare_counted(mask)

    def _compare_again(self) -> None:
        """Several times: of few numbers, two draws may be equal."""
        for _ in range(1 if self._spec.graph.is_large else REPEATS):
            again = self._execute(self._feeds)
            if off := max(_difference(self._first[name], again[name]) for name in self._outputs):
                what = f"two executes on the same inputs differ by {off:.2g} of the largest value"
                raise self._refused(what, RANDOM_FIX, self._node(self._feeds, _is_equal, REPEATS))

    def _compare(self, feeds: Arrays, kept: int, rows: int, what: str) -> None:
        """Whether a row gives the same as among the first inputs; `feeds` has it at the same place, or alone."""
        found, limit = self._execute(feeds), ALONE_LIMIT if rows == 1 else BESIDE_LIMIT
        for port in (port for port in self._ports if "R" in port.letters):
            axis = port.letters.index("R")
            if found[port.name].shape[axis] != rows:
                raise self._refused(f"of {rows} rows it makes {port.name!r} {list(found[port.name].shape)}", ROWS_FIX)
            ours, theirs = (_row(values[port.name], axis, kept) for values in (self._first, found))
            if (off := _difference(ours, theirs)) > limit:
                where = self._node(feeds, _RowIn(kept, (self._rows, rows), limit).is_equal)
                raise self._refused(f"a row's {port.name!r} {what}: by {off:.2g} of its largest value", ROWS_FIX, where)

    def _compare_counted(self, mask: Port) -> None:
        """Whether rows give the same with one token more that counts twice as with two more that are equal."""
        once, twice = self._execute(self._with_token(mask, [2])), self._with_token(mask, [1, 1])
        self._same(once, twice, "a token that counts twice differs from two", COUNTS_FIX)

    def _with_token(self, mask: Port, counts: Sequence[int]) -> dict[str, Array]:
        """The inputs with a token in front, as often as there are counts of it; it is the first one, negated."""
        feeds = dict(self._feeds)
        for port in self._token_inputs():
            values = feeds[port.name]
            copies = np.repeat(-values[:, :1], len(counts), axis=1)
            front = np.broadcast_to(counts, copies.shape).astype(values.dtype) if port == mask else copies
            feeds[port.name] = np.concatenate((front, values), axis=1)
        return feeds

    def _compare_padded(self) -> None:
        """Whether rows give the same with more tokens, which the mask leaves out."""
        feeds = dict(self._feeds)
        for port in self._token_inputs():
            widths = [(0, MORE_TOKENS if letter == "L" else 0) for letter in port.letters]
            feeds[port.name] = np.pad(feeds[port.name], widths)
        self._same(self._first, feeds, "tokens that condition_mask leaves out change it", MASK_FIX)

    def _same(self, wanted: Arrays, feeds: Arrays, what: str, fix: str) -> None:
        """Raises BuildError where these inputs do not give what is wanted."""
        found = self._execute(feeds)
        if (off := max(_difference(wanted[name], found[name]) for name in self._outputs)) > ALONE_LIMIT:
            raise self._refused(f"{what} by {off:.2g} of its largest value", fix)

    def _token_inputs(self) -> Iterator[Port]:
        return (port for port in self._spec.inputs if "L" in port.letters)

    def _beside_others(self, kept: int) -> dict[str, Array]:
        """Other inputs of the same sizes, with one row of the first."""
        others = inputs_at(self._spec.inputs, [self._sizes] * 2, 1)
        for port, axis in self._row_inputs():
            row: tuple[slice | int, ...] = (*[slice(None)] * axis, kept)
            others[port.name][row] = self._feeds[port.name][row]
        return self._feeds | {port.name: others[port.name] for port, _ in self._row_inputs()}

    def _alone(self, kept: int) -> dict[str, Array]:
        rows = {port.name: _row(self._feeds[port.name], axis, kept) for port, axis in self._row_inputs()}
        return {**self._feeds, **rows}

    def _row_inputs(self) -> Iterator[tuple[Port, int]]:
        return ((port, port.letters.index("R")) for port in self._spec.inputs if "R" in port.letters)

    def _execute(self, feeds: Arrays, session: Any = None, names: Sequence[str] = ()) -> dict[str, Array]:
        names = names or self._outputs
        try:
            return dict(zip(names, (session or self._session).run(list(names), dict(feeds)), strict=True))
        except onnxruntime_errors() as cause:
            shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in feeds.items())
            raise BuildError(
                f"{self._spec.graph.label} does not run with {shapes}: {run_reason(cause)}",
                fix="export it with dynamic sizes where [[shapes]] has ranges; check frame_multiple in bundle.toml",
            ) from cause

    def _node(self, feeds: Arrays, is_equal: Callable[[Array, Array], bool], repeats: int = 1) -> str:
        """The first node that does not give the same for the first inputs and for `feeds`; "" where none is told."""
        graph = self._spec.graph
        model = model_of(graph)
        nodes = list(_of_data(model.graph))
        names = [name for node in nodes for name in node.output if name]
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        session = model_session(model, graph, self._options.threads)
        first = self._execute(self._feeds, session, names)
        for found in (self._execute(feeds, session, names) for _ in range(repeats)):
            for node in nodes:
                values = [(first[name], found[name]) for name in node.output if name and first[name].dtype.kind == "f"]
                if not all(is_equal(*pair) for pair in values):
                    return f", first at node {quoted(node.name or node.output[0])} ({node.op_type})"
        return ""

    def _refused(self, what: str, fix: str, where: str = "") -> BuildError:
        return BuildError(f"{self._spec.graph.label}: {what}{where}", fix=fix)


class _RowIn(NamedTuple):
    """Where a row is in two values of one node: its number, and how many rows either has."""

    kept: int
    rows: tuple[int, int]
    limit: float

    def is_equal(self, one: Array, other: Array) -> bool:
        """Whether the values are equal, or their parts of the row, on whichever axis rows lie, also beside others."""
        pairs = ([self._part(value, axis, rows) for value, rows in zip((one, other), self.rows, strict=True)]
                 for axis in range(min(one.ndim, other.ndim)))  # fmt: skip
        return _difference(one, other) <= self.limit or any(_difference(*pair) <= self.limit for pair in pairs)

    def _part(self, values: Array, axis: int, rows: int) -> Array:
        if rows == 1 or values.shape[axis] % rows:
            return values
        part: Array = np.take(values, np.arange(values.shape[axis]).reshape(rows, -1)[self.kept], axis)
        return part


def _of_data(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes but those that compute constants of weights, which may be as large."""
    constants = {"", *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:
        if constants.issuperset(reads(node)) and node.op_type not in RANDOM:
            constants.update(node.output)
        else:
            yield node


def _row(values: Array, axis: int, kept: int) -> Array:
    """One row, as a batch of one; of a batch of one its only one."""
    return np.take(values, [kept if values.shape[axis] > 1 else 0], axis)


def _is_equal(one: Array, other: Array) -> bool:
    return not _difference(one, other)


def _difference(one: Array, other: Array) -> float:
    """The largest difference, as a share of the largest value; infinite where one is finite and the other is not."""
    if one.shape != other.shape:
        return float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    differs = (first != second) & ~(np.isnan(first) & np.isnan(second))
    if not differs.any():
        return 0.0
    peak = np.abs(first[np.isfinite(first)]).max(initial=SMALLEST_PEAK)
    return float(np.nan_to_num(np.abs(first - second)[differs] / peak, nan=np.inf, posinf=np.inf).max())


def check_stems(bundle: Bundle, options: BuildConfig) -> float:
    """The error in dB of the sum of all stems against the mix. Raises BuildError where it is above LIMIT_DB."""
    assert bundle.codec is not None
    assert bundle.notes is not None
    assert bundle.stems is not None
    roles, rng = bundle.codec.decode, np.random.default_rng(0)
    frames = FRAMES + bundle.codec.decode.missing(FRAMES)
    shape = (frames, bundle.latents.channels)
    levels = rng.uniform(0.2, 1.0, shape) * (rng.random(shape) < SHARE)
    silence = bundle.silence(1)[0]
    latents = (bundle.notes.scale * levels + silence).astype(np.float32)
    session = graph_session(read_graph(bundle.graph_path(roles.graph)), options)

    def decode(values: NDArray[np.float32]) -> NDArray[np.float32]:
        feeds: dict[str, NDArray[np.generic]] = {roles.inputs.latents: values[None]}
        if roles.inputs.start_frame is not None:
            feeds[roles.inputs.start_frame] = np.zeros(1, np.int64)
        (audio,) = session.run([roles.outputs.audio], feeds)
        return np.asarray(audio[0].T)

    mix = decode(latents)
    stems = summing([decode(each) for each in layer_latents(bundle, latents).values()], bundle.stems.saturation)
    error = np.sum(stems, axis=0, dtype=np.float64) - mix
    error_db = 10 * float(np.log10(np.square(error).mean() + 1e-30) - np.log10(np.square(mix).mean() + 1e-30))
    if not error_db <= LIMIT_DB:
        raise BuildError(
            f"the stems of {bundle.name} differ from its mix by {error_db:.0f} dB, allowed are {LIMIT_DB:.0f}",
            fix="leave [stems] out of bundle.toml, or say its saturation",
        )
    return error_db
