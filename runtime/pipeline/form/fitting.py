"""A plan's sections made to fit a length: some left out, some with half or twice their bars, some cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runtime.config.plan_spec import PlanSpec
from runtime.requests.form.sections import Item

# In bars that sections are cut by: what a section with other bars costs, a bar of the last one, and its loss.
CHANGE_COST, LAST_COST, LOSS_COST = 3, 10, 1000
# What ends a song has so many bars at least, where sections can have them; a song of less than twice that has no end.
ENDING_BARS = 4


def bars_of(spec: PlanSpec, item: Item) -> int:
    """How many bars a section has."""
    return int(spec.bars.value(item[2]))


def most_bars(spec: PlanSpec, items: Sequence[Item]) -> int:
    """How many bars sections can be given in all."""
    return sum(max(_choices(spec, item)) for item in items)


def fitted(spec: PlanSpec, items: Sequence[Item], total_bars: int, most_sections: int | None) -> list[tuple[Item, int]]:
    """Sections and their bars, changed as little as may be: `total_bars`, or more where the last one has to be cut.

    Of more than `most_sections` those are left out that repeat others, then the sparsest; None leaves out none. Those
    before the last one are cut, to half at most, so that the last is whole. Expects that they can have as many bars.
    """
    kept, has_end = list(items), total_bars >= 2 * _ending_bars(spec)
    while most_sections is not None and len(kept) > most_sections:
        least = _least_needed(spec, kept, has_end=has_end)
        rest = [item for place, item in enumerate(kept) if place != least]
        if most_bars(spec, rest) < total_bars:
            break
        kept = rest
    chosen = _bars(spec, kept, total_bars)
    changed = [(kind, layers, spec.bars.token(str(n))) for (kind, layers, _), n in zip(kept, chosen, strict=True)]
    return list(zip(changed, _cut(chosen, sum(chosen) - total_bars), strict=True))


def _bars(spec: PlanSpec, items: Sequence[Item], total_bars: int) -> tuple[int, ...]:
    """Each section's bars, `total_bars` or more in all, at the least cost; late ones change rather."""
    # Bars in all -> the least cost, and the sections' bars, negative.
    choices: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for item in items:
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for total, (cost, chosen) in choices.items():
            for bars in _choices(spec, item):
                found = (cost + CHANGE_COST * (bars != bars_of(spec, item)), (*chosen, -bars))
                longer[total + bars] = min(longer.get(total + bars, found), found)
        choices = longer

    def all_cost(total: int) -> tuple[int, tuple[int, ...]]:
        cost, chosen = choices[total]
        rest = sum(_cut([-bars for bars in chosen], total - total_bars)) - total_bars
        return cost + total - total_bars + LAST_COST * rest + LOSS_COST * (rest >= -chosen[-1]), chosen

    _, chosen = min(all_cost(total) for total in choices if total >= total_bars)
    return tuple(-bars for bars in chosen)


def _cut(bars: Sequence[int], excess: int) -> list[int]:
    """So many bars fewer, of the last section before the end that has half as many more, else of several."""
    found = list(bars)
    while excess > 0 and (places := [place for place in range(len(bars) - 1) if found[place] > -(-bars[place] // 2)]):
        room = {place: found[place] - -(-bars[place] // 2) for place in places}
        place = max(places, key=lambda place: (min(room[place], excess), place))
        found[place] -= min(room[place], excess)
        excess -= min(room[place], excess)
    return found


def _choices(spec: PlanSpec, item: Item) -> list[int]:
    """The bars that a section may have; what ends a song has enough of them."""
    bars, kind = bars_of(spec, item), spec.kind.value(item[0])
    least = _ending_bars(spec) if kind == spec.ending else 0
    known = [bars, *(n for n in (bars // 2, 2 * bars) if n in spec.bars_of_kind(kind))]
    return [n for n in known if n >= least] or [least]


def _ending_bars(spec: PlanSpec) -> int:
    bars = [int(value) for value in spec.bars.values]
    return min((n for n in bars if n >= ENDING_BARS), default=max(bars))


def _least_needed(spec: PlanSpec, items: Sequence[Item], *, has_end: bool) -> int:
    """The last of the kind that comes most often, else what has the fewest layers.

    What ends a song goes first if the song has no end, or would be nothing else. No section goes that alone has a
    layer, if there is another.
    """
    layers = [spec.layers_of(item) for item in items]
    spare = [place for place in range(len(items)) if layers[place] <= frozenset[str]().union(*_others(layers, place))]
    spare = spare or list(range(len(items)))
    places = [place for place in spare if spec.kind.value(items[place][0]) != spec.ending]
    num_others = sum(spec.kind.value(kind) != spec.ending for kind, _, _ in items)
    if (not has_end or num_others == 1) and len(places) < len(spare):
        return next(place for place in spare if place not in places)
    places = places or spare
    counts = Counter(items[place][0] for place in places)
    most = max(counts.values())
    if most > 1:
        return max(place for place in places if counts[items[place][0]] == most)
    return min(places, key=lambda place: (_rank(spec, items[place]), -place))


def _others(layers: Sequence[frozenset[str]], place: int) -> list[frozenset[str]]:
    return [each for at, each in enumerate(layers) if at != place]


def _rank(spec: PlanSpec, item: Item) -> tuple[bool, int, int]:
    """What is needed less is less."""
    return spec.kind.value(item[0]) in spec.main, spec.layers.value(item[1]).count("+"), bars_of(spec, item)
