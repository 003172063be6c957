"""A generation longer than one canvas: request, latents, next request, until the whole is there.

The machine knows no threads and no clocks: whoever drives it submits `next_request()`, and gives the finished latents
to `take()`, which gives back the new ones. `run()` and `run_audio()` drive it from the calling thread:

    with open_studio(Path("configs/demo.toml")) as studio:
        extension = Extension(studio, parse_options({"prompt": "calm piano", "seconds": 30.0}))
        for pcm in run_audio(studio, extension): ...
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
from runtime.pipeline.pipeline import SEED_BITS, Studio
from runtime.pipeline.text_encoder import Tokens
from runtime.requests.options import GenerationOptions
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Latents, Stretch, plan
from runtime.tick.events import Cancelled, Event, Failed, Finished

__all__ = ["Extension", "Stretch", "next_request", "plan", "run", "run_audio", "seed_of"]

OnEvent = Callable[[Event], None]
WINDOW_FRAMES = 64


def ignore(event: Event) -> None:
    """Nobody wants to know."""


def seed_of(seed: int, index: int) -> int:
    """The seed of stretch `index`: the first has the generation's own, each later one another, always the same."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"tickrt {seed} {index}".encode()).digest()[:8], "little")


def next_request(
    studio: Studio,
    options: GenerationOptions,
    stretch: Stretch,
    tail_latents: Latents | None = None,
    *,
    index: int | None = None,
    condition: Tokens | None = None,
    source: Latents | None = None,
    target: Latents | None = None,
    session: str = "",
    client: str = "",
) -> GenerationRequest:
    """The request for one stretch. `tail_latents`: the end of what is before it, at least its `keep_frames`.

    `index` is the stretch's number, for its seed; by default its place in a row of full canvases. Raises RequestError.
    """
    if index is None:
        index = -(-stretch.start_frame // (studio.canvas_frames - studio.overlap_frames))
    seed = None if options.seed is None else seed_of(options.seed, index)
    return studio.compose(
        options,
        stretch,
        tail=tail_latents,
        condition=condition,
        source=source,
        target=target,
        seed=seed,
        session=session,
        client=client,
    )


class Extension:
    """One generation of any length, or without end. One thread at a time.

    options: may be replaced between stretches; what is replaced holds from the next request on. condition `[L, D]`: in
    place of the prompt. source, target `[N, C]` begin at frame 0 of the whole. next_request() raises RequestError.
    """

    def __init__(
        self,
        studio: Studio,
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
        self.total_frames = None if endless else studio.total_frames(options, source)
        self.total_samples = None if endless else studio.total_samples(options, source)
        self.done_frames = 0
        self._studio = studio
        self._condition, self._source, self._target = condition, source, target
        self._session, self._client = session, client
        self._index = 0
        self._tail = np.empty((0, studio.bundle.latents.channels), np.float32)

    @property
    def stretch(self) -> Stretch | None:
        """The stretch that is to be generated now; None where all is done."""
        return self._studio.next_stretch(self.done_frames, self.total_frames)

    @property
    def stretches(self) -> int | None:
        """How many there are in all; None without an end."""
        if self.total_frames is None:
            return None
        behind_the_first = max(self.total_frames - self._studio.canvas_frames, 0)
        return 1 - (-behind_the_first // (self._studio.canvas_frames - self._studio.overlap_frames))

    def next_request(self) -> GenerationRequest | None:
        """What to submit now; None where all is done. Asked twice, the same generation under another id."""
        stretch = self.stretch
        if stretch is None:
            return None
        return next_request(
            self._studio,
            self.options.model_copy(update={"seed": self.seed}),
            stretch,
            self._tail,
            index=self._index,
            condition=self._condition,
            source=self._source,
            target=self._target,
            session=self._session,
            client=self._client,
        )

    def take(self, latents: Latents) -> Latents:
        """The finished `[T, C]` of the present stretch; gives its new frames `[n, C]`. Raises ShapeError."""
        stretch = self.stretch
        if stretch is None or len(latents) != stretch.frames:
            expected = "nothing: all is done" if stretch is None else f"{stretch.frames} frames"
            raise ShapeError(f"got {len(latents)} frames of latents, expected {expected}")
        new = latents[stretch.keep_frames :]
        if self.total_frames is not None:
            new = new[: self.total_frames - self.done_frames]
        kept = np.concatenate((self._tail, new))
        self._tail = kept[max(len(kept) - self._studio.canvas_frames, 0) :]
        self.done_frames += len(new)
        self._index += 1
        return new


def run(studio: Studio, extension: Extension, on_event: OnEvent = ignore) -> Generator[Latents, None, None]:
    """Generate all of it, blocking; gives the new frames `[n, C]` of each stretch while the next one is in flight.

    `on_event` is called in this thread. Leaving early, for whatever reason, cancels what is in flight. The studio's
    loop must have been started. Raises what submit raises, and the error of a stretch that failed.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    running = _submit(studio, extension, events)
    try:
        while running is not None:
            new = extension.take(_finished(events, on_event))
            running = _submit(studio, extension, events)
            yield new
    finally:
        if running is not None:
            studio.loop.cancel(running)


def run_audio(
    studio: Studio, extension: Extension, on_event: OnEvent = ignore, *, window_frames: int = WINDOW_FRAMES
) -> Generator[Pcm, None, None]:
    """As run(), but gives PCM `[N, channels]` float32 in windows that join without a seam. Raises ConfigError too."""
    if studio.codec is None:
        raise ConfigError(f"bundle {studio.bundle.name!r} has no [codec]: it makes latents, not audio")
    stream = DecodeStream(studio.codec, window_frames=window_frames, total_samples=extension.total_samples)
    with closing(run(studio, extension, on_event)) as pieces:
        for latents in pieces:
            yield from stream.feed(latents)
    yield from stream.finish()


def _submit(studio: Studio, extension: Extension, events: SimpleQueue[Event]) -> str | None:
    request = extension.next_request()
    return None if request is None else studio.loop.submit(request, events.put)


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
