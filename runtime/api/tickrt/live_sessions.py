"""The live sessions of a model in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.slots import HostLimits
from runtime.live.protocol.messages import ClientMessage, ReferenceKind, Reply, control_of
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.prompt_words import PromptWords
from tickrt.audio import Audio
from tickrt.live import REPLY_TIMEOUT_S
from tickrt.options import Source

NO_LIMITS = HostLimits(max_sessions=2**31, client_sessions=0, max_refresh_s=float("inf"), message_share=float("inf"))


class LiveSessions(SessionHost):
    """The live sessions of one model, and the sources that they are about to use."""

    def __init__(self, pipeline: Pipeline, read_source: Callable[[Source, int | None], Latents]) -> None:
        super().__init__(pipeline, sources=self._latents_of, limits=NO_LIMITS)
        self.sample_rate_hz, self.channels = self.model.sample_rate_hz, self.model.channels
        self._read_source, self._read = read_source, dict[str, Latents]()
        self._numbers = count()
        self.start()

    def post(self, session_id: str, message: ClientMessage, pcm: Pcm | None = None, reply: Reply | None = None) -> None:
        """Pass on a message, once the session takes more of them."""
        room = self.room(session_id)
        if room is not None:
            # Until the host has taken earlier messages of this session.
            room.result(REPLY_TIMEOUT_S)
        super().post(session_id, message, pcm, reply)

    def add_source(self, kind: ReferenceKind, source: Source, sample_rate_hz: int | None) -> str:
        """Load a source; returns its id. Raises RequestError, at once where the bundle has no such part."""
        control_of(kind, self.model.untaken)
        source_id = str(next(self._numbers))
        self._read[source_id] = self._read_source(source, sample_rate_hz)
        return source_id

    def remove_source(self, source_id: str | None) -> None:
        """Forget a source; the session that uses it has it."""
        self._read.pop(source_id or "", None)

    def _latents_of(self, source_id: str) -> Latents:
        return self._read[source_id]

    def words(self, texts: Sequence[str], negative: str) -> PromptWords:
        """Which words of prompts and a negative prompt are understood; none where the bundle takes no text."""
        text_encoder = self.pipeline.text_encoder
        return PromptWords() if text_encoder is None else text_encoder.words(texts, negative)

    def audio(self, pcm: NDArray[np.float32], seed: int, prompt_words: PromptWords) -> Audio:
        """PCM of a session as an Audio; its latents are encoded again, none where the bundle cannot encode."""
        codec, bundle = self.pipeline.codec, self.pipeline.bundle
        assert codec is not None
        return Audio(
            latents=codec.encode(pcm) if codec.can_encode else np.empty((0, codec.latent_channels), np.float32),
            frame_rate_hz=bundle.latents.frame_rate_hz,
            sample_rate_hz=self.sample_rate_hz,
            seed=seed,
            options={},
            bundle=(bundle.name, bundle.version),
            _pcm=pcm,
            prompt_words=prompt_words,
        )
