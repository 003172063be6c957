"""Rollups of a profile: by kind of work, by module of the model, and by index across equal blocks.

Times are medians over executes, so that single slow executes do not count. Rollups add up to the sum of the layers'
medians: layers without a module have a row of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from profiling.layers.timings import LayerTiming, Profile

UNKNOWN_MODULE = "(not attributable)"
WHOLE_MODEL = "(model)"
SEVERAL = "(several parts)"
WHOLE_BLOCK = "(block)"
# A block is slow from this ratio to the median on.
SLOW_RATIO = 1.1
MAX_DIGITS = 9


@dataclass(frozen=True)
class RollupRow:
    """One line of a rollup: sum of its layers' medians, share of the sum of all (0..1), and how many layers."""

    name: str
    ms: float
    share: float
    layers: int


@dataclass(frozen=True)
class BlockTimes:
    """One part of equal blocks: milliseconds per execute in each block, median over all executes."""

    median_ms: tuple[float, ...]


@dataclass(frozen=True)
class Blocks:
    """Equal blocks: parts[name].median_ms[i] is a part's time in block indices[i]; `whole` has the blocks' times."""

    prefix: str
    indices: tuple[int, ...]
    parts: Mapping[str, BlockTimes]
    whole: BlockTimes

    @property
    def slowest(self) -> tuple[int, float]:
        """The slowest block's index, and its time over the median block's."""
        times = self.whole.median_ms
        worst = max(range(len(times)), key=times.__getitem__)
        return self.indices[worst], times[worst] / (median(times) or 1.0)

    @property
    def verdict(self) -> str:
        """Text: whether a block is slower than the other blocks."""
        index, ratio = self.slowest
        if ratio < SLOW_RATIO:
            return f"no block is slower than the others (largest {ratio:.2f} of the median)"
        return f"block {index} takes {ratio:.2f} of the median"


def by_kind(profile: Profile) -> list[RollupRow]:
    """A row per kind, longest time first."""
    return _rolled(profile, lambda layer: layer.kind)


def by_module(profile: Profile, depth: int = 2) -> list[RollupRow]:
    """A row per module, `depth` parts below the common root; a block and its index are one part."""
    root = common_root(layer.module for layer in profile.layers)
    return _rolled(profile, lambda layer: shown_module(layer.module, root, depth, is_wide=layer.is_wide))


def by_block(profile: Profile) -> list[Blocks]:
    """Every family of two or more numbered blocks, longest time first."""
    families: dict[str, dict[tuple[int, str], list[LayerTiming]]] = {}
    for layer in profile.layers:
        place = block_of(layer.module)
        if place is not None:
            prefix, index, part = place
            families.setdefault(prefix, {}).setdefault((index, part), []).append(layer)
    found = [
        _side_by_side(prefix, positions) for prefix, positions in families.items() if len({i for i, _ in positions}) > 1
    ]
    return sorted(found, key=lambda blocks: -sum(blocks.whole.median_ms))


def block_of(module: str | None) -> tuple[str, int, str] | None:
    """Family, index and part of a module in a numbered block: decoder.layers.3.mlp.up -> (decoder.layers, 3, mlp)."""
    parts = module.split(".") if module else []
    place = next((i for i, part in enumerate(parts) if _is_index(part)), None)
    if place is None:
        return None
    return ".".join(parts[:place]), int(parts[place]), (parts[place + 1 : place + 2] or [WHOLE_BLOCK])[0]


def module_parts(module: str) -> list[str]:
    """A path's parts; a number belongs to the name before it: decoder.layers.3.mlp -> decoder, layers.3, mlp."""
    parts: list[str] = []
    for part in module.split(".") if module else []:
        if _is_index(part) and parts:
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return parts


def _is_index(part: str) -> bool:
    """Whether a part of a path is the index of a block; longer numbers are names."""
    return part.isascii() and part.isdecimal() and len(part) <= MAX_DIGITS


def common_root(modules: Iterable[str | None]) -> int:
    """How many leading parts all modules share; a module that is itself the root does not end it."""
    paths = [module_parts(module) for module in modules if module]
    deepest = max((len(path) for path in paths), default=0)
    for count in range(deepest):
        heads = {path[count] for path in paths if len(path) > count}
        if len(heads) != 1:
            return count
    return 0


def shown_module(module: str | None, root: int, depth: int, *, is_wide: bool = False) -> str:
    """The name of a module's row: `depth` parts of its path below the `root` parts that all share.

    is_wide: the layer holds work of several parts of the module. It has a row of its own.
    """
    if module is None:
        return UNKNOWN_MODULE
    parts = module_parts(module)[root:]
    if is_wide and len(parts) < depth:
        return ".".join([*parts, SEVERAL])
    return ".".join(parts[:depth]) or WHOLE_MODEL


def _rolled(profile: Profile, key: Callable[[LayerTiming], str]) -> list[RollupRow]:
    groups: dict[str, list[LayerTiming]] = {}
    for layer in profile.layers:
        groups.setdefault(key(layer), []).append(layer)
    whole = profile.layer_medians_ms or 1.0
    sums = {name: sum(layer.median_ms for layer in layers) for name, layers in groups.items()}
    rows = [RollupRow(name, sums[name], sums[name] / whole, len(layers)) for name, layers in groups.items()]
    return sorted(rows, key=lambda row: -row.ms)


def _side_by_side(prefix: str, positions: Mapping[tuple[int, str], Sequence[LayerTiming]]) -> Blocks:
    indices = sorted({index for index, _ in positions})
    names = dict.fromkeys(name for _, name in positions)
    parts = {name: _part([positions.get((index, name), ()) for index in indices]) for name in names}
    hottest = sorted(parts, key=lambda name: -sum(parts[name].median_ms))
    whole = _part([[layer for name in names for layer in positions.get((index, name), ())] for index in indices])
    return Blocks(prefix, tuple(indices), {name: parts[name] for name in hottest}, whole)


def _part(blocks: Sequence[Sequence[LayerTiming]]) -> BlockTimes:
    """Layers per block, summed within each execute."""
    runs = [[sum(times) for times in zip(*(layer.runs_ms for layer in layers), strict=True)] for layers in blocks]
    return BlockTimes(tuple(median(times) if times else 0.0 for times in runs))
