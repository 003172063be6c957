"""Which shape range of an engine holds the shapes of its inputs, and what is said where none does. Pure logic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.engines.manifest import TensorInfo
from runtime.errors import ShapeError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """One shape range of a compiled engine: the least and the largest shape of every input."""

    least: Mapping[str, Shape]
    largest: Mapping[str, Shape]

    def misfit(self, shapes: Mapping[str, Shape]) -> tuple[str, int] | None:
        """The first input and dimension that lies outside; None where everything is inside."""
        for name, low in self.least.items():
            for axis, (least, size, largest) in enumerate(zip(low, shapes[name], self.largest[name], strict=True)):
                if not least <= size <= largest:
                    return name, axis
        return None


def choose_range(
    engine: str, ranges: Sequence[ShapeRange], infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], fix: str
) -> int:
    """The index of the first range that holds all shapes.

    Raises ShapeError: which tensor and dimension each range refuses, what it allows, and `fix`, the command that builds
    an engine once the deployment file has a range that fits.
    """
    misfits = [shape_range.misfit(shapes) for shape_range in ranges]
    if None in misfits:
        return misfits.index(None)
    refusals = [
        _refusal(index, shape_range, infos, *misfit)
        for index, (shape_range, misfit) in enumerate(zip(ranges, misfits, strict=True))
        if misfit is not None
    ]
    names = dict.fromkeys(misfit[0] for misfit in misfits if misfit is not None)
    asked = ", ".join(f"{name} {shapes[name]}" for name in names)
    raise ShapeError(
        f"{engine}: no shape range holds {asked}; {'; '.join(dict.fromkeys(refusals))}",
        fix=f"add a [[shapes]] table that holds it to the deployment file, then {fix or 'tickrt-build CONFIG'}",
    )


def _refusal(index: int, shape_range: ShapeRange, infos: Mapping[str, TensorInfo], name: str, axis: int) -> str:
    word = infos[name].shape[axis]
    label = f"dimension {axis} ({word})" if isinstance(word, str) else f"dimension {axis}"
    allowed = f"{shape_range.least[name][axis]}..{shape_range.largest[name][axis]}"
    return f"range {index} allows {allowed} in {label} of {name}"
