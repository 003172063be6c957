"""A plan's sections made to fit a length: some left out, some with half or twice their bars, some cut by pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runtime.config.plan_spec import PlanSpec
from runtime.music.sections import Item

# In bars that sections are cut by: what a section with other bars costs, one with an odd pair, a bar that the last one
# lacks, and bars that a song has too many.
CHANGE_COST, PAIR_COST, LAST_COST, LOSS_COST = 3, 1, 10, 1000
# So many bars follow those of the last section at most: what is played last rings out in them.
RINGING_BARS = 2
# What ends a song has so many bars at least, where sections can have them; a song of less than twice that has no end.
ENDING_BARS = 4


def bars_of(spec: PlanSpec, item: Item) -> int:
    """How many bars a section has."""
    return int(spec.bars.value(item[2]))


def possible_bars(spec: PlanSpec, items: Sequence[Item]) -> int:
    """How many bars sections can be given in all."""
    return sum(max(_choices(spec, item)) for item in items)


def fitted(
    spec: PlanSpec, items: Sequence[Item], total_bars: int, most_sections: int | None, num_given: int = 0
) -> list[tuple[Item, int]]:
    """Sections and their bars, changed as little as may be: `total_bars`, or more where the last one has to be cut.

    Of more than `most_sections` those are left out that repeat others, then the sparsest; None leaves out none, and the
    first `num_given` stay. Those
    before the last one are cut by pairs of bars, to half at most, so that none has an odd number; the last one is
    whole, and may go on for a bar or two. Expects that they can have as many bars.
    """
    kept, has_end = list(items), total_bars >= 2 * _ending_bars(spec)
    while most_sections is not None and len(kept) > max(most_sections, num_given):
        least = _least_needed(spec, kept, num_given, has_end=has_end)
        rest = [item for place, item in enumerate(kept) if place != least]
        if possible_bars(spec, rest) < total_bars:
            break
        kept = rest
    return [
        ((kind, layers, spec.bars.token(str(known))), played)
        for (kind, layers, _), (known, played) in zip(kept, _bars(spec, kept, total_bars), strict=True)
    ]


def _bars(spec: PlanSpec, items: Sequence[Item], total_bars: int) -> list[tuple[int, int]]:
    """Each section's bars, and those that are played, at the least cost; late ones change rather."""
    # Bars in all -> the least cost, and of every section the bars that are played and that it has, negative.
    found: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {0: (0, ())}
    for place, item in enumerate(items):
        longer: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {}
        ways = _ways(spec, item, is_last=place == len(items) - 1)
        for total, (cost, chosen) in found.items():
            for known, played, more in ways:
                option = (cost + more, (*chosen, (-played, -known)))
                longer[total + played] = min(longer.get(total + played, option), option)
        found = longer
    enough = [total for total in found if total >= total_bars]
    total = min(enough, key=lambda total: (found[total][0] + LOSS_COST * (total - total_bars), total))
    return [(-known, -played) for played, known in found[total][1]]


def _ways(spec: PlanSpec, item: Item, *, is_last: bool) -> list[tuple[int, int, int]]:
    """The bars that a section may have, those that may be played of them, and the cost."""
    ways, usual = [], bars_of(spec, item)
    for known in _choices(spec, item):
        change = CHANGE_COST * ((known != usual) + (2 * known < usual))
        ways += [(known, known, change)] if is_last or known == usual or known % 2 == 0 else []
        for played in range(-(-known // 2), known):
            if is_last:
                ways.append((known, played, change + LAST_COST * (known - played)))
            elif played % 2 == 0:
                ways.append((known, played, change + known - played + PAIR_COST * (played % 4 > 0)))
        if is_last:
            most = min(known + RINGING_BARS, spec.bar_markers.count)
            longer = range(known + 1, most + 1)
            ways += [(known, n, change + (n - known) ** 2 + LAST_COST * (n % 4 == 3)) for n in longer]
    return ways


def _choices(spec: PlanSpec, item: Item) -> list[int]:
    """The bars that a section may have; what ends a song has enough of them."""
    bars, kind = bars_of(spec, item), spec.kind.value(item[0])
    least = _ending_bars(spec) if kind == spec.ending else 0
    known = [bars, *(n for n in (bars // 2, 2 * bars, bars // 4) if n in spec.bars_of_kind(kind))]
    return [n for n in known if n >= least] or [least]


def _ending_bars(spec: PlanSpec) -> int:
    bars = [int(value) for value in spec.bars.values]
    return min((n for n in bars if n >= ENDING_BARS), default=max(bars))


def _least_needed(spec: PlanSpec, items: Sequence[Item], num_given: int, *, has_end: bool) -> int:
    """The last of the kind that comes most often, else what has the fewest layers.

    What ends a song goes first if the song has no end, or would be nothing else. No section goes that alone has a
    layer, if there is another.
    """
    layers = [spec.layers_of(item) for item in items]
    free = range(num_given, len(items))
    spare = [place for place in free if layers[place] <= frozenset[str]().union(*_others(layers, place))]
    spare = spare or list(free)
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
