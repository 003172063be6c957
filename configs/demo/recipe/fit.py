"""Few steps that end where many do: the numbers of a bespoke solver, fitted to the bundle's own guided solutions.

The times of N steps, how far each goes and how far it extrapolates its velocity are 3 N - 3 numbers, by gradient
descent on the distance from solutions of many steps (Shaul et al., "Bespoke Non-Stationary Solvers for Fast Sampling of
Diffusion and Flow Models", arXiv 2403.01329). So few numbers cannot learn songs by heart.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from configs.demo.recipe.corpus.batches import draw_batch, draw_songs, make_pool
from configs.demo.recipe.latents import CANVAS_FRAMES, SILENCE
from configs.demo.recipe.structure import hints_of
from configs.demo.recipe.teacher import USUAL_GUIDANCE, Given, Parts, given_of, read_parts, shifted, solve

CONVERGED_STEPS: Final = 40
FIT_SEED: Final = 1_000_004
HELD_OUT_SEED: Final = 1_000_003
# Of times and of extrapolation; the lengths need less.
RATES: Final = {"logarithms": 0.06, "extrapolation": 0.05, "factors": 0.015}


@dataclass(frozen=True)
class FitConfig:
    """The recipe: `updates` of Adam, each on one of `num_sets` sets of `rows` songs; 8 minutes of two cores."""

    updates: int = 80
    num_sets: int = 4
    rows: int = 20
    frames: int = CANVAS_FRAMES
    threads: int = 2
    compiled: bool = True


class BespokeSolver(nn.Module):
    """N steps: `ab2` with the shifted schedule at first."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        lengths = -torch.diff(shifted(torch.linspace(1.0, 0.0, steps + 1)))
        self.logarithms = nn.Parameter(lengths.log())
        self.extrapolation = nn.Parameter(
            torch.cat([torch.zeros(1), lengths[1:-1] / (2 * lengths[:-2]), torch.zeros(1)])
        )
        self.factors = nn.Parameter(torch.ones(steps))

    def times(self) -> Tensor:
        """`[N + 1]`, from 1 to 0."""
        ends = torch.cumsum(torch.softmax(self.logarithms, 0), 0)[:-1]
        return torch.cat([torch.ones(1), 1.0 - ends, torch.zeros(1)])

    def ends(self) -> Tensor:
        """To which each step goes `[N]`; the last one to 0."""
        times = self.times()
        ends = times[:-1] + self.factors * torch.diff(times)
        return torch.cat([ends[:-1].clamp(min=0.0), torch.zeros(1)])

    def forward(self, parts: Parts, given: Given) -> Tensor:
        """The clean latents `[B, T, C]` of rows that begin with noise."""
        tokens, keep, context = given.condition
        both = [torch.cat([each, each]) for each in (tokens, context)]
        state, before, times = given.noise, None, self.times()
        for time, end, factor in zip(times[:-1], self.ends(), self.extrapolation, strict=True):
            state = given.with_known(state, time.expand(given.size))
            twice = torch.cat([state, state]), time.expand(2 * given.size)
            sides = parts.velocity(*twice, both[0], torch.cat([keep, given.negative]), both[1])
            positive, opposite = sides.chunk(2)
            velocity = parts.guided(positive, opposite, given.guidance[:, None, None])
            taken = velocity if before is None else velocity + factor * (velocity - before)
            before, state = velocity, state + (end - time) * taken
        return given.with_known(state, torch.zeros(given.size))

    def table(self) -> dict[str, list[float]]:
        """As `[sampler] fitted` of a bundle has it, with four decimals."""
        numbers = {"times": self.times()[:-1], "ends": self.ends(), "extrapolation": self.extrapolation}
        found = {name: [round(value, 4) for value in values.tolist()] for name, values in numbers.items()}
        found["extrapolation"][0] = 0.0
        return found


@dataclass(frozen=True)
class Solved:
    """Rows and their converged solutions `[B, T, C]`."""

    given: Given
    clean: Tensor

    def distance(self, found: Tensor) -> Tensor:
        """The mean over rows of |x - x*| / |x* - silence|."""
        far = (found - self.clean).flatten(1).norm(dim=1) / (self.clean - SILENCE).flatten(1).norm(dim=1)
        return far.mean()


def solved(parts: Parts, config: FitConfig, songs: int, seed: int) -> Solved:
    """Rows that begin with noise; three quarters of them with the usual guidance."""
    pool = make_pool(draw_songs(64, songs), songs, partial(hints_of, parts.tokenizer))
    rng = np.random.default_rng(seed)
    given = given_of(parts, draw_batch(pool, rng, 2 * config.rows, config.frames), rng)
    given = given.rows(given.start == 1.0).rows(slice(config.rows))
    is_any = torch.arange(given.size) % 4 == 0
    given = replace(
        given, guidance=torch.where(is_any, given.guidance, torch.full_like(given.guidance, USUAL_GUIDANCE))
    )
    way = shifted(torch.linspace(1.0, 0.0, CONVERGED_STEPS + 1)[:, None].expand(-1, given.size))
    return Solved(given, solve(parts, given, way, given.noise).states[-1])


def fit(
    folder: Path, counts: list[int], config: FitConfig = FitConfig(), say: Callable[[str], object] = print
) -> dict[int, BespokeSolver]:
    """Number of steps -> its solver. What is said of each: its distances of held-out songs before and after."""
    torch.set_num_threads(config.threads)
    parts = read_parts(folder)
    if config.compiled:
        parts.decoder.masked.compile(dynamic=False)
    sets = [solved(parts, config, FIT_SEED, seed) for seed in range(config.num_sets)]
    held_out, found = solved(parts, config, HELD_OUT_SEED, 7), {}
    for steps in counts:
        solver = found[steps] = BespokeSolver(steps)
        before = _held_out(solver, parts, held_out)
        optimizer = torch.optim.Adam(
            [{"params": [getattr(solver, name)], "lr": rate} for name, rate in RATES.items()], betas=(0.8, 0.95)
        )
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1.0 - update / config.updates)
        for update, rows in zip(range(config.updates), itertools.cycle(sets)):
            distance = rows.distance(solver(parts, rows.given))
            optimizer.zero_grad()
            distance.backward()
            optimizer.step()
            rates.step()
            if update % 10 == 9:
                say(f"{steps} steps, update {update + 1}: {distance.item():.4f}")
        say(f"{steps} steps, of held-out songs: {before:.4f}, then {_held_out(solver, parts, held_out):.4f}")
        say(f"{steps} = {solver.table()}")
    return found


@torch.no_grad()  # type: ignore[untyped-decorator]
def _held_out(solver: BespokeSolver, parts: Parts, rows: Solved) -> float:
    return float(rows.distance(solver(parts, rows.given)))
