"""A plan's sections made to fit a length: some left out, some with half or twice their bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runtime.config.plan_spec import PlanSpec
from runtime.requests.form.sections import Item

# What a section with other bars costs, in bars that the last section is cut by; and what its loss costs.
CHANGE_COST, LOSS_COST = 3, 1000
# A form of so many sections or fewer has none that ends it, where some are left out.
FEW_SECTIONS = 3


def bars_of(spec: PlanSpec, item: Item) -> int:
    """How many bars a section has."""
    return int(spec.bars.value(item[2]))


def most_bars(spec: PlanSpec, items: Sequence[Item]) -> int:
    """How many bars sections can be given in all."""
    return sum(max(_choices(spec, item)) for item in items)


def fitted(spec: PlanSpec, items: Sequence[Item], total_bars: int, most_sections: int | None) -> list[Item]:
    """Sections that have `total_bars` or, changed as little as may be, a few more.

    Of more than `most_sections` those are left out that repeat others, then the sparsest; None leaves out none.
    Expects that they can have as many bars.
    """
    kept = list(items)
    while most_sections is not None and len(kept) > most_sections:
        rest = [item for place, item in enumerate(kept) if place != _least_needed(spec, kept)]
        if most_bars(spec, rest) < total_bars:
            break
        kept = rest
    choices = {
        0: (0, tuple[int, ...]())
    }  # bars in all -> the least cost, and their bars, negative: late ones change rather
    for item in kept:
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for total, (cost, chosen) in choices.items():
            for bars in _choices(spec, item):
                found = (cost + CHANGE_COST * (bars != bars_of(spec, item)), (*chosen, -bars))
                longer[total + bars] = min(longer.get(total + bars, found), found)
        choices = longer
    _, chosen = min(
        (cost + total - total_bars + LOSS_COST * (total - total_bars >= -chosen[-1]), chosen)
        for total, (cost, chosen) in choices.items()
        if total >= total_bars
    )
    return [(kind, layers, spec.bars.token(str(-bars))) for (kind, layers, _), bars in zip(kept, chosen, strict=True)]


def _choices(spec: PlanSpec, item: Item) -> list[int]:
    bars = bars_of(spec, item)
    return [n for n in (bars, bars // 2, 2 * bars) if str(n) in spec.bars.values]


def _least_needed(spec: PlanSpec, items: Sequence[Item]) -> int:
    """The last of the kind that comes most often, else what has the fewest layers; of few sections what ends a song.

    No section goes that alone has a layer, if there is another.
    """
    layers = [spec.layers_of(item) for item in items]
    spare = [place for place in range(len(items)) if layers[place] <= frozenset[str]().union(*_others(layers, place))]
    spare = spare or list(range(len(items)))
    places = [place for place in spare if spec.kind.value(items[place][0]) != spec.ending]
    if len(items) <= FEW_SECTIONS and len(places) < len(spare):
        return next(place for place in spare if place not in places)
    places = places or spare
    counts = Counter(items[place][0] for place in places)
    most = max(counts.values())
    if most > 1:
        return max(place for place in places if counts[items[place][0]] == most)
    return min(places, key=lambda place: (_num_layers(spec, items[place]), bars_of(spec, items[place]), -place))


def _others(layers: Sequence[frozenset[str]], place: int) -> list[frozenset[str]]:
    return [each for at, each in enumerate(layers) if at != place]


def _num_layers(spec: PlanSpec, item: Item) -> int:
    return spec.layers.value(item[1]).count("+")
