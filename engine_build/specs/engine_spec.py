"""What one engine is built from: its graph, the roles of its tensors, their sizes and shape ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_build.graphs.graph_file import Graph, read_graph
from engine_build.graphs.tensor_roles import Port, check_free, check_ports
from runtime.config.bundle import Bundle
from runtime.config.targets import ShapeRanges

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
