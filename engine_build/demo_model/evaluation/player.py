"""Plays a bundle through the real tick loop: engines built in a folder of their own, no torch."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from engine_build.build.builder import build_deployment
from engine_build.demo_model.latents import FloatArray
from runtime.config.deployment import load_deployment
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment
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
"""


class Player:
    """Generates latents with the bundle's default sampler; up to 264 prompts at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
        """Latents f32 `[B, T, C]` of one canvas per prompt, in a live session's steps where asked.

        The seeds are `seed`, `seed + 1` and so on.
        """
        sampler = self.pipeline.bundle.sampler
        steps = sampler.live_steps if live else sampler.steps
        seeded = enumerate(prompts, start=seed)
        return self._run([self.pipeline.request(prompt, seed=number, steps=steps) for number, prompt in seeded])

    def continue_from(self, prompts: Sequence[str], tails: FloatArray, seed: int) -> FloatArray:
        """Latents f32 `[B, T, C]` of one canvas that begins with `tails` f32 `[B, n, C]`, as in a continued stream."""
        keep, frames = tails.shape[1], self.pipeline.canvas_frames
        segment = Segment(0, frames, keep)
        requests = [
            self.pipeline.compose(parse_options({"prompt": prompt, "seed": seed + index}), segment, tail=tail)
            for index, (prompt, tail) in enumerate(zip(prompts, tails, strict=True))
        ]
        return self._run(requests)

    def decode(self, latents: FloatArray) -> FloatArray:
        """Audio f32 `[samples, 2]` of latents `[T, C]`."""
        assert self.pipeline.codec is not None
        return np.asarray(self.pipeline.codec.decode(latents), np.float32)

    def _run(self, requests: Sequence[GenerationRequest]) -> FloatArray:
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
        return np.stack([_latents(ended[str(index)]) for index in range(len(requests))])


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
