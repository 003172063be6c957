"""Training of the planner: the likelihood of plans and of codes, on songs that are drawn anew for every step."""

import json
import time
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from configs.demo.recipe.planner.model import Planner
from configs.demo.recipe.planner.pages import (
    StructureCodes,
    draw_form,
    draw_opening,
    draw_piece,
    plan_page,
    recalled_codes,
    section_page,
)
from configs.demo.recipe.planner.tokens import (
    FIRST_CODE_ID,
    FIRST_LAYERS_ID,
    GROUP_SIZE,
    LAYER_SETS,
    NUM_GROUPS,
    NUM_TOKENS,
    PLAN,
    RECALL,
    SECTION,
    TOKEN_IDS,
)
from runtime.commands.terminal import print_line

HELD_OUT_SEED: Final = 1_000_033
OPENING_TOKENS: Final = 64

Pages = list[list[int]]


@dataclass(frozen=True)
class PlannerConfig:
    """The recipe. Training ends after `steps`; the learning rate falls to zero over its last `decay_share`.

    recall_share: of the pages whose section returns, those that have the recalled codes. openings_per_step: first
    tokens of sections without anything before them, of which key and layers can only be known from the header.
    muted_share: of the layers of pages, those that are silent for a while, after which they have to come in.
    silence_share: of the silent codes of layers that sound, those that are predicted. Silence is one code and what may
    sound instead are many, so that a sampler that keeps the likeliest codes prefers silence; this makes up for it.
    """

    steps: int = 4_000  # 73 minutes of one core
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup_steps: int = 60
    decay_share: float = 0.6
    songs_per_step: int = 2
    sections_per_song: int = 2
    openings_per_step: int = 24
    plans_per_step: int = 8
    seed: int = 1
    recall_share: float = 0.85
    threads: int = 1
    muted_share: float = 0.25
    silence_share: float = 0.65
    log_every: int = 200


class PlannerTrainer:
    """Owns the model, the optimizer and the step count; all are saved in a checkpoint."""

    def __init__(self, config: PlannerConfig) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config, self.model = config, Planner()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), config.learning_rate, (0.9, 0.98), weight_decay=config.weight_decay, fused=True
        )
        self.step, self.elapsed_s = 0, 0.0

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return self.step / self.config.steps

    def train_step(self, pages: Pages) -> float:
        """One optimizer step; returns the loss in nats per predicted token."""
        warm = min(1.0, (self.step + 1) / self.config.warmup_steps)
        decay = min(1.0, max(0.0, 1.0 - self.progress) / self.config.decay_share)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * warm * decay
        batches = batches_of(pages)
        count, total = sum(int(is_predicted(batch).sum()) for batch in batches), 0.0
        for batch in batches:
            loss = token_losses(self.model, batch).sum() / count
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def save(self, path: Path) -> None:
        """Write a checkpoint; a reader never sees half of one."""
        state = {
            "config": asdict(self.config),
            "model": self.model.state_dict(),
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
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.elapsed_s = int(state["step"]), float(state["elapsed_s"])


def draw_pages(structure: StructureCodes, config: PlannerConfig, seed: int, step: int) -> Pages:
    """Pages of a step: the plans of some songs and some of their sections; deterministic per seed and step."""
    rng, pages = np.random.default_rng([seed, step, 1]), list[list[int]]()
    for index in range(config.songs_per_step):
        piece = draw_piece(structure, seed, step * config.songs_per_step + index)
        sections = rng.permutation(len(piece.arrangement.sections))[: config.sections_per_song]
        pages.append(plan_page(piece, rng))
        for section in map(int, sections):
            recalled = recalled_codes(structure, piece, section) if rng.random() < config.recall_share else None
            pages.append(section_page(piece, section, recalled))
    forms = [draw_form(rng) for _ in range(max(config.openings_per_step, config.plans_per_step))]
    pages += [plan_page(form, rng) for form in forms[: config.plans_per_step]]
    openings = [draw_opening(structure, form, rng) for form in forms[: config.openings_per_step]]
    pages += [section_page(opening, 0)[:OPENING_TOKENS] for opening in openings]
    return [muted(structure, page, config, rng) for page in pages]


def muted(structure: StructureCodes, page: list[int], config: PlannerConfig, rng: np.random.Generator) -> list[int]:
    """A page with some codes of some layers silent, as tokens from `NUM_TOKENS` on: read and not predicted."""
    tokens = np.array(page)
    places, is_own = np.arange(1, len(page)), is_predicted(torch.tensor([page]))[0].numpy()
    for group, silent in enumerate(structure.silent.values()):
        first = FIRST_CODE_ID + group * GROUP_SIZE
        own = places[is_own & (tokens[1:] >= first) & (tokens[1:] < first + GROUP_SIZE)]
        rests = own[tokens[own] == silent]
        tokens[rests[rng.random(len(rests)) >= config.silence_share]] = silent + NUM_TOKENS
        if len(own) and rng.random() < config.muted_share:
            start = int(rng.integers(len(own))) if rng.random() < 0.5 else 0
            tokens[own[start : start + int(rng.integers(1, max(2, len(own) // 2)))]] = silent + NUM_TOKENS
    return [int(token) for token in tokens]


def batches_of(pages: Pages) -> list[Tensor]:
    """Pages of one length side by side, int64 `[B, S]`."""
    by_length = groupby(sorted(pages, key=len), key=len)
    return [torch.tensor(list(group)) for _, group in by_length]


def is_predicted(tokens: Tensor) -> Tensor:
    """Which tokens after the first count, bool `[B, S - 1]`: own codes of layers that sound, what follows PLAN."""
    targets, is_planned = tokens[:, 1:], (tokens[:, :-1] == TOKEN_IDS[PLAN]).cumsum(1) > 0
    recalls = (tokens[:, :-1] == TOKEN_IDS[RECALL]).cumsum(1)
    is_recalled = recalls > nn.functional.pad(recalls, (NUM_GROUPS, 0))[:, :-NUM_GROUPS]
    is_after = (tokens[:, :-1] == TOKEN_IDS[SECTION]).cumsum(1) > 0
    header = tokens.gather(1, (tokens == TOKEN_IDS[SECTION]).int().argmax(1, keepdim=True) + 2)
    group = ((targets - FIRST_CODE_ID) // GROUP_SIZE).clamp(0, NUM_GROUPS - 1)
    sounds = torch.tensor(LAYER_SETS)[(header[:, 0] - FIRST_LAYERS_ID).clamp(0, len(LAYER_SETS) - 1)].gather(1, group)
    is_code = (targets >= FIRST_CODE_ID) & (targets < NUM_TOKENS)
    return (is_code & ~is_recalled & is_after & sounds) | is_planned


def token_losses(model: Planner, tokens: Tensor) -> Tensor:
    """Cross entropy in nats of each token `[B, S - 1]` among those that may stand there, 0 where none is predicted."""
    table = model.table()
    hidden, targets, wanted = model(table[tokens[:, :-1] % NUM_TOKENS]), tokens[:, 1:], is_predicted(tokens)
    losses = hidden.new_zeros(targets.shape)
    firsts = [0, *(FIRST_CODE_ID + group * GROUP_SIZE for group in range(NUM_GROUPS + 1))]
    for first, end in pairwise(firsts):
        chosen = wanted & (targets >= first) & (targets < end)
        logits = hidden[chosen] @ table[first:end].T
        losses = losses.masked_scatter(
            chosen, nn.functional.cross_entropy(logits, targets[chosen] - first, reduction="none")
        )
    return losses


def held_out_figures(model: Planner, pages: Pages) -> dict[str, float]:
    """Nats per token of sections that are new, that return, of openings and of plans."""
    found = dict[str, list[Tensor]](new=[], returning=[], opening=[], plan=[])
    for batch in batches_of(pages):
        with torch.no_grad():
            losses = token_losses(model, batch)
        wanted = is_predicted(batch)
        is_code = wanted & (batch[:, 1:] >= FIRST_CODE_ID)
        is_return = (batch == TOKEN_IDS[RECALL]).any(1, keepdim=True)
        found["opening" if batch.shape[1] == OPENING_TOKENS else "new"].append(losses[is_code & ~is_return])
        found["returning"].append(losses[is_code & is_return])
        found["plan"].append(losses[wanted & ~is_code])
    return {f"nats_{name}": float(torch.cat(parts).mean()) for name, parts in found.items()}


def train(config: PlannerConfig, bundle: Path, checkpoint: Path) -> PlannerTrainer:
    """Train to the end of the recipe on the codes of a bundle's structure graphs, resuming from the checkpoint."""
    trainer, structure, losses = PlannerTrainer(config), StructureCodes(bundle), list[float]()
    if checkpoint.exists():
        trainer.load(checkpoint)
    held_out = [page for step in range(8) for page in draw_pages(structure, config, HELD_OUT_SEED, step)]
    _log(parameters=sum(p.numel() for p in trainer.model.parameters()), resumed_at=trainer.step)
    start = time.monotonic() - trainer.elapsed_s
    while trainer.progress < 1.0:
        losses.append(trainer.train_step(draw_pages(structure, config, config.seed, trainer.step)))
        trainer.elapsed_s = time.monotonic() - start
        if trainer.step % config.log_every == 0 or trainer.progress >= 1.0:
            trainer.save(checkpoint)
            figures = held_out_figures(trainer.model, held_out)
            _log(step=trainer.step, elapsed_s=trainer.elapsed_s, loss=float(np.mean(losses)), **figures)
            losses.clear()
    return trainer


def _log(**fields: Any) -> None:
    print_line(
        json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in fields.items()})
    )
