"""Training: the structure tokenizer, then flow matching on the corpus by AdamW with an average of the weights."""

import copy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from configs.demo.recipe.corpus.batches import (
    Batch,
    Pool,
    draw_batch,
    draw_songs,
    make_pool,
    render_songs,
)
from configs.demo.recipe.latents import CANVAS_FRAMES
from configs.demo.recipe.model import DemoModel, new_model, num_parameters
from configs.demo.recipe.structure import StructureTokenizer, TokenizerConfig, hints_of, train_tokenizer

HELD_OUT_SEED = 1_000_003
# Below this flow time an error of the clean latents counts no more than at it.
WEIGHT_TIME = 0.3
TOKENIZER_SONGS = 1500
SHORT_EVERY = 8
_RECIPE_FIELDS: Final = ("batch_size", "learning_rate", "num_songs", "seed", "threads")


@dataclass(frozen=True)
class TrainConfig:
    """The recipe, in float32: a CPU without bfloat16 takes three times as long for that.

    It ends after `steps`, 100 minutes of two cores, so that a slower machine has the same result.
    """

    steps: int = 12_000
    batch_size: int = 16
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.01
    warmup_steps: int = 300
    decay_share: float = 0.75
    average_decay: float = 0.999
    num_songs: int = 14_000
    seed: int = 1
    threads: int = 2
    checkpoint_every: int = 250
    log_every: int = 100
    tokenizer_steps: int = 2500


class Trainer:
    """Owns the model, its weight average, the optimizer and the step count; all are saved in a checkpoint.

    The structure tokenizer is saved with them; it is trained before.
    """

    def __init__(self, config: TrainConfig, tokenizer: StructureTokenizer) -> None:
        torch.set_num_threads(config.threads)
        self.config, self.tokenizer = config, tokenizer
        self.model = new_model(config.seed)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.step = 0
        self.elapsed_s = 0.0

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return self.step / self.config.steps

    def train_step(self, batch: Batch) -> float:
        """One optimizer step; returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step, self.progress)
        loss = flow_loss(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._update_average()
        return float(loss.item())

    def _update_average(self) -> None:
        weight = 1.0 - min(self.config.average_decay, self.step / (self.step + 10.0))
        torch._foreach_lerp_(list(self.average.parameters()), [p.detach() for p in self.model.parameters()], weight)

    def save(self, path: Path) -> None:
        """Write a checkpoint; a reader never sees half of one."""
        state = {
            "config": asdict(self.config),
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "tokenizer": self.tokenizer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.tokenizer.load_state_dict(state["tokenizer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.elapsed_s = int(state["step"]), float(state["elapsed_s"])


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Warm up over the first steps, hold, then fall to zero over the last `decay_share` of the run."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    decay = min(1.0, max(0.0, 1.0 - progress) / config.decay_share)
    return config.learning_rate * warm * decay


def flow_loss(model: DemoModel, batch: Batch) -> Tensor:
    """Mean squared error of the velocity `noise - clean` at `t noise + (1 - t) clean` (Lipman et al., 2023).

    It is that of the clean latents over t^2; t counts as `WEIGHT_TIME` at least.
    """
    clean, noise, at = (torch.from_numpy(array) for array in (batch.latents, batch.noise, batch.time))
    at, time = at[:, None, None], at
    arrays = (batch.token_ids, batch.mask, batch.reference, batch.context, batch.weight)
    ids, mask, reference, context, weight = (torch.from_numpy(array) for array in arrays)
    found = model.clean(at * noise + (1.0 - at) * clean, time, ids, mask, reference, context)
    return torch.mean(weight * ((found.float() - clean) / at.clamp(min=WEIGHT_TIME)) ** 2)


def training_batch(pool: Pool, config: TrainConfig, step: int) -> Batch:
    """The batch of a step, the same in an interrupted run; some have twice the rows of half a canvas."""
    rng = np.random.default_rng([config.seed, step])
    if step % SHORT_EVERY == SHORT_EVERY - 1:
        return draw_batch(pool, rng, 2 * config.batch_size, CANVAS_FRAMES // 2)
    return draw_batch(pool, rng, config.batch_size, CANVAS_FRAMES)


def held_out_batches(tokenizer: StructureTokenizer, num_batches: int = 4) -> list[Batch]:
    """Batches of songs that training never sees."""
    pool = make_pool(draw_songs(64, HELD_OUT_SEED), HELD_OUT_SEED, partial(hints_of, tokenizer))
    return [draw_batch(pool, np.random.default_rng([7, index]), 16, CANVAS_FRAMES) for index in range(num_batches)]


def held_out_loss(model: DemoModel, batches: list[Batch]) -> float:
    """Loss in float32."""
    with torch.no_grad():
        return float(np.mean([flow_loss(model, batch).item() for batch in batches]))


def train(config: TrainConfig, checkpoint: Path) -> Trainer:
    """Train to the end of the recipe, resuming from the checkpoint where there is one."""
    trainer = Trainer(config, StructureTokenizer())
    if checkpoint.exists():
        trainer.load(checkpoint)
    else:
        with _clock(trainer):
            trainer.tokenizer = new_tokenizer(config)
        trainer.save(checkpoint)
    _log(parameters=num_parameters(trainer.model), songs=config.num_songs, resumed_at=trainer.step)
    pool = make_pool(draw_songs(config.num_songs, config.seed), config.seed, partial(hints_of, trainer.tokenizer))
    held_out = held_out_batches(trainer.tokenizer)
    losses: list[float] = []
    while trainer.progress < 1.0:
        with _clock(trainer):
            losses.append(trainer.train_step(training_batch(pool, config, trainer.step)))
        if trainer.step % config.log_every == 0:
            rate = learning_rate(config, trainer.step, trainer.progress)
            _log(step=trainer.step, loss=float(np.mean(losses)), lr=rate, elapsed_s=trainer.elapsed_s)
            losses.clear()
        if trainer.step % config.checkpoint_every == 0 or trainer.progress >= 1.0:
            trainer.save(checkpoint)
            _log(step=trainer.step, held_out_loss=held_out_loss(trainer.average, held_out))
    return trainer


def new_tokenizer(config: TrainConfig) -> StructureTokenizer:
    """Train the structure tokenizer on songs of its own."""
    torch.set_num_threads(config.threads)
    songs = draw_songs(min(config.num_songs, TOKENIZER_SONGS), config.seed + 1)
    recipe = TokenizerConfig(steps=config.tokenizer_steps, seed=config.seed)
    return train_tokenizer(songs, render_songs(songs), recipe, _log)


@contextmanager
def _clock(trainer: Trainer) -> Iterator[None]:
    start = time.monotonic()
    yield
    trainer.elapsed_s += time.monotonic() - start


def _log(**fields: Any) -> None:
    rounded = {key: round(value, 5) if isinstance(value, float) else value for key, value in fields.items()}
    print(json.dumps(rounded), flush=True)


def load_average(checkpoint: Path) -> tuple[DemoModel, StructureTokenizer, dict[str, Any]]:
    """The averaged weights of a checkpoint as a model, the structure tokenizer, and the figures of their training."""
    state = torch.load(checkpoint, weights_only=True)
    model, tokenizer = DemoModel(), StructureTokenizer()
    model.load_state_dict(state["average"])
    tokenizer.load_state_dict(state["tokenizer"])
    figures = {
        "parameters": num_parameters(model),
        "steps": state["step"],
        "minutes": round(state["elapsed_s"] / 60, 1),
    }
    return model.eval(), tokenizer.eval(), figures | {field: state["config"][field] for field in _RECIPE_FIELDS}
