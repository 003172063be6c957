"""The bundle's own decoder as a teacher: its weights in torch, and what it generates, step by step, guided."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import torch
from diffusers import AceStepTransformer1DModel
from onnx import numpy_helper
from safetensors.torch import load_file
from torch import Tensor, nn

from configs.demo.recipe.adapter import LowRank
from configs.demo.recipe.bundle_text import jumps
from configs.demo.recipe.corpus.batches import Batch
from configs.demo.recipe.corpus.vocabulary import NUM_TOKENS
from configs.demo.recipe.latents import FloatArray
from configs.demo.recipe.model import (
    CONDITION_WIDTH,
    DECODER_CONFIG,
    MIN_TIME,
    ClockedDecoder,
    TimbreEncoder,
)
from configs.demo.recipe.structure import StructureTokenizer
from configs.demo.recipe.student import JumpDecoder
from engine_build.export.acestep.graphs import MaskedDecoder
from engine_build.graphs.adapter_graph import linear_matrices
from runtime.config.bundle import load_bundle
from runtime.config.sampler import GuidanceSpec

MOST_GUIDANCE: Final = 4.0
USUAL_GUIDANCE: Final = 2.14
TOKENIZER: Final = "tokenizer."
SHIFT: Final = 3.0


@dataclass
class Parts:
    """What a bundle's conditions and velocities are made of, in torch: all frozen."""

    decoder: ClockedDecoder | JumpDecoder
    table: Tensor
    timbre: TimbreEncoder
    tokenizer: StructureTokenizer
    rule: GuidanceSpec

    def clean(self, latents: Tensor, time: Tensor, *given: Tensor) -> Tensor:
        """The decoder's estimate of the clean latents `[B, T, C]`, unguided. given: tokens, their mask and context."""
        if isinstance(self.decoder, JumpDecoder):
            return self.decoder.jump_clean(latents, (time, time), torch.ones_like(time), *given)
        return self.decoder.clean(latents, time, *given)

    def velocity(self, latents: Tensor, time: Tensor, *given: Tensor) -> Tensor:
        """The same as a velocity."""
        return (latents - self.clean(latents, time, *given)) / time.clamp(min=MIN_TIME)[:, None, None]

    def guided(self, positive: Tensor, negative: Tensor, guidance: Tensor) -> Tensor:
        """Adaptive projected guidance as it is with many steps.

        Its momentum M <- d + mu M has then reached d / (1 - mu): a velocity that depends on nothing but the latents and
        the time, whose solutions are those of the step graph with many steps.
        """
        change = (positive - negative) / (1.0 - float(self.rule.momentum or 0.0))
        norm = change.norm(dim=1, keepdim=True).clamp(min=1e-12)
        change = change * (float(self.rule.norm_limit or math.inf) / norm).clamp(max=1.0)
        unit = positive / positive.norm(dim=1, keepdim=True).clamp(min=1e-12)
        change = change - (change * unit).sum(dim=1, keepdim=True) * unit
        return positive + (guidance - 1.0) * change

    def condition(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Condition tokens `[B, P + L, D]`, their mask, and the mask of the negative: no token but the first."""
        timbre = self.timbre(torch.from_numpy(batch.reference))
        tokens = torch.cat([timbre, self.table[torch.from_numpy(batch.token_ids)]], dim=1)
        kept = torch.from_numpy(batch.mask)
        is_timbre = torch.ones_like(timbre[:, :, 0])
        negative = kept.clone()
        negative[:, 1:] = 0.0
        return tokens, torch.cat([is_timbre, kept], dim=1), torch.cat([is_timbre, negative], dim=1)


def read_parts(folder: Path) -> Parts:
    """The weights of a bundle's graphs, as torch modules."""
    model = onnx.load(folder / "decoder.onnx")
    kind = JumpDecoder if jumps(model) else ClockedDecoder
    decoder = kind(MaskedDecoder(AceStepTransformer1DModel(**DECODER_CONFIG)))
    load_graph(decoder, model)
    timbre = TimbreEncoder()
    weights = initializers(onnx.load(folder / "timbre_encoder.onnx"))
    named = {name: weights[name] for name in timbre.state_dict() if name in weights}
    missing = {
        name: next(value.T for value in weights.values() if value.shape == tuple(reversed(parameter.shape)))
        for name, parameter in timbre.named_parameters()
        if name not in named
    }
    timbre.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in (named | missing).items()})
    tokenizer = StructureTokenizer()
    encoder, decoder_ = (initializers(onnx.load(folder / f"structure_{part}.onnx")) for part in ("encode", "decode"))
    found = {
        name.removeprefix(TOKENIZER): torch.from_numpy(value.copy())
        for name, value in (encoder | decoder_).items()
        if name.startswith(TOKENIZER)
    }
    tokenizer.load_state_dict(found, strict=False)
    absent = [name for name, _ in tokenizer.named_parameters() if name not in found]
    if absent:
        raise RuntimeError(f"no weights of {absent}")
    text = initializers(onnx.load(folder / "text_encoder.onnx"))
    table = next(value for value in text.values() if value.shape == (NUM_TOKENS, CONDITION_WIDTH))
    for module in (decoder, timbre, tokenizer):
        module.eval().requires_grad_(False)
    return Parts(decoder, torch.from_numpy(table.copy()), timbre, tokenizer, load_bundle(folder).guidance)


def initializers(model: onnx.ModelProto) -> dict[str, npt.NDArray[Any]]:
    """Name -> value of a graph's constants."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def load_graph(decoder: nn.Module, model: onnx.ModelProto) -> None:
    """Weights of a decoder's graph into the module that was exported."""
    weights = initializers(model)
    matrices = linear_matrices(model)
    state = decoder.state_dict()
    root = "masked.decoder."
    for name in state:
        if name in weights:
            state[name] = torch.from_numpy(weights[name].copy())
            continue
        path = name.removeprefix(root).removesuffix(".weight").removesuffix(".linear")
        if path not in matrices:
            raise RuntimeError(f"decoder.onnx has no weights of {name}")
        state[name] = torch.from_numpy(weights[matrices[path].weight].T.copy())
    decoder.load_state_dict(state)


@dataclass(frozen=True)
class Given:
    """What B rows are generated from, and how they are guided: `noise` and `clean` `[B, T, C]`, `guidance` `[B]`.

    condition: tokens `[B, L, D]`, their mask `[B, L]` and context `[B, T, 2C]`; negative: the mask of the negative.
    start `[B]`: the longest time before the shift, below 1 of rows that begin with their clean latents.
    """

    clean: Tensor
    noise: Tensor
    guidance: Tensor
    condition: tuple[Tensor, Tensor, Tensor]
    negative: Tensor
    weight: Tensor
    start: Tensor

    @property
    def size(self) -> int:
        """B."""
        return len(self.guidance)

    def rows(self, chosen: slice | Tensor) -> "Given":
        """Some of them."""
        tokens, keep, context = (each[chosen] for each in self.condition)
        return Given(
            self.clean[chosen], self.noise[chosen], self.guidance[chosen], (tokens, keep, context),
            self.negative[chosen], self.weight[chosen], self.start[chosen],
        )  # fmt: skip

    def noised(self, time: Tensor) -> Tensor:
        """The clean latents at times `[B]`, with the known frames."""
        t = time[:, None, None]
        return self.with_known(t * self.noise + (1.0 - t) * self.clean, time)

    def with_known(self, state: Tensor, time: Tensor) -> Tensor:
        """Known frames as they are at times `[B]`."""
        known, generate = self.condition[2].chunk(2, dim=-1)
        t = time[:, None, None]
        return generate * state + (1.0 - generate) * (t * self.noise + (1.0 - t) * known)


def given_of(parts: Parts, batch: Batch, rng: np.random.Generator) -> Given:
    """A batch's rows; a quarter of those without known frames begin with their clean latents."""
    clean, noise, context = (torch.from_numpy(each) for each in (batch.latents, batch.noise, batch.context))
    size = clean.shape[0]
    tokens, keep, negative = parts.condition(batch)
    is_free = context[:, :, clean.shape[2] :].amin(dim=(1, 2)) > 0
    starts = np.where(is_free.numpy() & (rng.random(size) < 0.25), rng.uniform(0.3, 1.0, size), 1.0)
    return Given(
        clean, noise, torch.from_numpy(draw_guidance(rng, size)), (tokens, keep, context), negative,
        torch.from_numpy(batch.weight), torch.from_numpy(starts.astype(np.float32)),
    )  # fmt: skip


@dataclass(frozen=True)
class Solutions:
    """A part of the teacher's way: states `[N + 1, B, T, C]` at times `[N + 1, B]`."""

    states: Tensor
    times: Tensor


def shifted(times: Tensor) -> Tensor:
    """Times of a schedule, moved towards noise."""
    return SHIFT * times / (1.0 + (SHIFT - 1.0) * times)


@torch.no_grad()  # type: ignore[untyped-decorator]
def solve(parts: Parts, given: Given, times: Tensor, state: Tensor) -> Solutions:
    """The guided teacher's way through times `[N + 1, B]` by `ab2`, from a state at the first of them."""
    states, before = [], None
    tokens, keep, context = given.condition
    both = [torch.cat([each, each]) for each in (tokens, context)]
    for now, then in itertools.pairwise(times):
        state = given.with_known(state, now)
        states.append(state)
        sides = parts.velocity(
            torch.cat([state, state]), torch.cat([now, now]), both[0], torch.cat([keep, given.negative]), both[1]
        )
        positive, opposite = sides.chunk(2)
        velocity = parts.guided(positive, opposite, given.guidance[:, None, None])
        taken, length = velocity, (then - now)[:, None, None]
        if before is not None and bool((then > 0).all()):
            taken = velocity + length / (2 * before[1].clamp(max=-1e-6)) * (velocity - before[0])
        before = velocity, length
        state = state + length * taken
    return Solutions(torch.stack([*states, given.with_known(state, times[-1])]), times)


def draw_guidance(rng: np.random.Generator, size: int) -> FloatArray:
    """Guidance f32 `[B]`: the usual one, or any."""
    any_one = rng.uniform(1.0, MOST_GUIDANCE, size)
    return np.where(rng.random(size) < 0.5, USUAL_GUIDANCE, any_one).astype(np.float32)


class Adapters:
    """LoRA adapters of the bundle on several decoders: each batch has one, or none, whose matrices are 0."""

    def __init__(self, files: list[Path], decoders: list[nn.Module], share: float = 0.2) -> None:
        self.share, self.count = share, len(files)
        self._terms: list[tuple[str, LowRank]] = []
        self._files = [load_file(file) for file in files]
        for decoder in decoders:
            for path, module in decoder.get_submodule("masked.decoder").named_modules():
                if files and path.startswith("layers.") and isinstance(module, nn.Linear):
                    term = LowRank(module).requires_grad_(False)
                    module.register_forward_hook(term.add)
                    self._terms.append((path, term))

    def draw(self, rng: np.random.Generator) -> int:
        """Choose none, or any; returns which."""
        chosen = int(rng.integers(1, self.count + 1)) if self.count and rng.random() < self.share else 0
        self.choose(chosen)
        return chosen

    def choose(self, number: int) -> None:
        """0: none."""
        for path, term in self._terms:
            if number:
                tensors = self._files[number - 1]
                term.a.copy_(tensors[f"transformer.{path}.lora_A.weight"])
                term.b.copy_(tensors[f"transformer.{path}.lora_B.weight"])
            else:
                term.b.zero_()
