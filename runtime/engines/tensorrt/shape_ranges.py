"""Choice of the shape range that contains all input shapes, and the error where none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.base.errors import ShapeError
from runtime.engines.manifest import TensorInfo

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProfileRange:
    """One shape range of a plan: the smallest and the largest shape of every input."""

    least: Mapping[str, Shape]
    largest: Mapping[str, Shape]

    def misfit(self, shapes: Mapping[str, Shape]) -> tuple[str, int] | None:
        """The first input and dimension outside the range; None where all are inside."""
        for name, low in self.least.items():
            for axis, (least, size, largest) in enumerate(zip(low, shapes[name], self.largest[name], strict=True)):
                if not least <= size <= largest:
                    return name, axis
        return None


def choose_range(
    engine: str, ranges: Sequence[ProfileRange], infos: Mapping[str, TensorInfo], shapes: Mapping[str, Shape], fix: str
) -> int:
    """The index of the first range that contains all shapes.

    Raises ShapeError with the dimension that each range refuses, the sizes it allows, and the build command `fix`.
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
        f"{engine}: no shape range contains {asked}; {'; '.join(dict.fromkeys(refusals))}",
        fix=f"add a [[shapes]] table for it to the deployment file, then {fix or 'tickrt-build CONFIG'}",
    )


def _refusal(index: int, shape_range: ProfileRange, infos: Mapping[str, TensorInfo], name: str, axis: int) -> str:
    word = infos[name].shape[axis]
    label = f"dimension {axis} ({word})" if isinstance(word, str) else f"dimension {axis}"
    allowed = f"{shape_range.least[name][axis]}..{shape_range.largest[name][axis]}"
    return f"range {index} allows {allowed} in {label} of {name}"
