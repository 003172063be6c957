"""Work of live sessions in other threads: decoding, in the codec's queue; encoding; what a planner makes.

What continues a session's audio is decoded before replacements, which may come late without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.codec_queue import Urgency
from runtime.audio.finishing import soft_limited
from runtime.base.errors import DrainingError
from runtime.base.threads import Workers
from runtime.config.codec import Latents, Pcm
from runtime.live.protocol.actions import DecodeWindow, MadeHints, MakeHints, SessionJob, SongBeginning
from runtime.live.protocol.messages import WriteAudio
from runtime.music.section_prompts import section_prompts
from runtime.pipeline.compose import GenerationInputs
from runtime.requests.options import GenerationOptions
from runtime.requests.request import GenerationRequest

if TYPE_CHECKING:
    from runtime.pipeline.pipeline import Pipeline
    from runtime.pipeline.songs.plan import SongPlan

# A session may begin so late: those that play have less time.
BEGIN_S = 0.4
T = TypeVar("T")


class CodecWork:
    """Decodes and encodes for sessions in other threads; what is decoded has the bundle's `gain_db`, and no sample
    above -1.6 dB.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._gain = 10 ** (codec.spec.gain_db / 20)
        self.threads = Workers(1, "live-encode")

    def close(self) -> None:
        """Wait for what is being encoded."""
        self.threads.shutdown()  # until its last encode ends

    def decode(self, window: DecodeWindow, lead_s: float, is_wanted: Callable[[], bool]) -> Future[Pcm]:
        """A window, trimmed; cancelled where it is not wanted any more when its turn comes. lead_s: until it is played.

        is_wanted: called by any thread.
        """
        urgency = Urgency.CHANGING if window.is_replacing else Urgency.PLAYING
        late_s = lead_s + BEGIN_S * window.is_first
        return self._codec.queue.submit(partial(self._decode, window), urgency, late_s, is_wanted)  # to a worker of it

    def encode(self, work: Callable[[], T]) -> Future[T]:
        """What `work` gives, which may take long, in the encoding thread; in the order of the calls."""
        return self.threads.submit(work)

    def write(self, message: WriteAudio, pcm: Pcm, offset: int, latents: Latents) -> Latents:
        """Work for encode(): `latents` `[n, C]` with the audio in place of, or added to, theirs from sample `offset`.

        Raises RequestError, EngineError.
        """
        audio = self._codec.decode(latents)  # [n * hop, channels]
        part = audio[offset : offset + len(pcm)]  # a view: [samples, channels]
        part[:] = pcm[: len(part)] / np.float32(self._gain) + (part if message.mode == "sum" else 0.0)
        return self._codec.encode(audio)  # [n, C]

    def _decode(self, window: DecodeWindow) -> Pcm:
        """In a worker of the codec."""
        pcm = soft_limited(self._codec.decode(window.values, window.start_frame), self._gain)  # [n * hop, channels]
        return pcm[window.trim_begin : window.trim_end]


def compose_job(pipeline: Pipeline, job: SessionJob, seed: int, client: str = "") -> GenerationRequest:
    """The request of a session's generation. seed: the session's. Raises RequestError, EngineError."""
    inputs = GenerationInputs(
        source=job.source,
        noise=job.noise,
        timbre=job.timbre,
        hints=job.hints,
        phrases=job.phrases,
        session=job.id,
        client=client,
    )
    options, planner = pipeline.with_drawn(job.options, seed), pipeline.planner
    if job.sections and options.blend != "tokens":  # whose weights are no curves
        assert planner is not None
        assert planner.spec.plan is not None
        prompt = section_prompts(planner.spec.plan, options.prompt, job.sections, 0, job.segment.frames)
        options = options.model_copy(update={"prompt": prompt})
    return pipeline.compose(options, job.segment, inputs, job.tail)


def make_part(song: SongPlan, work: MakeHints) -> MadeHints:
    """What a session asks for; blocks until it is made. Raises TickError."""
    if (change := work.change) is not None:
        if change.options is not None:
            song.change(change.options, change.from_frame)
        else:
            song.replace(change.from_frame, change.sections, change.codes)
    hints = song.hints(work.start_frame, work.frames)
    return MadeHints(dict(song.header), tuple(song.sections), hints, song.state())


class HintsWork:
    """Makes hints of a session's song, in a thread that begins with the first of them. The host's thread calls all
    methods.

    open_song: opens a plan; in the thread. with_drawn: what is planned for options; in the thread, too.
    """

    def __init__(
        self,
        open_song: Callable[[SongBeginning], SongPlan],
        with_drawn: Callable[[GenerationOptions], GenerationOptions],
    ) -> None:
        self._open_song, self._with_drawn = open_song, with_drawn
        self._song: SongPlan | None = None
        self._begun: MakeHints | None = None  # What the newest plan begins with.
        self._is_closed = False
        self.thread = Workers(1, "live-plan", waits=True)

    def start(self, work: MakeHints) -> Future[MadeHints]:
        """Make some; in the order of the calls. Where a plan begins, the one before it ends at once."""
        if work.begin is not None:
            self.stop()
            self._begun = work
        return self.thread.submit(self._make, work)

    def stop(self) -> None:
        """End what is being made: it has failed. What comes next begins a plan."""
        self._begun = None
        if self._song is not None:
            self._song.close()

    def close(self) -> None:
        """End what is being made."""
        self._is_closed = True
        self.stop()
        self.thread.shutdown(wait=False)  # what is being made ends by itself: `stop` has closed its plan

    def _make(self, work: MakeHints) -> MadeHints:
        """In the thread."""
        if self._is_closed:
            raise DrainingError("the session has ended")
        begin, change = work.begin, work.change
        if begin is not None:
            self._song = self._open_song(replace(begin, options=self._with_drawn(begin.options)))
            if self._begun is not work:
                self._song.close()
        assert self._song is not None
        if change is not None and change.options is not None:
            work = replace(work, change=replace(change, options=self._with_drawn(change.options)))
        return make_part(self._song, work)
