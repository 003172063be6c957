"""Latents <-> PCM. Long audio goes through the codec in windows that join without a seam.

No execute takes more than the bundle's `window_frames` and a margin on both sides: memory does not grow with the audio.
A window is decoded with `margin_frames` more frames on both sides, the receptive field, and trimmed: every sample
equals that of the full decode. Frames are counted absolutely: a codec with a position input is told the number of its
first frame in the whole stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from runtime.audio.formats import Pcm
from runtime.config.bundle import Bundle
from runtime.engines.engine import Engine, run_once
from runtime.errors import ConfigError, EngineError, RequestError, ShapeError

Latents = NDArray[np.float32]


class Codec:
    """The bundle's codec. Any thread may call it: each of its engines runs one call at a time.

    Raises ConfigError where the bundle has no codec.
    """

    def __init__(self, bundle: Bundle, decode: Engine, encode: Engine | None = None) -> None:
        if bundle.codec is None:
            raise ConfigError(f"bundle {bundle.name!r} has no [codec]: it makes latents, not audio")
        self.spec = bundle.codec
        self.sample_rate_hz = bundle.codec.sample_rate_hz
        self.channels = bundle.codec.channels
        self.hop_samples = bundle.codec.hop_samples
        self.margin_frames = bundle.codec.decode.margin_frames
        self.latent_channels = bundle.latents.channels
        self._decode_engine = decode
        self._encode_engine = encode
        self._decode_lock = threading.Lock()
        self._encode_lock = threading.Lock()

    @property
    def can_encode(self) -> bool:
        """Whether audio can become latents, as covers and repaints need it."""
        return self._encode_engine is not None

    def decode(self, latents: Latents, start_frame: int = 0) -> Pcm:
        """`[T, C]` float32 -> `[T * hop_samples, channels]` float32; frame 0 is number `start_frame`.

        Raises ShapeError, EngineError.
        """
        most = self.spec.decode.window_frames
        if len(latents) <= most + 2 * self.margin_frames:
            return self._decode_window(latents, start_frame)
        return np.concatenate(list(self.windows(latents, window_frames=most, start_frame=start_frame)))

    def _decode_window(self, latents: Latents, start_frame: int) -> Pcm:
        """One execute."""
        if latents.ndim != 2 or latents.shape[1] != self.latent_channels or len(latents) == 0:
            raise ShapeError(f"latents have shape {latents.shape}, expected [T, {self.latent_channels}]")
        roles = self.spec.decode.inputs
        feeds: dict[str, NDArray[np.generic]] = {roles.latents: np.ascontiguousarray(latents[None], np.float32)}
        if roles.start_frame is not None:
            feeds[roles.start_frame] = np.array([start_frame], np.int64)
        with self._decode_lock:
            audio = run_once(self._decode_engine, feeds)[self.spec.decode.outputs.audio]
        expected = (1, self.channels, len(latents) * self.hop_samples)
        if audio.shape != expected:
            raise EngineError(f"{self._decode_engine.name} gave audio of shape {audio.shape}, expected {expected}")
        return np.ascontiguousarray(audio[0].T)

    def windows(
        self,
        latents: Latents,
        *,
        window_frames: int,
        start_frame: int = 0,
        before: Latents | None = None,
        after: Latents | None = None,
    ) -> Iterator[Pcm]:
        """The PCM of `latents` in pieces of `window_frames` frames (the last may be shorter), equal to the full decode.

        Pieces are never longer than the bundle's own `window_frames`. `before` and `after`: what comes ahead of and
        behind `latents` in the stream; only the margin of it is used.
        Raises ShapeError, EngineError.
        """
        ahead, field = self._with_neighbours(latents, before, after)
        window_frames = min(window_frames, self.spec.decode.window_frames)
        for begin in range(ahead, ahead + len(latents), window_frames):
            end = min(begin + window_frames, ahead + len(latents))
            low = max(begin - self.margin_frames, 0)
            pcm = self._decode_window(field[low : end + self.margin_frames], start_frame - ahead + low)
            yield pcm[(begin - low) * self.hop_samples : (end - low) * self.hop_samples]

    def encode(self, pcm: Pcm) -> Latents:
        """`[N, channels]` float32 -> `[T, C]` float32, silence added up to a whole frame.

        Raises RequestError, EngineError.
        """
        if self._encode_engine is None or self.spec.encode is None:
            raise RequestError("this bundle cannot turn audio into latents", field="source", fix="give latents instead")
        if pcm.ndim != 2 or pcm.shape[1] != self.channels or len(pcm) == 0:
            raise RequestError(f"audio has shape {pcm.shape}, expected [N, {self.channels}]", field="source")
        hop, margin = self.hop_samples, self.spec.encode.margin_frames
        frames, most = -(-len(pcm) // hop), self.spec.encode.window_frames
        padded = np.pad(pcm, ((0, frames * hop - len(pcm)), (0, 0)))
        pieces = []
        for begin in range(0, frames, most):
            end, low = min(begin + most, frames), max(begin - margin, 0)
            latents = self._encode_window(padded[low * hop : (end + margin) * hop])
            pieces.append(latents[begin - low : end - low])
        return np.concatenate(pieces)

    def _encode_window(self, pcm: Pcm) -> Latents:
        assert self._encode_engine is not None
        assert self.spec.encode is not None
        feeds = {self.spec.encode.inputs.audio: np.ascontiguousarray(pcm.T[None], np.float32)}
        with self._encode_lock:
            latents = run_once(self._encode_engine, feeds)[self.spec.encode.outputs.latents]
        expected = (1, len(pcm) // self.hop_samples, self.latent_channels)
        if latents.shape != expected:
            raise EngineError(f"{self._encode_engine.name} gave latents of shape {latents.shape}, expected {expected}")
        only: Latents = latents[0]
        return only

    def _with_neighbours(self, latents: Latents, before: Latents | None, after: Latents | None) -> tuple[int, Latents]:
        """How many frames of `before` count, and the field of frames that windows are cut from."""
        nothing = latents[:0]
        ahead = nothing if before is None else before[max(len(before) - self.margin_frames, 0) :]
        behind = nothing if after is None else after[: self.margin_frames]
        return len(ahead), np.concatenate((ahead, latents, behind))
