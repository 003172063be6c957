"""The student: one decoder that jumps from a time t to a time r < t, distilled from the bundle's own guided decoder.

`u(x, t, r, g)` is the mean velocity of the guided teacher from t to r (Geng et al., "Mean Flows", 2025), so that
x_r = x - (t - r) u in one row. At r = t and g = 1 it is the velocity that the decoder had before. Every step has songs
and noise of its own, which the teacher takes a part of the way: of solutions that are used again and again a student
learns the notes of their noise by heart. A part of the states are the student's own: it learns to go on from them.
"""

import copy
import itertools
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
from configs.demo.recipe.latents import CANVAS_FRAMES, SILENCE, FloatArray
from configs.demo.recipe.structure import hints_of
from configs.demo.recipe.student import JumpDecoder, new_student
from configs.demo.recipe.teacher import Adapters, Given, Solutions, given_of, read_parts, shifted, solve
from configs.demo.recipe.train import WEIGHT_TIME

# Of the way, before the shift: jumps are as long as steps of 3 to 16 are, the teacher's steps as those of 20.
SHORTEST_JUMP: Final = 0.06
LONGEST_JUMP: Final = 0.3
TEACHER_STEP: Final = 0.05
MOST_OWN_JUMPS: Final = 3
JUDGED_JUMPS: Final = (4, 6, 8, 10)
# Below this time an error of the clean latents counts no more than at it: early errors grow on the way.
JUMP_WEIGHT_TIME: Final = 0.6


@dataclass(frozen=True)
class DistillConfig:
    """The recipe, in float32. It ends after `steps` of the optimizer, 110 minutes of two cores."""

    steps: int = 7_000
    batch_size: int = 16
    learning_rate: float = 1.5e-4
    weight_decay: float = 0.01
    warmup_steps: int = 100
    average_decay: float = 0.998
    num_songs: int = 6_000
    judge_steps: int = 40
    base_share: float = 0.2
    own_share: float = 0.5
    from_noise_share: float = 0.25
    seed: int = 3
    threads: int = 2
    compiled: bool = True
    checkpoint_every: int = 200
    log_every: int = 50


class Distiller:
    """Owns student, its average, the optimizer and the step count."""

    def __init__(self, config: DistillConfig, folder: Path) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config, self.parts = config, read_parts(folder)
        self.student = new_student(self.parts.decoder)
        self.average = copy.deepcopy(self.student).requires_grad_(False)
        files = sorted((folder / "adapters").glob("*.safetensors"))
        self.adapters = Adapters(files, [self.parts.decoder, self.student])
        if config.compiled:  # a step takes a third of the time
            for decoder in (self.parts.decoder, self.student):
                decoder.masked.compile(dynamic=False)
        rates = {"lr": config.learning_rate, "betas": (0.9, 0.98), "weight_decay": config.weight_decay}
        self.optimizer = torch.optim.AdamW(self.student.parameters(), **rates, fused=True)
        self.step, self.elapsed_s = 0, 0.0

    def save(self, path: Path) -> None:
        """Write a checkpoint; a reader never sees half of one."""
        state = {
            "config": asdict(self.config),
            "student": self.student.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
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
        self.step, self.elapsed_s = int(state["step"]), float(state["elapsed_s"])

    def learning_rate(self) -> float:
        """Warm up, then a cosine to 0."""
        warm = min(1.0, (self.step + 1) / self.config.warmup_steps)
        left = 0.5 * (1.0 + math.cos(math.pi * min(1.0, self.step / self.config.steps)))
        return self.config.learning_rate * warm * left

    def train_step(self, pool: Pool) -> tuple[float, float]:
        """One optimizer step: the losses of jumps and of the velocity before."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        rng = np.random.default_rng([self.config.seed, 2, self.step])
        frames = CANVAS_FRAMES if rng.random() < 0.85 else CANVAS_FRAMES // 2
        num_base = round(self.config.base_share * self.config.batch_size)
        size = (self.config.batch_size - num_base) // 2  # each solution has two jumps
        given = given_of(self.parts, draw_batch(pool, rng, size + num_base, frames), rng)
        self.adapters.draw(rng)
        jumps, base = self.jumps(given.rows(slice(size)), rng), self.base(given.rows(slice(size, None)), rng)
        errors = self.errors([*jumps, base])
        errors.mean().backward()
        self.adapters.choose(0)
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        weight = 1.0 - min(self.config.average_decay, self.step / (self.step + 10.0))
        torch._foreach_lerp_(list(self.average.parameters()), [p.detach() for p in self.student.parameters()], weight)
        return float(errors[: 2 * size].mean().item()), float(errors[2 * size :].mean().item())

    def errors(self, wanted: "list[Jump]") -> Tensor:
        """Of each row, weighted `[B]`."""
        state, start, end, guidance, tokens, keep, context, target, weight = (
            torch.cat(parts) for parts in zip(*(jump.tensors for jump in wanted), strict=True)
        )
        found = self.student.jump_clean(state, (start, end), guidance, tokens, keep, context)
        return (weight * (found - target) ** 2).mean(dim=(1, 2))

    def jumps(self, given: Given, rng: np.random.Generator) -> "list[Jump]":
        """Two jumps of each row, of which the teacher goes a part of the way: all of that, and a part of it."""
        size, config = given.size, self.config
        length = rng.uniform(SHORTEST_JUMP, LONGEST_JUMP)
        steps = max(2, math.ceil(length / TEACHER_STEP))
        first = given.start.numpy() * np.where(rng.random(size) < config.from_noise_share, 1.0, rng.uniform(0, 1, size))
        first = np.maximum(first, 0.02)
        way = first[None] - np.linspace(0.0, 1.0, steps + 1)[:, None] * np.minimum(length, first)[None]  # [N + 1, B]
        times = shifted(torch.from_numpy(way.astype(np.float32)).clamp(min=0.0))
        is_own = self.step > config.warmup_steps and rng.random() < config.own_share
        states = given.noised(times[0])
        if is_own:
            own = play(self.student, given, self._own_way(given, first, rng))
            states = torch.where(torch.from_numpy(first < given.start.numpy())[:, None, None], own, states)
        solved = solve(self.parts, given, times, states)
        begin = rng.integers(0, steps, size)
        end = begin + 1 + (rng.random(size) * (steps - begin)).astype(int)
        pairs = (np.zeros(size, int), np.full(size, steps)), (begin, end)
        return [_jump(given, solved, *(torch.from_numpy(each) for each in pair)) for pair in pairs]

    def _own_way(self, given: Given, first: FloatArray, rng: np.random.Generator) -> Tensor:
        """Times `[N + 1, B]` of jumps that lead to where the teacher begins."""
        count = int(rng.integers(1, MOST_OWN_JUMPS + 1))
        start = given.start.numpy()
        way = start[None] - np.linspace(0.0, 1.0, count + 1)[:, None] * np.maximum(start - first, 0.0)[None]
        return shifted(torch.from_numpy(way.astype(np.float32)))

    def base(self, given: Given, rng: np.random.Generator) -> "Jump":
        """The velocity at r = t without guidance: what it was before, also without prompt."""
        time_ = shifted(torch.from_numpy(rng.uniform(0.02, 1.0, given.size).astype(np.float32)) * given.start)
        state, (tokens, keep, context) = given.noised(time_), given.condition
        keep = keep.clone()
        keep[torch.from_numpy(rng.random(given.size) < 0.4), 3:] = 0.0
        with torch.no_grad():
            wanted = self.parts.clean(state, time_, tokens, keep, context)
        weight = given.weight / time_[:, None, None].clamp(min=WEIGHT_TIME) ** 2
        return Jump((state, time_, time_, torch.ones_like(time_), tokens, keep, context, wanted, weight))


@dataclass(frozen=True)
class Jump:
    """Jumps of B rows, and where they are to lead: latents, start, end, guidance, condition (3), clean, weight."""

    tensors: tuple[Tensor, ...]


def _jump(given: Given, solved: Solutions, begin: Tensor, end: Tensor) -> Jump:
    rows = torch.arange(given.size)
    state, target = solved.states[begin, rows], solved.states[end, rows]
    start, stop = solved.times[begin, rows], solved.times[end, rows]
    t, r = start[:, None, None], stop[:, None, None]
    wanted = state - t * (state - target) / (t - r).clamp(min=1e-4)
    weight = given.weight / t.clamp(min=JUMP_WEIGHT_TIME) ** 2
    return Jump((state, start, stop, given.guidance, *given.condition, wanted, weight))


@torch.no_grad()  # type: ignore[untyped-decorator]
def play(decoder: JumpDecoder, given: Given, times: Tensor) -> Tensor:
    """Where jumps through times `[N + 1, B]` lead from the first of them `[B, T, C]`."""
    state = given.noised(times[0])
    for start, stop in itertools.pairwise(times):
        found = decoder.jump_clean(state, (start, stop), given.guidance, *given.condition)
        ratio = (stop / start.clamp(min=1e-6))[:, None, None]
        state = given.with_known(ratio * state + (1.0 - ratio) * found, stop)
    return state


def judged(decoder: JumpDecoder, given: Given, clean: Tensor) -> dict[str, float]:
    """By number of jumps the mean distance |x - x*| / |x* - silence| from solutions that begin with noise."""
    found = {}
    for count in JUDGED_JUMPS:
        times = shifted(torch.linspace(1.0, 0.0, count + 1)[:, None].expand(-1, given.size))
        error = (play(decoder, given, times) - clean).flatten(1).norm(dim=1)
        found[f"distance_{count}"] = float((error / (clean - SILENCE).flatten(1).norm(dim=1)).mean())
    return found


def judge_of(worker: Distiller) -> tuple[Given, Tensor]:
    """Rows of other songs that begin with noise, and the teacher's converged solutions of them."""
    others = make_pool(draw_songs(64, 1_000_003), 1_000_003, partial(hints_of, worker.parts.tokenizer))
    rng = np.random.default_rng(7)
    given = given_of(worker.parts, draw_batch(others, rng, 24, CANVAS_FRAMES), rng)
    given = given.rows(given.start == 1.0)
    way = shifted(torch.linspace(1.0, 0.0, worker.config.judge_steps + 1)[:, None].expand(-1, given.size))
    return given, solve(worker.parts, given, way, given.noise).states[-1]


def distill(config: DistillConfig, folder: Path, checkpoint: Path) -> Distiller:
    """Distill to the end of the recipe, resuming from the checkpoint where there is one."""
    worker = Distiller(config, folder)
    if checkpoint.exists():
        worker.load(checkpoint)
    pool = make_pool(draw_songs(config.num_songs, config.seed), config.seed, partial(hints_of, worker.parts.tokenizer))
    judge = judge_of(worker)
    losses: list[tuple[float, float]] = []
    while worker.step < config.steps:
        begin = time.monotonic()
        losses.append(worker.train_step(pool))
        worker.elapsed_s += time.monotonic() - begin
        if worker.step % config.log_every == 0:
            jump, base = np.mean(losses, axis=0)
            _log(step=worker.step, jump=float(jump), base=float(base), elapsed_s=worker.elapsed_s)
            losses.clear()
        if worker.step % config.checkpoint_every == 0 or worker.step >= config.steps:
            worker.save(checkpoint)
            _log(step=worker.step, **judged(worker.average, *judge))
    return worker


def _log(**fields: Any) -> None:
    rounded = {key: round(value, 5) if isinstance(value, float) else value for key, value in fields.items()}
    print(json.dumps(rounded), flush=True)
