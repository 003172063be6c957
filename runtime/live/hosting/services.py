"""What the live sessions of a host share, and what is reported of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.codec_queue import Urgency
from runtime.audio.finishing import soft_limited
from runtime.base.errors import ConfigError, RequestError
from runtime.base.threads import Workers
from runtime.config.bundle import DEFAULTED
from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.control_times import ControlKind, Observer
from runtime.live.hosting.mailbox import Mailbox
from runtime.live.hosting.slots import TickTimes
from runtime.live.protocol.actions import DecodeWindow, LiveModel, NoteFacts, SongFacts
from runtime.live.protocol.messages import ReferenceKind, WriteAudio, control_of
from runtime.live.protocol.server_messages import Plan, State
from runtime.live.storage.store import SessionStore
from runtime.pipeline.meanings import prompt_meaning
from runtime.pipeline.sampling import Sampling
from runtime.requests.jumps import solvers_of
from runtime.requests.option_types import DcwOptions
from runtime.requests.tasks import PLAIN_TASKS, known_tasks
from runtime.requests.validation import plan_text_options, untaken_options

if TYPE_CHECKING:
    from runtime.pipeline.pipeline import Pipeline

Clock = Callable[[], float]
Sources = Callable[[str], Latents]


T = TypeVar("T")
# A session may begin so late: those that play have less time.
BEGIN_S = 0.4


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


@dataclass(eq=False)
class HostServices:
    """What the sessions of one host share. keep_s: how long one without a connection is kept.

    words_thread: finds which words of prompts are understood. compose_threads: compose generations, whose texts are
    encoded then.
    """

    model: LiveModel
    pipeline: Pipeline
    codec_work: CodecWork
    clock: Clock
    keep_s: float
    sources: Sources | None = None
    store: SessionStore | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)
    tick_times: TickTimes = field(default_factory=TickTimes)
    control_observers: list[Observer] = field(default_factory=list)
    words_thread: Workers = field(default_factory=lambda: Workers(1, "live-words"))
    compose_threads: Workers = field(default_factory=lambda: Workers(2, "live-compose"))
    generations_started: int = 0
    generations_ended: Counter[str] = field(default_factory=Counter)

    @property
    def is_storing(self) -> bool:
        """Whether sessions survive this server."""
        return self.store is not None and self.store.failure is None

    def observe_control(self, kind: ControlKind, stage: str, seconds: float) -> None:
        """Pass on how long a change took until it was played."""
        for observer in self.control_observers:
            observer(kind, stage, seconds)

    def reference(self, kind: ReferenceKind, source_id: str) -> Latents:
        """What a source is as a reference: latents `[N, C]`, a timbre's `[F, C]`, or hints `[N, C]`.

        Raises RequestError, before the source is read where the bundle has no such part.
        """
        control_of(kind, self.model.untaken)
        if self.sources is None:
            raise RequestError("there are no sources here", field="id")
        latents = self.sources(source_id)
        match kind:
            case "source":
                return latents
            case "timbre":
                return self.pipeline.inputs.timbre_latents(latents)
            case "structure":
                assert self.pipeline.structure is not None
                return self.pipeline.structure.hints(latents)


@dataclass(frozen=True)
class SessionInfo:
    """A session as of now. `state`, `plan`: the last ones that were sent to its client."""

    id: str
    client: str
    is_connected: bool
    state: State | None
    plan: Plan | None = None


@dataclass(frozen=True)
class HostStats:
    """Counts since the start.

    Sessions opened, or restored from the store, = open + the sum of `ended`, by reason. Generations started = those in
    flight + the sum of `generations_ended`: finished, cancelled, failed.
    """

    open: int
    connected: int
    opened: int
    ended: dict[str, int]
    generations_started: int
    generations_ended: dict[str, int]
    underruns: int
    store_failure: str | None


def live_model(pipeline: Pipeline) -> LiveModel:
    """The facts of a pipeline. Raises ConfigError where its model has no live sessions, as without a codec."""
    codec, bundle = pipeline.codec, pipeline.bundle
    if codec is None or pipeline.live_refusal:
        raise ConfigError(pipeline.live_refusal)
    sampler = bundle.sampler
    # With structure codes a cover starts from noise.
    denoise = {} if bundle.structure is None else {"denoise": sampler.denoise}
    return LiveModel(
        sample_rate_hz=codec.sample_rate_hz,
        channels=codec.channels,
        hop_samples=codec.hop_samples,
        frame_rate_hz=bundle.latents.frame_rate_hz,
        latent_channels=bundle.latents.channels,
        lengths=pipeline.lengths.generations,
        loop_lengths=pipeline.lengths.loops,
        overlap_frames=pipeline.lengths.overlap_frames,
        margin_frames=codec.margin_frames,
        window_frames=codec.spec.decode.window_frames,
        align_frames=math.lcm(*(half.align_frames for half in codec.spec.halves.values())),
        has_text=pipeline.text_encoder is not None,
        has_encoder=codec.can_encode,
        defaults={
            **{name: value for name in DEFAULTED if (value := bundle.default_of(name)) is not None},
            "steps": sampler.live_steps,
            "dcw": DcwOptions(**sampler.dcw.model_dump()),
            **denoise,
        },
        untaken=untaken_options(bundle)
        | plan_text_options(bundle)
        | ({"task"} if known_tasks(bundle) == list(PLAIN_TASKS) else set()),
        ranges=bundle.options,
        words=pipeline.text_encoder.words if pipeline.text_encoder else None,
        meaning=partial(prompt_meaning, pipeline.text_encoder)
        if pipeline.text_encoder and pipeline.text_encoder.names
        else None,
        moods=pipeline.prompts.moods,
        catalog=lambda: pipeline.engines.adapters,
        plan=SongFacts.of(bundle),
        identity=lambda: pipeline.identity,
        notes=NoteFacts.of(bundle),
        has_stems=bundle.stems is not None and not bundle.stems.tracks,
        music=bundle.controls,
        solvers=solvers_of(bundle),
        steps_of=lambda options: Sampling.of(options, bundle, is_live=True).steps,
    )
