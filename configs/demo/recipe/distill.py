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
import numpy.typing as npt
import onnx
import torch
from diffusers import AceStepTransformer1DModel
from onnx import numpy_helper
from safetensors.torch import load_file
from torch import Tensor, nn

from configs.demo.recipe.adapter import LowRank
from configs.demo.recipe.corpus.batches import Batch, Pool, draw_batch, draw_songs, make_pool
from configs.demo.recipe.corpus.vocabulary import NUM_TOKENS
from configs.demo.recipe.latents import CANVAS_FRAMES, SILENCE, FloatArray
from configs.demo.recipe.model import (
    CONDITION_WIDTH,
    DECODER_CONFIG,
    ClockedDecoder,
    TimbreEncoder,
)
from configs.demo.recipe.structure import StructureTokenizer, hints_of
from configs.demo.recipe.train import WEIGHT_TIME
from engine_build.export.acestep.graphs import MaskedDecoder
from engine_build.graphs.adapter_graph import linear_matrices
from runtime.config.sampler import APG

GUIDANCE_FEATURES: Final = 3
GUIDANCE_WIDTH: Final = 64
MOST_GUIDANCE: Final = 6.0
USUAL_GUIDANCE: Final = 3.0
TOKENIZER: Final = "tokenizer."
SHIFT: Final = 3.0
# Pairs lie as far from each other as steps of 2 to 8 do, mostly.
LONGEST_JUMP: Final = 0.55


@dataclass(frozen=True)
class DistillConfig:
    """The recipe, in float32. It ends after `steps` of the optimizer."""

    steps: int = 6_000
    batch_size: int = 16
    learning_rate: float = 6e-4
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


class GuidedTime(nn.Module):
    """`time_embed_r` of a pair (t - r, log g) in place of t - r. Guidance of 1 adds exactly 0."""

    def __init__(self, embed: nn.Module, width: int) -> None:
        super().__init__()
        self.embed = embed
        self.features = nn.Linear(GUIDANCE_FEATURES, GUIDANCE_WIDTH, bias=False)
        self.mean = nn.Linear(GUIDANCE_WIDTH, width, bias=False)
        self.scales = nn.Linear(GUIDANCE_WIDTH, 6 * width, bias=False)
        for zero in (self.mean, self.scales):
            nn.init.zeros_(zero.weight)

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs `[B, 2]` -> the embedding `[B, width]` and its projection `[B, 6, width]`."""
        mean, scales = self.embed(pair[:, 0])
        log = pair[:, 1:]
        hidden = nn.functional.silu(self.features(torch.cat([log, log**2, log**3], dim=-1)))
        return mean + self.mean(hidden), scales + self.scales(hidden).view_as(scales)


class FirstColumn(nn.Module):
    """`time_embed` of the first column of a pair (t, log g)."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs `[B, 2]` -> the embedding and its projection."""
        found: tuple[Tensor, Tensor] = self.embed(pair[:, 0])
        return found


class JumpDecoder(ClockedDecoder):
    """A clocked decoder with two more inputs: where the jump ends, and the guidance that is built in."""

    def __init__(self, decoder: MaskedDecoder) -> None:
        super().__init__(decoder)
        transformer = decoder.decoder
        transformer.time_embed = FirstColumn(transformer.time_embed)
        transformer.time_embed_r = GuidedTime(transformer.time_embed_r, int(DECODER_CONFIG["hidden_size"]))

    def jump_clean(
        self,
        latents: Tensor,
        times: tuple[Tensor, Tensor],
        guidance: Tensor,
        condition: Tensor,
        keep: Tensor,
        context: Tensor,
    ) -> Tensor:
        """`x - t u(x, t, r, g)`: the clean latents where r = 0. Times (t, r) `[B]` each, guidance `[B]`."""
        log = torch.log(guidance.clamp(min=1e-3))
        self.masked.ends = torch.stack([times[1], torch.zeros_like(log)], dim=-1)
        pair = torch.stack([times[0], log], dim=-1)
        estimate: Tensor = self.clean(latents, pair, condition, keep, context)
        return estimate


class PairDecoder(MaskedDecoder):
    """The masked decoder with an end of the jump beside its time."""

    ends: Tensor

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
    ) -> Tensor:
        """As MaskedDecoder's; timestep `[B, 2]`."""
        bias = (1.0 - condition_mask[:, None, None, :]) * torch.finfo(torch.float32).min
        pair = (encoder_hidden_states, bias)
        outputs = self.decoder(hidden_states, timestep, self.ends, pair, context_latents, return_dict=False)
        velocity: Tensor = outputs[0]
        return velocity


@dataclass
class Parts:
    """What a bundle's conditions are made of, in torch: all frozen."""

    decoder: ClockedDecoder
    table: Tensor
    timbre: TimbreEncoder
    tokenizer: StructureTokenizer

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
    decoder = ClockedDecoder(MaskedDecoder(AceStepTransformer1DModel(**DECODER_CONFIG)))
    load_graph(decoder, folder / "decoder.onnx")
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
    return Parts(decoder, torch.from_numpy(table.copy()), timbre, tokenizer)


def initializers(model: onnx.ModelProto) -> dict[str, npt.NDArray[Any]]:
    """Name -> value of a graph's constants."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def load_graph(decoder: nn.Module, file: Path) -> None:
    """Weights of a decoder's graph into the module that was exported."""
    model = onnx.load(file)
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
            raise RuntimeError(f"{file.name} has no weights of {name}")
        state[name] = torch.from_numpy(weights[matrices[path].weight].T.copy())
    decoder.load_state_dict(state)


@dataclass(frozen=True)
class Solutions:
    """Solutions of the teacher: states `[N + 1, B, T, C]` at times `[N + 1, B]`, and what they are solutions of."""

    states: Tensor
    times: Tensor
    guidance: Tensor
    tokens: Tensor
    keep: Tensor
    context: Tensor
    noise: Tensor
    weight: Tensor
    adapters: Tensor  # int64 `[B]`; 0: none


def shifted(times: Tensor) -> Tensor:
    """Times of a schedule, moved towards noise."""
    return SHIFT * times / (1.0 + (SHIFT - 1.0) * times)


def guided(positive: Tensor, negative: Tensor, momentum: Tensor, guidance: Tensor) -> tuple[Tensor, Tensor]:
    """Adaptive projected guidance as the step graph has it, and the new momentum."""
    momentum = positive - negative + float(APG.momentum or 0.0) * momentum
    norm = momentum.norm(dim=1, keepdim=True).clamp(min=1e-12)
    change = momentum * (float(APG.norm_limit or math.inf) / norm).clamp(max=1.0)
    unit = positive / positive.norm(dim=1, keepdim=True).clamp(min=1e-12)
    change = change - (change * unit).sum(dim=1, keepdim=True) * unit
    return positive + (guidance - 1.0) * change, momentum


def with_known(state: Tensor, time: Tensor, noise: Tensor, context: Tensor) -> Tensor:
    """Known frames as they are at a time."""
    known, generate = context.chunk(2, dim=-1)
    return generate * state + (1.0 - generate) * (time * noise + (1.0 - time) * known)


@torch.no_grad()  # type: ignore[untyped-decorator]
def solve(
    parts: Parts, batch: Batch, steps: int, rng: np.random.Generator, adapters: "Adapters | None" = None
) -> Solutions:
    """Solutions by `ab2`, guided; of batches with a longest time below 1, from the noised clean latents."""
    clean, noise, context = (torch.from_numpy(each) for each in (batch.latents, batch.noise, batch.context))
    size = clean.shape[0]
    guidance = torch.from_numpy(draw_guidance(rng, size))
    tokens, keep, negative = parts.condition(batch)
    is_free = context[:, :, clean.shape[2] :].amin(dim=(1, 2)) > 0
    starts = np.where(is_free.numpy() & (rng.random(size) < 0.25), rng.uniform(0.3, 1.0, size), 1.0)
    start = torch.from_numpy(starts.astype(np.float32))  # before the shift
    grid = shifted(torch.linspace(1.0, 0.0, steps + 1)[:, None] * start[None])  # [N + 1, B]
    first = grid[0][:, None, None]
    state = first * noise + (1.0 - first) * clean
    adapter = 0 if adapters is None else adapters.draw(rng)
    states, momentum, before = [], torch.zeros_like(state), None
    for index in range(steps):
        now, then = grid[index][:, None, None], grid[index + 1][:, None, None]
        state = with_known(state, now, noise, context)
        states.append(state)
        twice = [torch.cat([each, each]) for each in (state, grid[index], tokens)]
        positive, opposite = parts.decoder(*twice, torch.cat([keep, negative]), torch.cat([context, context])).chunk(2)
        velocity, momentum = guided(positive, opposite, momentum, guidance[:, None, None])
        taken, length = velocity, then - now
        if before is not None and index < steps - 1:
            at_middle = (before[1] + length / 2) / before[1]
            taken = (1.0 - at_middle) * before[0] + at_middle * velocity
        before = velocity, length
        state = state + length * taken
    state = with_known(state, torch.zeros(()), noise, context)
    if adapters is not None:
        adapters.choose(0)
    return Solutions(
        torch.stack([*states, state]), grid, guidance, tokens, keep, context, noise,
        torch.from_numpy(batch.weight), torch.full((size,), adapter),
    )  # fmt: skip


def draw_guidance(rng: np.random.Generator, size: int) -> FloatArray:
    """Guidance f32 `[B]`: the usual one, or any."""
    any_one = rng.uniform(1.0, MOST_GUIDANCE, size)
    return np.where(rng.random(size) < 0.5, USUAL_GUIDANCE, any_one).astype(np.float32)


class Adapters:
    """LoRA adapters of the bundle on several decoders: each batch has one, or none."""

    def __init__(self, files: list[Path], decoders: list[nn.Module], share: float = 0.2) -> None:
        self.share, self.count, self.chosen = share, len(files), 0
        self._terms: list[list[LowRank | None]] = []
        for decoder in decoders:
            for path, module in decoder.get_submodule("masked.decoder").named_modules():
                if path.startswith("layers.") and isinstance(module, nn.Linear):
                    terms: list[LowRank | None] = [None]
                    for file in files:
                        tensors = load_file(file)
                        term = LowRank(module)
                        term.a.data = tensors[f"transformer.{path}.lora_A.weight"].float()
                        term.b.data = tensors[f"transformer.{path}.lora_B.weight"].float()
                        terms.append(term.requires_grad_(False))
                    module.register_forward_hook(partial(self._add, terms))

    def _add(
        self, terms: list[LowRank | None], module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        term = terms[self.chosen]
        return output if term is None else term.add(module, inputs, output)

    def draw(self, rng: np.random.Generator) -> int:
        """Choose none, or any."""
        self.choose(int(rng.integers(1, self.count + 1)) if self.count and rng.random() < self.share else 0)
        return self.chosen

    def choose(self, number: int) -> None:
        """0: none."""
        self.chosen = number


def new_student(parts: Parts) -> JumpDecoder:
    """The teacher's weights; the new inputs change nothing yet."""
    plain = copy.deepcopy(parts.decoder)
    paired = PairDecoder.__new__(PairDecoder)
    nn.Module.__init__(paired)
    paired.decoder = plain.masked.decoder
    student = JumpDecoder(paired)
    student.requires_grad_(True)
    return student


class Distiller:
    """Owns student, its average, the optimizer, the solutions and the step count."""

    def __init__(self, config: DistillConfig, folder: Path) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config, self.parts = config, read_parts(folder)
        self.student = new_student(self.parts)
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
            is_own = (before < begin)[:, None, None]
            state = torch.where(is_own, own, state)
        t, r = start[:, None, None], stop[:, None, None]
        wanted = state - t * (state - target) / (t - r)
        found = self.student.jump_clean(state, (start, stop), *given)
        return torch.mean(solutions.weight[rows] * ((found - wanted) / t.clamp(min=WEIGHT_TIME)) ** 2)

    def base_loss(self, solutions: Solutions, rng: np.random.Generator, size: int) -> Tensor:
        """Of the velocity at r = t without guidance, at the same states: what it was before, also without prompt."""
        rows = torch.from_numpy(rng.choice(solutions.guidance.shape[0], size, replace=False))
        begin = torch.from_numpy(rng.integers(0, len(solutions.states) - 1, size))
        state, time_ = self._at(solutions, rows, begin), solutions.times[begin, rows]
        keep = solutions.keep[rows].clone()
        keep[torch.from_numpy(rng.random(size) < 0.4), 3:] = 0.0
        given = solutions.tokens[rows], keep, solutions.context[rows]
        with torch.no_grad():
            wanted = self.parts.decoder.clean(state, time_, *given)
        found = self.student.jump_clean(state, (time_, time_), torch.ones(size), *given)
        weight = solutions.weight[rows] / time_[:, None, None].clamp(min=WEIGHT_TIME) ** 2
        return torch.mean(weight * (found - wanted) ** 2)

    @staticmethod
    def _at(solutions: Solutions, rows: Tensor, index: Tensor) -> Tensor:
        return solutions.states[index, rows]


def draw_pairs(rng: np.random.Generator, size: int, steps: int) -> tuple[Tensor, Tensor]:
    """Indices of times, of where jumps begin and end: a length of up to half the way, or to the end."""
    begin = rng.integers(0, steps, size)
    length = np.maximum(1, np.round(rng.uniform(0.02, LONGEST_JUMP, size) * steps)).astype(int)
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
