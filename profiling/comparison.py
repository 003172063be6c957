"""Figures of two measurements side by side: their changes, which of them stand out of the noise, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from profiling.significance import NO_DIFFERENCE, RatioInterval, Rounds, ratio_interval
from runtime.base.untrusted import printable
from runtime.commands.tables import print_table

# Verdict on a change that is the machine's doing.
MACHINE = "machine"
NEW, GONE = "new", "gone"
# Verdicts on a figure that became lower, and higher.
TIMES = ("faster", "slower")
COLOURS = {"slower": "red", "faster": "green", MACHINE: "yellow"}
MACHINE_NOTE = (
    "machine: the same engine takes another time on the same machine. Its load or speed, the threads or a library "
    "changed: compare ratios, not milliseconds."
)


@dataclass(frozen=True)
class Difference:
    """One figure of two measurements, 0 where one does not have it. scope: the table that it stands in.

    verdict: NO_DIFFERENCE, MACHINE, NEW, GONE, or what the figure became; empty where it is not judged.
    """

    scope: str
    name: str
    before: float
    after: float
    interval: RatioInterval | None = None
    verdict: str = ""

    @property
    def delta(self) -> float:
        """Above 0: the figure became larger."""
        return self.after - self.before

    @property
    def percent(self) -> float | None:
        """The change in percent of `before`; None where that is 0."""
        return 100 * self.delta / self.before if self.before else None

    @property
    def stands_out(self) -> bool:
        """Whether it is judged to be a change, and not the machine's."""
        return self.verdict not in ("", NO_DIFFERENCE, MACHINE)

    def judged(
        self, before: Rounds, after: Rounds, num_figures: int, words: tuple[str, str] = TIMES, *, control: bool = False
    ) -> Difference:
        """The same with the interval of its samples' ratio and a verdict, one of `words` or NO_DIFFERENCE.

        control: whether only the machine can change it; its change is called MACHINE.
        """
        interval = ratio_interval(before, after, num_figures)
        if interval is None or not interval.is_change:
            return replace(self, interval=interval, verdict=NO_DIFFERENCE)
        return replace(self, interval=interval, verdict=MACHINE if control else words[interval.ratio > 1.0])


def unequal(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Texts that name the properties in which two measurements differ."""
    return [
        f"{name}: {before.get(name)} before, {after.get(name)} now"
        for name in names
        if before.get(name) != after.get(name)
    ]


def print_differences(console: Console, title: str, column: str, found: Sequence[Difference]) -> None:
    """Print a table of changes."""
    print_table(console, title, (column, "before", "after", "change", "interval", ""), [_cells(item) for item in found])


def print_conclusion(console: Console, found: Sequence[Difference], how_to_judge: str) -> None:
    """Print what stands out of the noise: single figures by name, entries of larger tables as counts.

    how_to_judge: what a measurement needs to be judged.
    """
    for line in conclusion(found, how_to_judge):
        console.print(printable(line), markup=False, highlight=False)


def conclusion(found: Sequence[Difference], how_to_judge: str) -> list[str]:
    """The lines of print_conclusion."""
    if not any(item.verdict for item in found):
        return [f"not judged: {how_to_judge}"]
    standing = [item for item in found if item.stands_out]
    single = [item for item in standing if _is_single(item)]
    lines = [f"{item.verdict}: {item.name}, {item.interval.text if item.interval else ''}" for item in single]
    counts = Counter((item.verdict, item.scope) for item in standing if not _is_single(item))
    lines += [f"{verdict}: {count} by {scope}" for (verdict, scope), count in counts.items()]
    lines = lines or [f"{NO_DIFFERENCE}: no change stands out of the spread of the samples"]
    return [*lines, MACHINE_NOTE] if any(item.verdict == MACHINE for item in found) else lines


def _is_single(item: Difference) -> bool:
    return item.scope in ("figure", "whole")


def _cells(item: Difference) -> tuple[str | Text, ...]:
    percent = "" if item.percent is None else f"{item.percent:+.1f} %"
    interval = item.interval.text if item.interval is not None else ""
    verdict = Text(item.verdict, COLOURS.get(item.verdict, ""))
    return item.name, f"{item.before:.3f}", f"{item.after:.3f}", percent, interval, verdict
