"""Latents <-> PCM. Long audio is converted in windows, so that memory does not grow with its length.

A window is converted with `margin_frames` more frames on both sides, the receptive field, and trimmed: every sample
equals that of the full conversion. A decoder with a position input gets the number of its first frame in the stream. A
codec that works in groups of `align_frames` frames is given whole groups, counted from the stream's first frame, and
none is given less than its `shortest_frames`; what is missing at the end is the last frame again, or silence.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec_queue import CodecQueue
from runtime.audio.windows import Window, WindowCutter, together
from runtime.base.errors import ConfigError, EngineError, RequestError, ShapeError, TickError
from runtime.config.bundle import Bundle
from runtime.config.codec import CodecDecodeSpec, Latents, Pcm
from runtime.config.deployment import HOST_TARGETS
from runtime.devices.device import Level
from runtime.devices.machine import num_cores
from runtime.engines.engine import RunnableGraph, run_once
from runtime.engines.manifest import WINDOW_TIMES, Manifest

MAX_DEFAULT_SIZE = 4
# Windows of one length that one execute decodes on a GPU.
MAX_BATCH = 4


def default_workers(target: str) -> int:
    """Windows to decode at once: one per core on the CPU, at most 4; on a GPU as many as one execute takes."""
    return min(num_cores(), MAX_DEFAULT_SIZE) if target in HOST_TARGETS else MAX_BATCH


def windows_per_execute(manifest: Manifest, spec: CodecDecodeSpec, frames: int) -> int:
    """How many windows of so many frames an engine decodes in one execute, MAX_BATCH at most.

    One on the CPU, where the bits of a window may not depend on others (a batch rounds in another order), and where it
    would save a sixth. Plans say it themselves; the target cuda is given no more frames than one window may have.
    """
    if manifest.target in HOST_TARGETS:
        return 1
    name = spec.inputs.latents
    if manifest.target == "cuda":
        info = next(info for info in manifest.inputs if info.name == name)
        longest = spec.window_frames + 2 * spec.margin_frames
        return 1 if isinstance(info.shape[0], int) else max(1, min(MAX_BATCH, longest // frames))
    shapes = [
        [tuple(map(int, shape.split("x"))) for shape in profile[name].split()]
        for profile in manifest.build.get("profiles", ())
    ]
    fitting = [most[0] for least, _, most in shapes if least[1] <= frames <= most[1]]
    return min(MAX_BATCH, max(fitting, default=1))


def window_ms(manifest: Manifest, frames: int) -> float:
    """What decoding so many frames takes, by the times of the build; infinite for more than it measured."""
    times = {int(length): ms for length, ms in manifest.facts.get(WINDOW_TIMES, {}).items()} or {0: math.inf}
    return float(np.interp(frames, list(times), list(times.values()), right=math.inf))


@dataclass(eq=False)
class _Asked:
    """A window to decode: `[T, C]`, and the number of its first frame. audio: `[A, W]`."""

    latents: Latents
    start_frame: int
    audio: Future[NDArray[np.float32]] = field(default_factory=Future)


class _Lane:
    """What is decoded at one level of the device: what waits for the execute that runs shares the next one."""

    def __init__(self) -> None:
        self.waiting: list[_Asked] = []
        # Held while the list changes, never while something is decoded.
        self.changing = threading.Lock()
        # Held for a whole execute; those that wait for it are what the next one decodes.
        self.turn = threading.Lock()

    def take(self, first: _Asked, limit: int) -> list[_Asked]:
        """It, and others that wait and are as long; none where another execute took it along."""
        with self.changing:
            if first not in self.waiting:
                return []
            others = [each for each in self.waiting if each is not first and len(each.latents) == len(first.latents)]
            taken = [first, *others[: limit - 1]]
            self.waiting = [each for each in self.waiting if each not in taken]
        return taken


class Codec:
    """The bundle's codec. Any thread may call it. The workers of `queue` (default: one) decode; one call at a time
    encodes. batch: how many windows of so many frames one execute decodes (default: one). cost_ms: what one takes with
    so many (default: it is not known).

    Raises ConfigError where the bundle has no codec.
    """

    def __init__(
        self,
        bundle: Bundle,
        decode: RunnableGraph,
        encode: RunnableGraph | None = None,
        queue: CodecQueue | None = None,
        batch: Callable[[int], int] = lambda frames: 1,
        cost_ms: Callable[[int], float] = lambda frames: math.inf,
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
        self._cost_ms = cost_ms
        self._batch, self._lanes = batch, {level: _Lane() for level in Level}
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

    def together(self, windows: Sequence[Window]) -> list[list[Window]]:
        """As together(), of neighbours in one stream, by what this codec's engine takes."""
        return together(windows, self._cost_ms, self.spec.decode.window_frames + 2 * self.margin_frames)

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
        """One execute, or a part of one."""
        if latents.ndim != 2 or latents.shape[1] != self.latent_channels or len(latents) == 0:
            raise ShapeError(f"latents have shape {latents.shape}, expected [T, {self.latent_channels}]")
        frames = len(latents)
        if missing := self.spec.decode.missing(frames):
            latents = np.concatenate((latents, np.repeat(latents[-1:], missing, axis=0)))  # [whole groups, C]
        asked, level = _Asked(latents, start_frame), self.queue.level
        if (limit := self._batch(len(latents))) > 1:
            self._execute_together(asked, self._lanes[level], limit, level)
            audio = asked.audio.result()
        else:
            (audio,) = self._execute([asked], level)
        return np.ascontiguousarray(audio[:, : frames * self.hop_samples].T)

    def _execute_together(self, asked: _Asked, lane: _Lane, limit: int, level: Level) -> None:
        """Decode a window, with those that wait: alone each, where together they fail."""
        with lane.changing:
            lane.waiting.append(asked)
        # Waits while others of its level are decoded, which may take this one along.
        with lane.turn:
            taken = lane.take(asked, limit)
            try:
                for one, audio in zip(taken, self._execute(taken, level) if taken else (), strict=True):
                    one.audio.set_result(audio)
            except TickError:
                for one in taken:
                    self._execute_alone(one, level)
            except BaseException as error:  # also a panic of native code
                for one in taken:
                    one.audio.set_exception(error)

    def _execute_alone(self, asked: _Asked, level: Level) -> None:
        try:
            asked.audio.set_result(self._execute([asked], level)[0])
        except BaseException as error:
            asked.audio.set_exception(error)

    def _execute(self, asked: Sequence[_Asked], level: Level) -> NDArray[np.float32]:
        """One execute: `[B, A, W]` of windows of one length."""
        roles, frames = self.spec.decode.inputs, len(asked[0].latents)
        latents = np.stack([one.latents for one in asked])
        feeds: dict[str, NDArray[np.generic]] = {roles.latents: np.ascontiguousarray(latents, np.float32)}
        if roles.start_frame is not None:
            feeds[roles.start_frame] = np.array([one.start_frame for one in asked], np.int64)
        audio: NDArray[np.float32] = run_once(self._decode_engine, feeds, level)[self.spec.decode.outputs.audio]
        expected = (len(asked), self.channels, frames * self.hop_samples)
        if audio.shape != expected:
            raise EngineError(f"{self._decode_engine.name} returned audio of shape {audio.shape}, expected {expected}")
        return audio

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
