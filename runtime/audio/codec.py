"""Latents <-> PCM. Long audio is converted in windows, so that memory does not grow with its length.

A window is converted with `margin_frames` more frames on both sides, the receptive field, and trimmed: every sample
equals that of the full conversion. A decoder with a position input gets the number of its first frame in the stream. A
codec that works in groups of `align_frames` frames is given whole groups, counted from the stream's first frame, and
none is given less than its `shortest_frames`; what is missing at the end is the last frame again, or silence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec_queue import CodecQueue
from runtime.audio.formats import Latents, Pcm
from runtime.audio.windows import Window, WindowCutter
from runtime.config.bundle import Bundle
from runtime.devices.machine import num_cores
from runtime.engines.engine import RunnableGraph, run_once
from runtime.errors import ConfigError, EngineError, RequestError, ShapeError

MAX_DEFAULT_SIZE = 4


def default_workers(target: str) -> int:
    """Windows to decode at once: one per core on the CPU, at most 4; one on a GPU."""
    return min(num_cores(), MAX_DEFAULT_SIZE) if target == "cpu" else 1


class Codec:
    """The bundle's codec. Any thread may call it. The workers of `queue` (default: one) decode; one call at a time
    encodes.

    Raises ConfigError where the bundle has no codec.
    """

    def __init__(
        self,
        bundle: Bundle,
        decode: RunnableGraph,
        encode: RunnableGraph | None = None,
        queue: CodecQueue | None = None,
    ) -> None:
        if bundle.codec is None:
            raise ConfigError(f"bundle {bundle.name!r} has no [codec]: it makes latents, not audio")
        self.spec = bundle.codec
        self.sample_rate_hz = bundle.codec.sample_rate_hz
        self.channels = bundle.codec.channels
        self.hop_samples = bundle.codec.hop_samples
        self.margin_frames = bundle.codec.decode.margin_frames
        self.latent_channels = bundle.latents.channels
        self.queue = queue or CodecQueue()
        self._decode_engine = decode
        self._encode_engine = encode
        # Held while audio is encoded: one encodes at a time, others wait for it.
        self._encode_lock = threading.Lock()

    @property
    def can_encode(self) -> bool:
        """Whether audio can be encoded to latents, as covers and repaints of audio files need."""
        return self._encode_engine is not None

    def decode(self, latents: Latents, start_frame: int = 0) -> Pcm:
        """`[T, C]` float32 -> `[T * hop_samples, channels]` float32. start_frame: the number of the first frame.

        Raises ShapeError, EngineError.
        """
        limit = self.spec.decode.window_frames
        if len(latents) <= limit + 2 * self.margin_frames:
            return self.queue.submit(partial(self._decode, latents, start_frame)).result()
        cutter = self.window_cutter(limit, total_frames=len(latents), start_frame=start_frame)
        return np.concatenate([self.decode_window(window) for window in cutter.cut(latents)])

    def window_cutter(
        self,
        window_frames: int,
        *,
        total_frames: int | None = None,
        first_frames: int | None = None,
        start_frame: int = 0,
    ) -> WindowCutter:
        """A WindowCutter with the decoder's margin and groups, and windows no longer than the bundle's `window_frames`.

        The stream's first frame begins a group.
        """
        limit = self.spec.decode.window_frames
        return WindowCutter(
            self.margin_frames,
            min(window_frames, limit),
            total_frames,
            first_frames=None if first_frames is None else min(first_frames, limit),
            start_frame=start_frame,
            align_frames=self.spec.decode.align_frames,
        )

    def decode_window(self, window: Window) -> Pcm:
        """`[frames * hop_samples, channels]` float32 of a window, equal to that part of the full decode.

        Raises ShapeError, EngineError.
        """
        return self.trimmed(self.start(window).result(), window)

    def start(self, window: Window) -> Future[Pcm]:
        """Decode all frames of a window, margins too: `[T * hop_samples, channels]` float32.

        The result raises ShapeError, EngineError.
        """
        return self.queue.submit(partial(self._decode, window.values, window.start_frame))

    def start_if_free(self, window: Window) -> Future[Pcm] | None:
        """As start(), or None where it would wait."""
        return self.queue.submit_if_free(partial(self._decode, window.values, window.start_frame))

    def trimmed(self, pcm: Pcm, window: Window) -> Pcm:
        """What start() gave, without the margins."""
        begin = window.margin_before * self.hop_samples
        return pcm[begin : begin + window.frames * self.hop_samples]

    def _decode(self, latents: Latents, start_frame: int) -> Pcm:
        """One execute."""
        if latents.ndim != 2 or latents.shape[1] != self.latent_channels or len(latents) == 0:
            raise ShapeError(f"latents have shape {latents.shape}, expected [T, {self.latent_channels}]")
        roles, frames = self.spec.decode.inputs, len(latents)
        if missing := self.spec.decode.missing(frames):
            latents = np.concatenate((latents, np.repeat(latents[-1:], missing, axis=0)))  # [whole groups, C]
        feeds: dict[str, NDArray[np.generic]] = {roles.latents: np.ascontiguousarray(latents[None], np.float32)}
        if roles.start_frame is not None:
            feeds[roles.start_frame] = np.array([start_frame], np.int64)
        audio = run_once(self._decode_engine, feeds, self.queue.level)[self.spec.decode.outputs.audio]
        expected = (1, self.channels, len(latents) * self.hop_samples)
        if audio.shape != expected:
            raise EngineError(f"{self._decode_engine.name} returned audio of shape {audio.shape}, expected {expected}")
        return np.ascontiguousarray(audio[0, :, : frames * self.hop_samples].T)

    def encode(self, pcm: Pcm) -> Latents:
        """`[N, channels]` float32 -> `[T, C]` float32, padded with silence to a whole frame.

        Raises RequestError, EngineError.
        """
        return self.encode_chunks([pcm])

    def encode_chunks(self, chunks: Iterable[Pcm]) -> Latents:
        """encode() of chunks `[n, channels]`, of which it holds no more than a window at a time."""
        if self._encode_engine is None or self.spec.encode is None:
            raise RequestError("this bundle cannot turn audio into latents", field="source", fix="give latents instead")
        margin_frames, window_frames = self.spec.encode.margin_frames, self.spec.encode.window_frames
        cutter = WindowCutter(margin_frames, window_frames, align_frames=self.spec.encode.align_frames)
        pieces: list[Latents] = []
        # The first block has the margin of the first window, too: then every block but the last completes one window.
        blocks = self._blocks(chunks, window_frames + margin_frames, window_frames)
        last = next(blocks)
        for block in blocks:
            pieces += [self._encode_window(window) for window in cutter.cut(last)]
            last = block
        pieces += [self._encode_window(window) for window in cutter.end(last)]
        if not pieces:
            raise RequestError(f"the audio is empty, expected [N, {self.channels}]", field="source")
        return np.concatenate(pieces)

    def _blocks(self, chunks: Iterable[Pcm], first_frames: int, frames: int) -> Iterator[Pcm]:
        """Chunks joined to `[frames, hop_samples * channels]`; the last one has what is left, padded with silence."""
        parts: list[Pcm] = []
        missing = first_frames * self.hop_samples
        for chunk in chunks:
            if chunk.ndim != 2 or chunk.shape[1] != self.channels:
                raise RequestError(f"audio has shape {chunk.shape}, expected [N, {self.channels}]", field="source")
            rest = chunk
            while len(rest) >= missing:
                yield np.concatenate([*parts, rest[:missing]]).reshape(-1, self.hop_samples * self.channels)
                rest, parts, missing = rest[missing:], [], frames * self.hop_samples
            parts.append(rest)
            missing -= len(rest)
        padding = np.zeros((missing % self.hop_samples, self.channels), np.float32)
        yield np.concatenate([*parts, padding]).reshape(-1, self.hop_samples * self.channels)

    def _encode_window(self, window: Window) -> Latents:
        latents = self._encode(window.values.reshape(-1, self.channels))
        return latents[window.margin_before : window.margin_before + window.frames]

    def _encode(self, pcm: Pcm) -> Latents:
        assert self._encode_engine is not None
        assert self.spec.encode is not None
        frames = len(pcm) // self.hop_samples
        if missing := self.spec.encode.missing(frames):
            pcm = np.pad(pcm, ((0, missing * self.hop_samples), (0, 0)))  # [whole groups * hop, channels]
        feeds = {self.spec.encode.inputs.audio: np.ascontiguousarray(pcm.T[None], np.float32)}
        with self._encode_lock:
            latents = run_once(self._encode_engine, feeds)[self.spec.encode.outputs.latents]
        expected = (1, len(pcm) // self.hop_samples, self.latent_channels)
        if latents.shape != expected:
            raise EngineError(
                f"{self._encode_engine.name} returned latents of shape {latents.shape}, expected {expected}"
            )
        encoded: Latents = latents[0, :frames]
        return encoded
