"""Plays a bundle through the real tick loop: engines built in a folder of their own, no torch."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy as np

from configs.demo.recipe.latents import FRAME_RATE_HZ, SAMPLE_RATE_HZ, FloatArray
from engine_build.compile.builder import build_deployment
from runtime.config.deployment import load_deployment
from runtime.music.envelopes import Breath, Marks
from runtime.music.sections import SongSection, beats_of, section_prompts
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.plan import SongPlan
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.requests.seeds import segment_seed
from runtime.requests.validation import plans_texts
from runtime.tick.loop.events import Event, Failed, Finished

PLANS_AT_ONCE: Final = 8
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

[build]
precision = "auto"
"""


@dataclass(frozen=True)
class Piece:
    """What to generate: a prompt (or several with weights), other options by name, and sources."""

    prompt: str | list[dict[str, Any]]
    seed: int
    options: Mapping[str, Any]
    inputs: GenerationInputs = NO_INPUTS


class Generation(Protocol):
    """What gives requests, one segment after the other, and takes their latents `[T, C]`."""

    def next_request(self) -> GenerationRequest | None:
        """The next segment's; None after the last one."""

    def append(self, latents: FloatArray) -> FloatArray:
        """Its new frames `[n, C]`."""


class EndlessPiece:
    """The first `frames` frames of a planned session without end, in which nothing is changed."""

    def __init__(self, pipeline: Pipeline, piece: Piece, frames: int) -> None:
        assert pipeline.planner is not None
        self._pipeline, self._frames, self._seed = pipeline, frames, piece.seed
        options = parse_options({"prompt": piece.prompt, "steps": pipeline.bundle.sampler.live_steps})
        self._options = pipeline.prompts.drawn(options, piece.seed)
        self.plan = SongPlan(pipeline.planner, self._options, piece.seed)
        self._sections: dict[int, SongSection] = {}  # by their number; the plan forgets what is long past
        self._made = np.empty((0, pipeline.bundle.latents.channels), np.float32)
        self._index, notes = 0, pipeline.bundle.notes
        assert notes is not None
        self._breath = Breath(notes, pipeline.bundle.silence(1)[0])

    @property
    def sections(self) -> tuple[SongSection, ...]:
        """Those that were planned so far."""
        return tuple(self._sections.values())

    def next_request(self) -> GenerationRequest | None:
        """The next segment's, with the plan's hints, and the prompts of its sections."""
        segment = self._pipeline.lengths.next_segment(len(self._made), None)
        if segment is None or len(self._made) >= self._frames:
            return None
        first, planner = segment.start_frame, self._pipeline.planner
        hints = self.plan.hints(first, segment.frames)
        assert planner is not None
        assert planner.spec.plan is not None
        self._sections |= {each.index: each for each in self.plan.sections}
        end = first + segment.frames
        sections = [each for each in self._sections.values() if each.start_frame < end and each.end_frame > first]
        prompt = section_prompts(planner.spec.plan, self._options.prompt, sections, first, segment.frames)
        update = {"prompt": prompt, "seed": segment_seed(self._seed, self._index)}
        options = self._options.model_copy(update=update)
        return self._pipeline.composer.compose(options, segment, GenerationInputs(hints=hints), self._made)

    def append(self, latents: FloatArray) -> FloatArray:
        """Its new frames, cut behind the last."""
        segment = self._pipeline.lengths.next_segment(len(self._made), None)
        assert segment is not None
        new = latents[segment.keep_frames :][: self._frames - len(self._made)]
        frames = np.arange(len(self._made), len(self._made) + len(new))
        new = self._breath.shaped(new, Marks(beats_of(self.sections, frames, FRAME_RATE_HZ)))
        self._made, self._index = np.concatenate((self._made, new)), self._index + 1
        return new

    def close(self) -> None:
        """End its plan."""
        self.plan.close()


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

    def finish(self, generations: Sequence[Generation]) -> list[FloatArray]:
        """Latents f32 `[N, C]` of generations, all of them at once, segment after segment."""
        done: list[list[FloatArray]] = [[] for _ in generations]
        with ThreadPoolExecutor(PLANS_AT_ONCE) as pool:
            while requests := {i: request for i, request in enumerate(pool.map(_next, generations)) if request}:
                for index, latents in zip(requests, self.run(list(requests.values())), strict=True):
                    done[index].append(generations[index].append(latents))
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
        return np.asarray(self.pipeline.inputs.encode_source(audio, SAMPLE_RATE_HZ), np.float32)

    def run(self, requests: Sequence[GenerationRequest]) -> list[FloatArray]:
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


def _next(generation: Generation) -> GenerationRequest | None:
    return generation.next_request()


def _latents(event: Event) -> FloatArray:
    if isinstance(event, Finished):
        return event.latents
    assert isinstance(event, Failed)
    raise event.error
