"""The student: one decoder that jumps from a time t to a time r < t, distilled from the bundle's own guided decoder.

`u(x, t, r, g)` is the mean velocity of the guided teacher from t to r (Geng et al., "Mean Flows", 2025), so that
x_r = x - (t - r) u in one row. At r = t and g = 1 it is the velocity that the decoder had before. The teacher's
solutions are computed once and used for many pairs of times; a part of the student's inputs are its own results, whose
target is the teacher's point all the same: errors of one jump are corrected by the next.
"""

import copy
import json
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from configs.demo.recipe.corpus.batches import Pool, draw_batch, draw_songs, make_pool
from configs.demo.recipe.latents import CANVAS_FRAMES, SILENCE
from configs.demo.recipe.structure import hints_of
from configs.demo.recipe.student import JumpDecoder, new_student
from configs.demo.recipe.teacher import Adapters, Solutions, read_parts, shifted, solve, with_known
from configs.demo.recipe.train import WEIGHT_TIME

# Pairs lie as far from each other as steps of 3 to 24 do, in parts of the schedule.
SHORTEST_JUMP: Final = 0.04
LONGEST_JUMP: Final = 0.4
SHORTEST_OWN: Final = 0.12
# Below this time an error of the clean latents counts no more than at it: early errors grow on the way.
JUMP_WEIGHT_TIME: Final = 0.6


@dataclass(frozen=True)
class DistillConfig:
    """The recipe, in float32. It ends after `steps` of the optimizer."""

    steps: int = 6_000
    batch_size: int = 16
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    warmup_steps: int = 200
    average_decay: float = 0.998
    num_songs: int = 6_000
    teacher_steps: int = 24
    teacher_rows: int = 32
    held: int = 1024  # solutions at a time
    uses: int = 8  # of each solution, on average
    base_share: float = 0.2
    own_share: float = 0.5
    seed: int = 3
    threads: int = 2
    checkpoint_every: int = 200
    log_every: int = 100


class Distiller:
    """Owns student, its average, the optimizer, the solutions and the step count."""

    def __init__(self, config: DistillConfig, folder: Path) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config, self.parts = config, read_parts(folder)
        self.student = new_student(self.parts.decoder)
        self.average = copy.deepcopy(self.student).requires_grad_(False)
        files = sorted((folder / "adapters").glob("*.safetensors"))
        self.adapters = Adapters(files, [self.parts.decoder, self.student])
        self.optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay
        )
        self.step, self.elapsed_s, self.solved = 0, 0.0, 0
        self.held: list[Solutions] = []

    def save(self, path: Path) -> None:
        """Write a checkpoint; a reader never sees half of one."""
        state = {
            "config": asdict(self.config),
            "student": self.student.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
            "solved": self.solved,
        }
        partial_file = path.with_suffix(".partial")
        torch.save(state, partial_file)
        partial_file.replace(path)

    def load(self, path: Path) -> None:
        """Resume."""
        state = torch.load(path, weights_only=True)
        self.student.load_state_dict(state["student"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.elapsed_s, self.solved = int(state["step"]), float(state["elapsed_s"]), int(state["solved"])

    def learning_rate(self) -> float:
        """Warm up, then a cosine to 0."""
        warm = min(1.0, (self.step + 1) / self.config.warmup_steps)
        left = 0.5 * (1.0 + math.cos(math.pi * min(1.0, self.step / self.config.steps)))
        return self.config.learning_rate * warm * left

    def refill(self, pool: Pool) -> None:
        """New solutions for what has been used."""
        rows, config = self.config.teacher_rows, self.config
        most = config.held // rows
        due = min(most, 4 + self.step) if len(self.held) < most else 0
        due = max(due - len(self.held), 1 if self.step * config.batch_size * 1.0 / config.uses > self.solved else 0)
        for _ in range(due):
            rng = np.random.default_rng([config.seed, 1, self.solved])
            frames = CANVAS_FRAMES if rng.random() < 0.85 else CANVAS_FRAMES // 2
            solutions = solve(self.parts, draw_batch(pool, rng, rows, frames), config.teacher_steps, rng, self.adapters)
            self.held = [*self.held[-(most - 1) :], solutions]
            self.solved += rows

    def train_step(self, pool: Pool) -> tuple[float, float]:
        """One optimizer step: the losses of jumps and of the velocity before."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        rng = np.random.default_rng([self.config.seed, 2, self.step])
        solutions = self.held[int(rng.integers(len(self.held)))]
        num_base = round(self.config.base_share * self.config.batch_size)
        jump = self.jump_loss(solutions, rng, self.config.batch_size - num_base)
        base = self.base_loss(solutions, rng, num_base)
        loss = jump + base * num_base / self.config.batch_size
        loss.backward()
        self.adapters.choose(0)
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        weight = 1.0 - min(self.config.average_decay, self.step / (self.step + 10.0))
        torch._foreach_lerp_(list(self.average.parameters()), [p.detach() for p in self.student.parameters()], weight)
        return float(jump.item()), float(base.item())

    def jump_loss(self, solutions: Solutions, rng: np.random.Generator, size: int) -> Tensor:
        """Of jumps between random pairs of times, some of them from the student's own points."""
        count, steps = solutions.guidance.shape[0], len(solutions.states) - 1
        rows = torch.from_numpy(rng.choice(count, size, replace=size > count))
        begin, end = draw_pairs(rng, size, steps)
        state, target = self._at(solutions, rows, begin), self._at(solutions, rows, end)
        start, stop = solutions.times[begin, rows], solutions.times[end, rows]
        self.adapters.choose(int(solutions.adapters[0]))
        given = solutions.guidance[rows], solutions.tokens[rows], solutions.keep[rows], solutions.context[rows]
        if self.step > self.config.warmup_steps and rng.random() < self.config.own_share:
            before = torch.from_numpy(np.maximum(0, begin.numpy() - rng.integers(1, steps // 3, size)))
            earlier, early = self._at(solutions, rows, before), solutions.times[before, rows]
            with torch.no_grad():
                found = self.student.jump_clean(earlier, (early, start), *given)
                ratio = (start / early)[:, None, None]
                own = ratio * earlier + (1.0 - ratio) * found
                own = with_known(own, start[:, None, None], solutions.noise[rows], given[3])
            # Errors of the student's points cannot be mended by a short jump.
            is_own = ((before < begin) & (end - begin >= SHORTEST_OWN * steps))[:, None, None]
            state = torch.where(is_own, own, state)
        t, r = start[:, None, None], stop[:, None, None]
        wanted = state - t * (state - target) / (t - r)
        found = self.student.jump_clean(state, (start, stop), *given)
        return torch.mean(solutions.weight[rows] * ((found - wanted) / t.clamp(min=JUMP_WEIGHT_TIME)) ** 2)

    def base_loss(self, solutions: Solutions, rng: np.random.Generator, size: int) -> Tensor:
        """Of the velocity at r = t without guidance, at the same states: what it was before, also without prompt."""
        rows = torch.from_numpy(rng.choice(solutions.guidance.shape[0], size, replace=False))
        begin = torch.from_numpy(rng.integers(0, len(solutions.states) - 1, size))
        state, time_ = self._at(solutions, rows, begin), solutions.times[begin, rows]
        keep = solutions.keep[rows].clone()
        keep[torch.from_numpy(rng.random(size) < 0.4), 3:] = 0.0
        given = solutions.tokens[rows], keep, solutions.context[rows]
        with torch.no_grad():
            wanted = self.parts.clean(state, time_, *given)
        found = self.student.jump_clean(state, (time_, time_), torch.ones(size), *given)
        weight = solutions.weight[rows] / time_[:, None, None].clamp(min=WEIGHT_TIME) ** 2
        return torch.mean(weight * (found - wanted) ** 2)

    @staticmethod
    def _at(solutions: Solutions, rows: Tensor, index: Tensor) -> Tensor:
        return solutions.states[index, rows]


def draw_pairs(rng: np.random.Generator, size: int, steps: int) -> tuple[Tensor, Tensor]:
    """Indices of times, of where jumps begin and end: a length within the two above, or to the end."""
    begin = rng.integers(0, steps, size)
    length = np.maximum(1, np.round(rng.uniform(SHORTEST_JUMP, LONGEST_JUMP, size) * steps)).astype(int)
    end = np.where(rng.random(size) < 0.1, steps, np.minimum(begin + length, steps))
    return torch.from_numpy(begin), torch.from_numpy(end)


@torch.no_grad()  # type: ignore[untyped-decorator]
def play(decoder: JumpDecoder, solutions: Solutions, times: list[float]) -> Tensor:
    """What jumps through these times make of the solutions' noise: clean latents `[B, T, C]`."""
    state = solutions.states[0]
    for index, begin in enumerate(times):
        end = times[index + 1] if index + 1 < len(times) else 0.0
        start, stop = (torch.full_like(solutions.guidance, value) for value in (begin, end))
        state = with_known(state, start[:, None, None], solutions.noise, solutions.context)
        given = solutions.guidance, solutions.tokens, solutions.keep, solutions.context
        found = decoder.jump_clean(state, (start, stop), *given)
        state = end / begin * state + (1.0 - end / begin) * found
    return with_known(state, torch.zeros(()), solutions.noise, solutions.context)


def judged(decoder: JumpDecoder, solutions: Solutions, counts: tuple[int, ...] = (2, 3, 4, 6)) -> dict[str, float]:
    """By number of jumps the mean distance |x - x*| / |x* - silence| from solutions that begin with noise."""
    last, found = solutions.states[-1], {}
    is_whole = solutions.times[0] > 0.999
    for count in counts:
        times = [float(each) for each in shifted(torch.linspace(1.0, 0.0, count + 1))[:-1]]
        error = (play(decoder, solutions, times) - last).flatten(1).norm(dim=1)
        far = error / (last - SILENCE).flatten(1).norm(dim=1)
        found[f"distance_{count}"] = float(far[is_whole].mean())
    return found


def distill(config: DistillConfig, folder: Path, checkpoint: Path) -> Distiller:
    """Distill to the end of the recipe, resuming from the checkpoint where there is one."""
    worker = Distiller(config, folder)
    if checkpoint.exists():
        worker.load(checkpoint)
    pool = make_pool(draw_songs(config.num_songs, config.seed), config.seed, partial(hints_of, worker.parts.tokenizer))
    others = make_pool(draw_songs(64, 1_000_003), 1_000_003, partial(hints_of, worker.parts.tokenizer))
    rng = np.random.default_rng(7)
    judge = solve(worker.parts, draw_batch(others, rng, 32, CANVAS_FRAMES), 2 * config.teacher_steps, rng)
    losses: list[tuple[float, float]] = []
    while worker.step < config.steps:
        begin = time.monotonic()
        worker.refill(pool)
        losses.append(worker.train_step(pool))
        worker.elapsed_s += time.monotonic() - begin
        if worker.step % config.log_every == 0:
            jump, base = np.mean(losses, axis=0)
            _log(step=worker.step, jump=float(jump), base=float(base), solved=worker.solved, elapsed_s=worker.elapsed_s)
            losses.clear()
        if worker.step % config.checkpoint_every == 0 or worker.step >= config.steps:
            worker.save(checkpoint)
            _log(step=worker.step, **judged(worker.average, judge))
    return worker


def _log(**fields: Any) -> None:
    rounded = {key: round(value, 5) if isinstance(value, float) else value for key, value in fields.items()}
    print(json.dumps(rounded), flush=True)
