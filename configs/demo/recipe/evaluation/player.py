"""Plays a bundle through the real tick loop: engines built in a folder of their own, no torch."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray
from engine_build.compile.builder import build_deployment
from runtime.config.deployment import load_deployment
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.requests.validation import plans_texts
from runtime.tick.events import Event, Failed, Finished

_DEPLOYMENT: Final = """\
[deployment]
bundle = "{bundle}"
target = "cpu"

[[shapes]]
rows = {{ min = 1, opt = 8, max = 16 }}
frames = {{ min = 2, opt = 256, max = 512 }}
tokens = {{ min = 1, opt = 16, max = 64 }}

[runtime]
depth = 8
queue = 256
planner_sequences = 8
"""


@dataclass(frozen=True)
class Piece:
    """What to generate: a prompt, other options by name, and sources."""

    prompt: str
    seed: int
    options: Mapping[str, Any]
    inputs: GenerationInputs = NO_INPUTS


class Player:
    """Generates with the bundle's default sampler; up to 264 pieces at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
        """Latents f32 `[B, T, C]` of one canvas per prompt, in a live session's steps where asked.

        The seeds are `seed`, `seed + 1` and so on.
        """
        sampler = self.pipeline.bundle.sampler
        steps = {"steps": sampler.live_steps if live else sampler.steps}
        return np.stack(self.generate([Piece(prompt, seed + i, steps) for i, prompt in enumerate(prompts)]))

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        """Latents f32 `[N, C]` of whole pieces, all of them at once, segment after segment."""
        return self.finish([self.begin(piece) for piece in pieces])

    def begin(self, piece: Piece) -> LongGeneration:
        """A piece's generation; without a plan where its options do not ask for one."""
        unplanned = {"plan": False} if plans_texts(self.pipeline.bundle) else {}
        options = parse_options({"prompt": piece.prompt, "seed": piece.seed, **unplanned, **piece.options})
        return LongGeneration(self.pipeline, options, piece.inputs)

    def finish(self, generations: Sequence[LongGeneration]) -> list[FloatArray]:
        """Latents f32 `[N, C]` of generations, all of them at once, segment after segment."""
        done: list[list[FloatArray]] = [[] for _ in generations]
        while requests := [(g, d, r) for g, d in zip(generations, done, strict=True) if (r := g.next_request())]:
            for (generation, parts, _), latents in zip(requests, self._run([r for *_, r in requests]), strict=True):
                parts.append(generation.append(latents))
        return [np.concatenate(parts) for parts in done]

    def finished_audio(self, piece: Piece) -> FloatArray:
        """Audio f32 `[samples, 2]` as a user gets it: decoded in windows and finished."""
        return np.concatenate(list(generate_audio(self.pipeline, self.begin(piece))))

    def decode(self, latents: FloatArray) -> FloatArray:
        """Audio f32 `[samples, 2]` of latents `[T, C]`, not finished."""
        assert self.pipeline.codec is not None
        return np.asarray(self.pipeline.codec.decode(latents), np.float32)

    def encode(self, audio: FloatArray) -> FloatArray:
        """Latents f32 `[T, C]` of audio `[samples, 2]`."""
        return np.asarray(self.pipeline.encode_source(audio, SAMPLE_RATE_HZ), np.float32)

    def _run(self, requests: Sequence[GenerationRequest]) -> list[FloatArray]:
        """Put all requests into the loop at once and wait for the last. Raises the error of one that failed."""
        ended: dict[str, Event] = {}
        all_ended = threading.Event()

        def listen(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                ended[event.request_id] = event
            if len(ended) == len(requests):
                all_ended.set()

        for index, request in enumerate(requests):
            self.pipeline.loop.submit(replace(request, id=str(index)), listen)
        all_ended.wait()
        return [_latents(ended[str(index)]) for index in range(len(requests))]


@contextmanager
def open_player(folder: Path) -> Iterator[Player]:
    """Build the bundle's engines in a temporary folder, open them and start the tick thread."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "demo.toml"
        path.write_text(_DEPLOYMENT.format(bundle=folder.resolve().as_posix()), encoding="utf-8")
        deployment = load_deployment(path)
        build_deployment(deployment)
        with open_pipeline(deployment) as pipeline:
            yield Player(pipeline)


def _latents(event: Event) -> FloatArray:
    if isinstance(event, Finished):
        return event.latents
    assert isinstance(event, Failed)
    raise event.error
