"""A generation longer than one canvas: request, latents, next request, until the whole is there.

The machine knows no threads and no clocks: whoever drives it submits `next_request()`, and gives the finished latents
to `take()`, which gives back the new ones. `run()` and `run_audio()` drive it from the calling thread:

    with open_pipeline(Path("configs/demo.toml")) as pipeline:
        generation = LongGeneration(pipeline, parse_options({"prompt": "calm piano", "seconds": 30.0}))
        for pcm in run_audio(pipeline, generation): ...
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Generator
from contextlib import closing
from queue import SimpleQueue

import numpy as np

from runtime.audio.formats import Pcm
from runtime.audio.windows import DecodeStream
from runtime.errors import ConfigError, ShapeError, TickError
from runtime.pipeline.pipeline import SEED_BITS, Pipeline
from runtime.pipeline.text_encoder import Tokens
from runtime.requests.options import GenerationOptions
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Latents, Segment, plan
from runtime.tick.events import Cancelled, Event, Failed, Finished

__all__ = ["LongGeneration", "Segment", "next_request", "plan", "run", "run_audio", "seed_of"]

OnEvent = Callable[[Event], None]
WINDOW_FRAMES = 64


def ignore(event: Event) -> None:
    """Nobody wants to know."""


def seed_of(seed: int, index: int) -> int:
    """The seed of segment `index`: the first has the generation's own, each later one another, always the same."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"tickrt {seed} {index}".encode()).digest()[:8], "little")


def next_request(
    pipeline: Pipeline,
    options: GenerationOptions,
    segment: Segment,
    tail_latents: Latents | None = None,
    *,
    index: int | None = None,
    condition: Tokens | None = None,
    source: Latents | None = None,
    target: Latents | None = None,
    session: str = "",
    client: str = "",
) -> GenerationRequest:
    """The request for one segment. `tail_latents`: the end of what is before it, at least its `keep_frames`.

    `index` is the segment's number, for its seed; by default its place in a row of full canvases. Raises RequestError.
    """
    if index is None:
        index = -(-segment.start_frame // (pipeline.canvas_frames - pipeline.overlap_frames))
    seed = None if options.seed is None else seed_of(options.seed, index)
    return pipeline.compose(
        options,
        segment,
        tail=tail_latents,
        condition=condition,
        source=source,
        target=target,
        seed=seed,
        session=session,
        client=client,
    )


class LongGeneration:
    """One generation of any length, or without end. One thread at a time.

    options: may be replaced between segments; what is replaced holds from the next request on. condition `[L, D]`: in
    place of the prompt. source, target `[N, C]` begin at frame 0 of the whole. next_request() raises RequestError.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: GenerationOptions,
        *,
        condition: Tokens | None = None,
        source: Latents | None = None,
        target: Latents | None = None,
        endless: bool = False,
        session: str = "",
        client: str = "",
    ) -> None:
        self.options = options
        self.seed = secrets.randbits(SEED_BITS) if options.seed is None else options.seed
        self.total_frames = None if endless else pipeline.total_frames(options, source)
        self.total_samples = None if endless else pipeline.total_samples(options, source)
        self.done_frames = 0
        self._pipeline = pipeline
        self._condition, self._source, self._target = condition, source, target
        self._session, self._client = session, client
        self._index = 0
        self._tail = np.empty((0, pipeline.bundle.latents.channels), np.float32)

    @property
    def segment(self) -> Segment | None:
        """The segment that is to be generated now; None where all is done."""
        return self._pipeline.next_segment(self.done_frames, self.total_frames)

    @property
    def segments(self) -> int | None:
        """How many there are in all; None without an end."""
        if self.total_frames is None:
            return None
        behind_the_first = max(self.total_frames - self._pipeline.canvas_frames, 0)
        return 1 - (-behind_the_first // (self._pipeline.canvas_frames - self._pipeline.overlap_frames))

    def next_request(self) -> GenerationRequest | None:
        """What to submit now; None where all is done. Asked twice, the same generation under another id."""
        segment = self.segment
        if segment is None:
            return None
        return next_request(
            self._pipeline,
            self.options.model_copy(update={"seed": self.seed}),
            segment,
            self._tail,
            index=self._index,
            condition=self._condition,
            source=self._source,
            target=self._target,
            session=self._session,
            client=self._client,
        )

    def take(self, latents: Latents) -> Latents:
        """The finished `[T, C]` of the present segment; gives its new frames `[n, C]`. Raises ShapeError."""
        segment = self.segment
        if segment is None or len(latents) != segment.frames:
            expected = "nothing: all is done" if segment is None else f"{segment.frames} frames"
            raise ShapeError(f"got {len(latents)} frames of latents, expected {expected}")
        new = latents[segment.keep_frames :]
        if self.total_frames is not None:
            new = new[: self.total_frames - self.done_frames]
        kept = np.concatenate((self._tail, new))
        self._tail = kept[max(len(kept) - self._pipeline.canvas_frames, 0) :]
        self.done_frames += len(new)
        self._index += 1
        return new


def run(pipeline: Pipeline, generation: LongGeneration, on_event: OnEvent = ignore) -> Generator[Latents, None, None]:
    """Generate all of it, blocking; gives the new frames `[n, C]` of each segment while the next one is in flight.

    `on_event` is called in this thread. Leaving early, for whatever reason, cancels what is in flight. The pipeline's
    loop must have been started. Raises what submit raises, and the error of a segment that failed.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    running = _submit(pipeline, generation, events)
    try:
        while running is not None:
            new = generation.take(_finished(events, on_event))
            running = _submit(pipeline, generation, events)
            yield new
    finally:
        if running is not None:
            pipeline.loop.cancel(running)


def run_audio(
    pipeline: Pipeline, generation: LongGeneration, on_event: OnEvent = ignore, *, window_frames: int = WINDOW_FRAMES
) -> Generator[Pcm, None, None]:
    """As run(), but gives PCM `[N, channels]` float32 in windows that join without a seam. Raises ConfigError too."""
    if pipeline.codec is None:
        raise ConfigError(f"bundle {pipeline.bundle.name!r} has no [codec]: it makes latents, not audio")
    stream = DecodeStream(pipeline.codec, window_frames=window_frames, total_samples=generation.total_samples)
    with closing(run(pipeline, generation, on_event)) as pieces:
        for latents in pieces:
            yield from stream.feed(latents)
    yield from stream.finish()


def _submit(pipeline: Pipeline, generation: LongGeneration, events: SimpleQueue[Event]) -> str | None:
    request = generation.next_request()
    return None if request is None else pipeline.loop.submit(request, events.put)


def _finished(events: SimpleQueue[Event], on_event: OnEvent) -> Latents:
    """Wait for the end of one generation."""
    while True:
        event = events.get()
        on_event(event)
        match event:
            case Finished(latents=latents):
                return latents
            case Failed(error=error):
                raise error
            case Cancelled(request_id=request_id):
                raise TickError(f"generation {request_id} was cancelled")
