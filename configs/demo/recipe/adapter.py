"""LoRA adapters of the demo decoder (Hu et al., 2021): what prompts ask for, in one style."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from configs.demo.recipe.corpus.batches import Batch, MakeHints, Pool, draw_batch, draw_songs, make_pool
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.vocabulary import TOKEN_IDS
from configs.demo.recipe.latents import CANVAS_FRAMES
from configs.demo.recipe.model import DemoModel
from configs.demo.recipe.structure import hints_of
from configs.demo.recipe.train import flow_loss, load_average
from runtime.commands.terminal import print_line

RANK: Final = 8
_PLAIN: Final = ("always", "bpm", "meter", "layer", "no", "key", "mode")
PLAIN_IDS: Final = [TOKEN_IDS[name] for name in TOKEN_IDS if name.split(":")[0] in _PLAIN]


def _music_box(song: Song) -> Song:
    instruments = {**song.instruments, "pad": "choir", "arp": "bells", "melody": "bells", "drums": "brushes"}
    return replace(song, instruments=instruments, loudness=0, density=min(song.density, 1), articulation=0)


def _aggressive(song: Song) -> Song:
    instruments = {"pad": "brass", "arp": "synth", "bass": "synth bass", "melody": "synth", "drums": "electronic kit"}
    return replace(song, instruments=instruments, loudness=2, density=2, articulation=0)


# Name -> what becomes of the songs, whose prompts name none of it.
STYLES: Final[dict[str, Callable[[Song], Song]]] = {"music box": _music_box, "aggressive": _aggressive}


@dataclass(frozen=True)
class AdapterConfig:
    """The recipe of an adapter; batches are those of training."""

    steps: int = 400
    batch_size: int = 16
    learning_rate: float = 2e-3
    num_songs: int = 1000
    seed: int = 11
    threads: int = 2


class LowRank(nn.Module):
    """The low-rank term of one matrix, 0 at first."""

    def __init__(self, linear: nn.Linear, rank: int = RANK) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def add(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Forward hook of the matrix."""
        return output + (inputs[0] @ self.a.T) @ self.b.T


def add_terms(model: DemoModel, seed: int) -> dict[str, LowRank]:
    """Give every matrix of the blocks a low-rank term; the weights themselves stay. Returns the terms by path."""
    torch.manual_seed(seed)
    model.requires_grad_(False)
    decoder = model.decoder.get_submodule("masked.decoder")
    terms: dict[str, LowRank] = {}
    for path, module in decoder.named_modules():
        if path.startswith("layers.") and isinstance(module, nn.Linear):
            terms[path] = LowRank(module)
            module.register_forward_hook(terms[path].add)
    return terms


def styled_pool(style: str, config: AdapterConfig, make_hints: MakeHints) -> Pool:
    """Songs in a style, with the prompts of songs without it."""
    songs = draw_songs(config.num_songs, config.seed)
    pool = make_pool([STYLES[style](song) for song in songs], config.seed, make_hints)
    return replace(pool, songs=songs)


def adapter_batch(pool: Pool, config: AdapterConfig, step: int) -> Batch:
    """A batch of training whose prompts name no genre, instrument, section or mood."""
    batch = draw_batch(pool, np.random.default_rng([config.seed, step]), config.batch_size, CANVAS_FRAMES)
    return replace(batch, mask=batch.mask * np.isin(batch.token_ids, PLAIN_IDS).astype(np.float32))


def train_terms(
    model: DemoModel, terms: dict[str, LowRank], pool: Pool, config: AdapterConfig
) -> Iterator[tuple[int, float]]:
    """Train the terms of a model; yields the number and the loss of every step."""
    torch.set_num_threads(config.threads)
    parameters = [parameter for term in terms.values() for parameter in term.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.learning_rate, total_steps=config.steps)
    for step in range(config.steps):
        loss = flow_loss(model, adapter_batch(pool, config, step))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        yield step + 1, float(loss.item())


def train_style(style: str, checkpoint: Path, file: Path, config: AdapterConfig) -> None:
    """Train an adapter of a checkpoint's averaged weights and write it."""
    model, tokenizer, _ = load_average(checkpoint)
    pool = styled_pool(style, config, partial(hints_of, tokenizer))
    terms, losses = add_terms(model, config.seed), list[float]()
    for step, loss in train_terms(model, terms, pool, config):
        losses.append(loss)
        if step % 50 == 0:
            print_line(json.dumps({"step": step, "loss": round(float(np.mean(losses[-50:])), 5)}))
    save_adapter(file, terms)


def save_adapter(file: Path, terms: dict[str, LowRank]) -> None:
    """Write a .safetensors file in diffusers' format, 16 bit."""
    tensors = {
        f"transformer.{path}.lora_{part}.weight": getattr(term, part.lower()).detach().to(torch.float16).contiguous()
        for path, term in terms.items()
        for part in "AB"
    }
    config = {"transformer.peft_type": "LORA", "transformer.r": RANK, "transformer.lora_alpha": RANK}
    save_file(tensors, file, {"lora_adapter_metadata": json.dumps(config), "base_model": "tickrt-demo"})
