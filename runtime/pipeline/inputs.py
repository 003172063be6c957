"""What a request reads: sources, references and structures, from a file, a body or an array."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.decoding import audio_chunks, convert_audio, within
from runtime.audio.formats import is_latents_file, read_latents
from runtime.base.errors import RequestError, source_as
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents, Pcm
from runtime.pipeline.compose import GenerationInputs, SourceAudio, no_timbre
from runtime.pipeline.timbre import TimbreEncoder
from runtime.requests.option_types import MAX_SECONDS


@dataclass(frozen=True)
class Given:
    """What a caller gives as a source, a target, a structure or a timbre.

    latents: reads them, `[N, C]` float32. audio: opens its samples; None for latents. is_encoded: whether its latents
    are an encoder's. field: what errors name. timbre: reads it as a reference, `[F, C]`.
    """

    latents: Callable[[], Latents]
    audio: SourceAudio | None
    is_encoded: bool
    field: str = "source"
    timbre: Callable[[], Latents] | None = None


@dataclass(frozen=True)
class InputReader:
    """Reads inputs of one bundle's generations. Parts that the bundle does not have are None. Any thread.

    Methods raise RequestError, EngineError.
    """

    bundle: Bundle
    codec: Codec | None
    timbre: TimbreEncoder | None

    def read(self, given: Mapping[str, Given | None], inputs: GenerationInputs) -> GenerationInputs:
        """Inputs with what is given as "source", "target", "structure" and "timbre"."""
        found = {name: one for name, one in given.items() if one is not None}
        latents = dict[str, Latents]()
        for name, one in found.items():
            with source_as(one.field):
                read = one.timbre if name == "timbre" and one.timbre is not None else one.latents
                latents[name] = read()
        source = found.get("source")
        return replace(
            inputs,
            source=latents.get("source"),
            target=latents.get("target"),
            structure=latents.get("structure"),
            timbre=latents.get("timbre"),
            source_audio=None if source is None else source.audio,
            encoded=frozenset(name for name in ("source", "target") if name in found and found[name].is_encoded),
        )

    def file(self, data: Path | bytes, field: str = "source") -> Given:
        """An audio file or a latents file."""
        audio = self.open_audio(data)
        read_timbre = partial(self.read_timbre, data)
        return Given(partial(self.read_source, data), audio, audio is not None, field, read_timbre)

    def array(self, pcm: Pcm, sample_rate_hz: int | None, field: str = "source") -> Given:
        """Float PCM `[N, channels]`, -1..1, at any usual rate; None: the codec's."""
        codec = self.bundle.codec
        rate_hz = sample_rate_hz or (0 if codec is None else codec.sample_rate_hz)
        audio = None if codec is None else lambda: iter([self._converted(pcm, rate_hz)])
        encode_timbre = None if audio is None else partial(self._encoded_timbre, audio)
        return Given(lambda: self.encode_source(pcm, rate_hz), audio, audio is not None, field, encode_timbre)

    def read_source(
        self, data: Path | bytes, *, max_seconds: float = MAX_SECONDS, timeout_s: float = math.inf
    ) -> Latents:
        """Latents `[T, C]` float32 of an audio file or a latents file, padded with silence to the decoder's multiple.

        Audio is decoded and encoded in pieces, for at most `timeout_s`.
        """
        latents = self.bundle.latents
        if is_latents_file(data):
            limit = latents.round_up(math.ceil(max_seconds * latents.frame_rate_hz))
            return self._padded(read_latents(data, latents.channels, limit))
        codec = self._encoding_codec()
        chunks = audio_chunks(data, codec.sample_rate_hz, codec.channels, max_seconds)
        return self._padded(codec.encode_chunks(within(timeout_s, chunks)))

    def encode_source(self, pcm: Pcm, sample_rate_hz: int) -> Latents:
        """As read_source(), from float PCM `[N, channels]`, -1..1, at any usual rate."""
        codec = self._encoding_codec()
        return self._padded(codec.encode(self._converted(pcm, sample_rate_hz)))

    def open_audio(self, data: Path | bytes) -> SourceAudio | None:
        """Opens the samples of an audio file that read_source() encodes; None for latents."""
        if self.codec is None or is_latents_file(data):
            return None
        return partial(audio_chunks, data, self.codec.sample_rate_hz, self.codec.channels)

    def read_timbre(self, data: Path | bytes) -> Latents:
        """Latents `[F, C]` float32 of the reference in an audio file or a latents file."""
        audio, latents = self.open_audio(data), self.bundle.latents
        if audio is not None:
            return self._encoded_timbre(audio)
        limit = math.ceil(MAX_SECONDS * latents.frame_rate_hz)
        return self._timbre_encoder.reference(lambda: iter([read_latents(data, latents.channels, limit)]))

    def timbre_latents(self, latents: Latents) -> Latents:
        """Latents `[F, C]` of a reference that is latents `[N, C]` itself."""
        return self._timbre_encoder.reference(lambda: iter([latents]))

    @property
    def _timbre_encoder(self) -> TimbreEncoder:
        if self.timbre is None:
            raise no_timbre(self.bundle)
        return self.timbre

    def _encoded_timbre(self, audio: SourceAudio) -> Latents:
        return self._timbre_encoder.reference(audio, self._encoding_codec("timbre"))

    def _converted(self, pcm: Pcm, sample_rate_hz: int) -> Pcm:
        assert self.bundle.codec is not None
        codec = self.bundle.codec
        return convert_audio(pcm, sample_rate_hz, codec.sample_rate_hz, codec.channels, MAX_SECONDS)

    def _encoding_codec(self, field: str = "source") -> Codec:
        if self.codec is None or not self.codec.can_encode:
            raise RequestError(
                f"bundle {self.bundle.name!r} cannot turn audio into latents", field=field, fix="give .safetensors"
            )
        return self.codec

    def _padded(self, latents: Latents) -> Latents:
        """`latents` and silence up to the next number of frames that the decoder takes."""
        silence = self.bundle.silence(self.bundle.latents.round_up(len(latents)))
        return np.concatenate((latents, silence[len(latents) :]))
