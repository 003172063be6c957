"""Which steps come closest to the converged solution? Solvers, guidance intervals, schedules; a search for times."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Row
from configs.demo.recipe.evaluation.steps import CONVERGED, PROMPTS, steps_row
from configs.demo.recipe.latents import SILENCE, FloatArray
from runtime.requests.timesteps import schedule

Options = Mapping[str, Any]

# What the search minimizes, and what shows whether that holds for other music.
SEARCH_SEEDS: Final = (8400, 9400)
HELD_OUT_SEEDS: Final = (7400, 6400)
COMPARED_STEPS: Final = (6, 8, 10, 12, 16, 32)
# The first factor by which a step is made longer or shorter, and the last.
FIRST_FACTOR: Final = 1.2
LAST_FACTOR: Final = 1.03


@dataclass(frozen=True)
class Judge:
    """Generations of PROMPTS with each of these seeds, beside their converged solutions, latents `[T, C]` each."""

    player: Player
    seeds: tuple[int, ...]
    converged: Sequence[FloatArray]

    @classmethod
    def of(cls, player: Player, seeds: Sequence[int]) -> "Judge":
        """A judge that computes the converged solutions first."""
        return cls(player, tuple(seeds), _generated(player, seeds, CONVERGED))

    def distance(self, options: Options) -> float:
        """The mean over pieces of |x - x*| / |x* - silence|."""
        return float(np.mean(distances(_generated(self.player, self.seeds, options), self.converged)))

    def row(self, name: str, options: Options) -> Row:
        """A line of a table: the decoder's rows of one generation, distances, and what is heard."""
        found = _generated(self.player, self.seeds, options)
        far = distances(found, self.converged)
        heard = steps_row(name, self.player, found, self.converged)
        return {
            "steps": name,
            "rows": rows_of(options, self.shift),
            "distance": round(float(np.mean(far)), 4),
            "median": round(float(np.median(far)), 4),
            "worst": round(max(far), 4),
            "onset F1": heard["librosa onset F1"],
            "note F1": heard["note F1"],
            "log-mel dB": heard["log-mel dB"],
        }

    @property
    def shift(self) -> float:
        """That of the bundle."""
        return self.player.pipeline.bundle.sampler.shift


def distances(found: Sequence[FloatArray], converged: Sequence[FloatArray]) -> list[float]:
    """|x - x*| / |x* - silence| of each piece."""
    pairs = zip(found, converged, strict=True)
    return [float(np.linalg.norm(one - true) / np.linalg.norm(true - SILENCE)) for one, true in pairs]


def rows_of(options: Options, shift: float) -> int:
    """The decoder's rows in all steps: one each, two where guidance acts."""
    low, high = float(options.get("cfg_interval_start", 0.0)), float(options["cfg_interval_end"])
    times = _times(options, shift)
    return len(times) + sum(low <= 1.0 - float(np.float32(time)) <= high for time in times)


def compared(judge: Judge, found: Mapping[int, Sequence[float]], interval_end: float) -> Iterator[Row]:
    """Both solvers at several numbers of steps, guided throughout and up to `interval_end`; then the found times."""
    for solver in ("ode", "ab2"):
        for end in (1.0, interval_end):
            for steps in COMPARED_STEPS:
                options: Options = {"steps": steps, "solver": solver, "cfg_interval_end": end, "shift": judge.shift}
                yield judge.row(f"{solver} {steps}, guided to {end:g}", options)
    for steps, times in found.items():
        options = {"timesteps": times, "solver": "ab2", "cfg_interval_end": interval_end}
        yield judge.row(f"ab2 {steps}, guided to {interval_end:g}, own times", options)


def search(judge: Judge, options: Options, say: Callable[[str], None] = lambda _: None) -> list[float]:
    """Times of steps by coordinate descent over the lengths of the steps, from those that `options` ask for.

    Each length in turn is multiplied or divided by a factor, and all are scaled to sum up to 1; what is closer to the
    converged solutions in no more rows is kept. Where nothing is, the factor becomes its square root.
    """
    fixed = {name: value for name, value in options.items() if name not in ("steps", "shift")}
    lengths, factor = lengths_of(_times(options, judge.shift)), FIRST_FACTOR  # [K]
    most, best = rows_of(options, judge.shift), judge.distance(options)
    say(f"{best:.4f} in {most} rows")
    while factor > LAST_FACTOR:
        is_better = False
        for index in range(len(lengths)):
            for change in (factor, 1 / factor):
                tried = lengths.copy()
                tried[index] *= change
                asked = {**fixed, "timesteps": times_of(tried)}
                if rows_of(asked, judge.shift) <= most and (distance := judge.distance(asked)) < best:
                    lengths, best, is_better = lengths_of(asked["timesteps"]), distance, True
                    say(f"{best:.4f} {asked['timesteps']}")
                    break
        factor = factor if is_better else factor**0.5
    return times_of(lengths)


def lengths_of(times: Sequence[float]) -> FloatArray:
    """The steps' lengths `[K]`; the last one ends at 0."""
    return -np.diff(np.array([*times, 0.0]))


def times_of(lengths: FloatArray) -> list[float]:
    """The time at which each step begins, 1 first, with four decimals."""
    ends = np.cumsum(lengths / lengths.sum())  # [K]
    return [round(1.0 - float(end), 4) for end in (0.0, *ends[:-1])]


def _times(options: Options, shift: float) -> list[float]:
    if "timesteps" in options:
        return list(options["timesteps"])
    return [float(time) for time in schedule(options["steps"], shift=options.get("shift", shift))[:-1]]


def _generated(player: Player, seeds: Sequence[int], options: Options) -> list[FloatArray]:
    prompts = [(seed + index, prompt) for seed in seeds for index, prompt in enumerate(PROMPTS)]
    return player.generate([Piece(prompt, seed, {"plan": False, **options}) for seed, prompt in prompts])
