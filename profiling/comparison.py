"""Two measurements side by side: the changes of their figures, which of them stand out of the noise, and their table.

Whether two sets of timings differ is told by a bootstrap confidence interval of the ratio of their medians. Timings
that follow each other are not independent, so blocks of neighbours are drawn (moving block bootstrap: Künsch, Annals of
Statistics 1989), and rounds before them (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section
3.8). The interval is Student's t with the bootstrap's standard error of the logarithm (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, section 12.4). A ratio counts where its interval leaves out 1 and it is further
from 1 than LEAST_CHANGE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from runtime.base.untrusted import printable
from runtime.commands.terminal import print_table

# Samples of each round in the order of their times; a round is measured without a pause.
Rounds = Sequence[Sequence[float]]
Samples = NDArray[np.float64]

# Probability that any of the figures of one comparison is wrongly called a change.
ERROR_RATE = 0.01
# Ratios nearer to 1 are not called a change.
LEAST_CHANGE = 0.01
NUM_RESAMPLES = 500
MAX_SAMPLES = 200
NO_DIFFERENCE = "no difference"
# Intervals that reach further are not written out.
MOST_PERCENT = 999
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


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The median of one set over that of another, and its confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def is_change(self) -> bool:
        """Whether the two sets differ."""
        return not self.low <= 1.0 <= self.high and abs(self.ratio - 1.0) >= LEAST_CHANGE

    @property
    def text(self) -> str:
        """The interval as changes in percent: "-0.4 .. +1.2 %", "-30 .. >999 %"."""
        low, high = 100 * (self.low - 1), 100 * (self.high - 1)
        if low > MOST_PERCENT:
            return f">{MOST_PERCENT} %"
        if high - low < 100:
            return f"{low:+.1f} .. {high:+.1f} %"
        return f"{low:+.0f} .. {f'{high:+.0f}' if high <= MOST_PERCENT else f'>{MOST_PERCENT}'} %"


def ratio_interval(before: Rounds, after: Rounds, num_figures: int = 1) -> RatioInterval | None:
    """The ratio of medians, after over before; None where a median is not above 0 or samples are too few.

    num_figures: how many figures one comparison judges; intervals widen so that ERROR_RATE holds for all of them
    (Bonferroni).
    """
    sets = [_as_array(before), _as_array(after)]
    draws = [_num_draws(samples) for samples in sets]
    if min(draws) < 2 or any(np.median(samples) <= 0.0 for samples in sets):
        return None
    center = float(np.log(np.median(sets[1]) / np.median(sets[0])))
    variance = sum(_log_variance(samples) * num / (num - 1) for samples, num in zip(sets, draws, strict=True))
    half = student_quantile(1.0 - ERROR_RATE / num_figures / 2, sum(draws) - 2) * float(np.sqrt(variance))
    return RatioInterval(*(float(np.exp(center + side)) for side in (0.0, -half, half)))


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for a probability above 0.5, by the expansion of Abramowitz and Stegun, 26.7.5."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


def thinned(samples: Sequence[float], most: int = MAX_SAMPLES, digits: int = 5) -> list[float]:
    """At most `most` samples, evenly spaced, rounded: what a result file stores."""
    indices = np.linspace(0, len(samples) - 1, min(most, len(samples))).round().astype(int)
    return [round(float(samples[index]), digits) for index in indices]


def _as_array(rounds: Rounds) -> Samples:
    """Rounds as `[rounds, samples]`, cut to the shortest."""
    shortest = min((len(samples) for samples in rounds), default=0)
    return np.array([samples[:shortest] for samples in rounds], np.float64)


def _block(length: int) -> int:
    """Neighbours that are drawn together."""
    return max(isqrt(length), 1)


def _num_draws(samples: Samples) -> int:
    """How many parts are drawn independently: rounds, or blocks of a single round."""
    num_rounds, length = len(samples), samples.size // max(len(samples), 1)
    return num_rounds if num_rounds > 1 and length else length // _block(length)


def _log_variance(samples: Samples) -> float:
    """The bootstrap's variance of the logarithm of the median: of NUM_RESAMPLES sets, drawn with replacement as rounds,
    and in each of these as blocks."""
    random = np.random.default_rng(0)
    (num_rounds, length), block = samples.shape, _block(samples.shape[1])
    rounds = random.integers(num_rounds, size=(NUM_RESAMPLES, num_rounds, 1))
    starts = random.integers(length - block + 1, size=(NUM_RESAMPLES, num_rounds, -(-length // block)))
    picked = (starts[..., None] + np.arange(block)).reshape(NUM_RESAMPLES, num_rounds, -1)[..., :length]
    medians = np.median(samples[rounds, picked].reshape(NUM_RESAMPLES, -1), axis=1)
    return float(np.var(np.log(medians)))


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
