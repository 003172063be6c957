"""What one engine is built from: its graph, the roles of its tensors in bundle.toml, their sizes and shape ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_build.graphs.graph_file import Graph, read_graph
from runtime.base.errors import ConfigError
from runtime.config.bundle import Bundle
from runtime.config.deployment import ShapeRanges
from runtime.engines.manifest import TensorInfo

WORDS = {
    "A": "audio channels",
    "B": "batch",
    "C": "latent channels",
    "D": "condition width",
    "E": "cache slots read",
    "F": "reference frames",
    "G": "logits per row",
    "H": "key and value heads",
    "I": "input features",
    "J": "width of a head",
    "L": "condition tokens",
    "M": "capacity",
    "N": "names of a meaning",
    "O": "output features",
    "P": "condition tokens",
    "Q": "adapter rank",
    "R": "rows",
    "T": "frames",
    "U": "tokens per row",
    "V": "vocabulary",
    "W": "samples",
    "X": "context channels",
    "Y": "structure codes",
    "Z": "sequences",
}


# `values` of an output that has the memory of an input.
IN_PLACE = "in place"


@dataclass(frozen=True)
class Port:
    """One tensor of a graph: its role (the key in bundle.toml), name, shape letters and dtype.

    `values`: sample values for verification: normal, tenth (of normal), small, unit (0..1), keep (0 or 1, the first 1),
    copies (0 or more, the first 1 or more), count (0..limit-1), flag, ramp (0, 1, 2, ...), size (the limit itself). Of
    an output: IN_PLACE or nothing.
    """

    role: str
    name: str
    letters: str
    dtype: str = "float32"
    values: str = "normal"
    limit: str = ""


def check_ports(
    graph: Graph, inputs: Sequence[Port], outputs: Sequence[Port], known: Mapping[str, int]
) -> dict[str, int]:
    """Check that every role names a tensor of the right dtype and shape, and that every tensor has a role.

    `known`: sizes fixed by the bundle. Returns them with the sizes fixed by the graph. Raises ConfigError.
    """
    sizes = dict(known)
    for kind, ports, tensors in (("input", inputs, graph.inputs), ("output", outputs, graph.outputs)):
        found = {tensor.name: tensor for tensor in tensors}
        for port in ports:
            _check_port(graph, kind, port, found, sizes)
        _check_all_have_roles(graph, kind, ports, found)
    return sizes


def check_free(graph: Graph, ports: Iterable[Port], free: Mapping[str, tuple[int, int]]) -> None:
    """Check that dimensions that vary at run time, letter -> (min, max), are dynamic. Raises ConfigError."""
    tensors = {tensor.name: tensor for tensor in (*graph.inputs, *graph.outputs)}
    for port in ports:
        for axis, letter in enumerate(port.letters):
            size = tensors[port.name].shape[axis]
            if letter in free and isinstance(size, int) and free[letter] != (size, size):
                low, high = free[letter]
                raise ConfigError(
                    f"{graph.label}: dimension {axis} of {port.name!r} ({WORDS[letter]}) is fixed at {size}, "
                    f"expected a dynamic one for {low}..{high}",
                    fix="export the graph with a dynamic dimension there",
                )


def _check_port(graph: Graph, kind: str, port: Port, found: Mapping[str, TensorInfo], sizes: dict[str, int]) -> None:
    if port.name not in found:
        raise ConfigError(
            f"{port.role} names {port.name!r}, not an {kind} of {graph.label}; its {kind}s are {_listed(found)}",
            fix=f"set {port.role} in bundle.toml to one of them",
        )
    tensor = found[port.name]
    where = f"{graph.label}: {kind} {port.name!r} ({port.role})"
    if tensor.dtype != port.dtype:
        raise ConfigError(f"{where} is {tensor.dtype}, expected {port.dtype}", fix=f"tensors: {_listed(found)}")
    if len(tensor.shape) != len(port.letters):
        raise ConfigError(
            f"{where} has shape {_shape(tensor)}, expected {_words(port)}", fix=f"tensors: {_listed(found)}"
        )
    for axis, (letter, size) in enumerate(zip(port.letters, tensor.shape, strict=True)):
        if isinstance(size, int) and sizes.setdefault(letter, size) != size:
            raise ConfigError(
                f"{where} has shape {_shape(tensor)}: dimension {axis} ({WORDS[letter]}) is {size}, "
                f"expected {sizes[letter]}",
                fix="correct bundle.toml, or name the right tensor",
            )


def _check_all_have_roles(graph: Graph, kind: str, ports: Iterable[Port], found: Mapping[str, TensorInfo]) -> None:
    unnamed = sorted(set(found) - {port.name for port in ports})
    if unnamed:
        raise ConfigError(
            f"{graph.label} has the {kind}s {', '.join(unnamed)}, which have no role in bundle.toml",
            fix=f"give them roles in bundle.toml, or remove the {kind}s from the graph",
        )


def _listed(found: Mapping[str, TensorInfo]) -> str:
    return ", ".join(f"{tensor.name} {tensor.dtype}{_shape(tensor)}" for tensor in found.values())


def _shape(tensor: TensorInfo) -> str:
    return f"[{', '.join(str(size) for size in tensor.shape)}]"


def _words(port: Port) -> str:
    return f"[{', '.join(WORDS[letter] for letter in port.letters)}]"


Sizes = Mapping[str, int]
Range = tuple[int, int, int]


@dataclass(frozen=True)
class EngineSpec:
    """One engine to build. Verification runs at the sizes in `samples`; memory is computed from those in `largest`.

    `ranges`: (min, opt, max) per letter that varies, for each of TensorRT's optimization profiles. `padded`: of these
    letters an input may have more without a change to the rest: rows repeat, tokens and ranks are zero. `made_with`:
    what the bundle says that its graph was made with, where the runtime compares it with the bundle.
    """

    name: str
    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    samples: tuple[Sizes, ...]
    largest: Sizes
    ranges: tuple[Mapping[str, Range], ...]
    features: tuple[str, ...] = ()
    shapes: tuple[ShapeRanges, ...] = field(default=())
    padded: str = ""
    made_with: Mapping[str, Any] = field(default_factory=dict)

    @property
    def letters(self) -> dict[str, str]:
        """Tensor name -> its shape letters."""
        return {port.name: port.letters for port in (*self.inputs, *self.outputs)}

    @property
    def kind(self) -> str:
        """The name without its variant: decoder, rows, step, codec_decode, text_encoder, planner, sampler and so on."""
        return self.name.partition(".")[0]


def file_spec(
    name: str,
    bundle: Bundle,
    file: str,
    inputs: list[Port],
    outputs: list[Port],
    samples: list[dict[str, int]],
    largest: Mapping[str, int],
    ranges: tuple[Mapping[str, Range], ...],
) -> EngineSpec:
    """The engine of one of the bundle's graphs, which has the tensors that bundle.toml says. Raises ConfigError."""
    graph = read_graph(bundle.graph_path(file))
    check_ports(graph, inputs, outputs, {letter: samples[0][letter] for letter in samples[0] if letter in "ACDFN"})
    check_free(graph, (*inputs, *outputs), {letter: (1, largest[letter]) for letter in "TWLY" if letter in largest})
    return EngineSpec(name, graph, tuple(inputs), tuple(outputs), tuple(samples), largest, ranges)


def optimization_profiles(spec: EngineSpec) -> list[dict[str, str]]:
    """Per optimization profile: input name -> its smallest, usual and largest shape, as "1x2x8 4x32x8 8x64x8"."""
    profiles = [[input_shapes(spec, sizes_at(spec, ranges, end)) for end in range(3)] for ranges in spec.ranges]
    return [
        {port.name: " ".join("x".join(map(str, shapes[port.name])) for shapes in ends) for port in spec.inputs}
        for ends in profiles
    ]


def sizes_at(spec: EngineSpec, ranges: Mapping[str, Range], end: int) -> dict[str, int]:
    """All sizes at one end of a shape range: 0 smallest, 1 usual, 2 largest."""
    return {**spec.largest, **{letter: limits[end] for letter, limits in ranges.items()}}


def input_shapes(spec: EngineSpec, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of every input."""
    return {port.name: tuple(sizes[letter] for letter in port.letters) for port in spec.inputs}
