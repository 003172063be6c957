"""Work of live sessions in other threads: decoding, in the codec's queue; encoding; what a planner makes.

What continues a session's audio is decoded before replacements, which may come late without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.codec_queue import Urgency
from runtime.audio.finishing import soft_limited
from runtime.base.errors import DrainingError, TickError
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
Call = Callable[[Callable[[], None]], None]
# What work in a thread gave, or the error that it raised: `expected` tells them apart.
PcmDone = Callable[[Pcm | BaseException], None]
HintsDone = Callable[[MadeHints | BaseException], None]
T = TypeVar("T")


class CodecWork:
    """Decodes and encodes for the host's thread, which calls all methods; `call` puts results into its queue.

    What is decoded has the bundle's `gain_db`, and no sample above -1.6 dB.
    """

    def __init__(self, codec: Codec, call: Call) -> None:
        self._codec, self._call = codec, call
        self._gain = 10 ** (codec.spec.gain_db / 20)
        self.threads = Workers(1, "live-encode")

    def close(self) -> None:
        """Wait for what is being encoded."""
        self.threads.shutdown()  # until its last encode ends

    def decode(self, window: DecodeWindow, lead_s: float, is_wanted: Callable[[], bool], done: PcmDone) -> None:
        """Decode a window, trimmed, unless it is not wanted any more when its turn comes. lead_s: until it is played.

        is_wanted: called by any thread.
        """
        urgency = Urgency.CHANGING if window.is_replacing else Urgency.PLAYING
        late_s = lead_s + BEGIN_S * window.is_first
        # to a worker of the codec
        decoding = self._codec.queue.submit(partial(self._decode, window), urgency, late_s, is_wanted)
        # runs in that worker; `done` on the host's thread
        decoding.add_done_callback(partial(report, self._call, done))

    def encode(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work`, which may take long, in the encoding thread; in the order of the calls."""
        self.threads.submit(work).add_done_callback(partial(report, self._call, done))

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


def report(call: Call, done: Callable[[Any], None], ended: Future[Any]) -> None:
    """Let the host's thread take what work in another one gave or raised."""
    if not ended.cancelled():
        call(partial(done, ended.exception() or ended.result()))


def expected(given: T | BaseException) -> T | TickError:
    """What work in a thread gave, or TickRT's error. Raises any other error, where it ends one session alone."""
    if isinstance(given, BaseException) and not isinstance(given, TickError):
        raise given
    return given


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


def make_part(form: SongPlan, work: MakeHints) -> MadeHints:
    """What a session asks for; `hints` blocks until it is made. Raises TickError."""
    if (change := work.change) is not None:
        if change.options is not None:
            form.change(change.options, change.from_frame)
        else:
            form.replace(change.from_frame, change.sections, change.codes)
    hints = form.hints(work.start_frame, work.frames)
    return MadeHints(dict(form.header), tuple(form.sections), hints, form.state())


class HintsWork:
    """Makes parts of a plan for the host's thread, which calls all methods; `call` puts results into its queue.

    open_form: opens a plan; in the thread, which begins with the first work. with_drawn: what is planned for options;
    in the thread, too.
    """

    def __init__(
        self,
        open_form: Callable[[SongBeginning], SongPlan],
        with_drawn: Callable[[GenerationOptions], GenerationOptions],
        call: Call,
    ) -> None:
        self._open_form, self._with_drawn, self._call = open_form, with_drawn, call
        self._form: SongPlan | None = None
        self._begun: MakeHints | None = None  # What the newest plan begins with.
        self._is_closed = False
        self._thread = Workers(1, "live-plan", waits=True)

    @property
    def has_died(self) -> bool:
        """Whether an error has ended its thread: nothing is reported any more."""
        return self._thread.has_died

    def start(self, work: MakeHints, done: HintsDone) -> None:
        """Make a part; in the order of the calls. Where a plan begins, the one before it ends at once."""
        if work.begin is not None:
            self.stop()
            self._begun = work
        # to the plan's thread; the report comes from there
        self._thread.submit(self._make, work).add_done_callback(lambda made: self._report(done, made))

    def stop(self) -> None:
        """End what is being made: it has failed. What comes next begins a plan."""
        self._begun = None
        if self._form is not None:
            self._form.close()

    def close(self) -> None:
        """End what is being made; nothing is reported any more."""
        self._is_closed = True
        self.stop()
        self._thread.shutdown(wait=False)  # what is being made ends by itself: `stop` has closed its plan

    def _make(self, work: MakeHints) -> MadeHints:
        """In the thread."""
        if self._is_closed:
            raise DrainingError("the session has ended")
        begin, change = work.begin, work.change
        if begin is not None:
            self._form = self._open_form(replace(begin, options=self._with_drawn(begin.options)))
            if self._begun is not work:
                self._form.close()
        assert self._form is not None
        if change is not None and change.options is not None:
            work = replace(work, change=replace(change, options=self._with_drawn(change.options)))
        return make_part(self._form, work)

    def _report(self, done: HintsDone, made: Future[MadeHints]) -> None:
        if not self._is_closed:
            report(self._call, done, made)
