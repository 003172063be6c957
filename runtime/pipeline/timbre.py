"""The timbre of a reference: latents of three parts of it, and the condition tokens that the bundle makes of those."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.base.errors import ConfigError, EngineError, RequestError
from runtime.config.bundle import Bundle
from runtime.config.conditions import REFERENCE_PARTS
from runtime.engines.engine import RunnableGraph, run_once
from runtime.pipeline.structure import ContentCache

Array = NDArray[np.float32]
CACHE_ENTRIES = 64
# Opens a sequence in pieces `[n, channels]` float32.
Opened = Callable[[], Iterator[Array]]


class TimbreEncoder:
    """The bundle's timbre encoder, with a cache by content. Any thread may call it.

    Raises ConfigError where the bundle has none.
    """

    def __init__(self, bundle: Bundle, engine: RunnableGraph, *, cache_entries: int = CACHE_ENTRIES) -> None:
        if bundle.timbre is None:
            raise ConfigError(f"bundle {bundle.name!r} has no [timbre]")
        self.spec = bundle.timbre
        self._bundle, self._engine = bundle, engine
        self._cache: ContentCache[Array] = ContentCache(cache_entries)
        self._references: ContentCache[Array] = ContentCache(cache_entries)

    @cached_property
    def silence(self) -> Array:
        """`[P, D]` float32, read-only: the tokens of silence, which stand where no reference is given."""
        return self._run(self._bundle.silence(self.spec.frames))

    def encode(self, latents: Array, strength: float = 1.0) -> Array:
        """`[P, D]` float32: the tokens of a reference `[T, C]`, interpolated linearly from those of silence.

        strength: 0 is silence, 1 the reference. Raises RequestError for another shape, EngineError.
        """
        if latents.shape != (self.spec.frames, self._bundle.latents.channels):
            raise RequestError(
                f"has shape {latents.shape}, expected {(self.spec.frames, self._bundle.latents.channels)}",
                field="timbre",
            )
        tokens = self._cache.get(hashlib.sha256(latents.tobytes()).digest(), lambda: self._run(latents))
        return tokens if strength == 1.0 else (1.0 - strength) * self.silence + strength * tokens

    def reference(self, opened: Opened, codec: Codec | None = None) -> Array:
        """Latents `[T, C]` float32 of a reference: latents `[n, C]` in pieces, or audio that `codec` encodes.

        Raises RequestError, EngineError.
        """
        if codec is None:
            return reference_parts(opened, self.spec.frames)
        pcm = reference_parts(opened, self.spec.frames * codec.hop_samples)
        return self._references.get(hashlib.sha256(pcm.tobytes()).digest(), lambda: codec.encode(pcm))

    def _run(self, latents: Array) -> Array:
        outputs = run_once(self._engine, {self.spec.inputs.latents: np.ascontiguousarray(latents[None])})
        tokens = outputs[self.spec.outputs.condition]
        if tokens.ndim != 3 or not tokens.shape[1]:
            raise EngineError(f"{self._engine.name} returned shape {tokens.shape}, expected [1, P, D]")
        kept: Array = np.ascontiguousarray(tokens[0])
        kept.flags.writeable = False
        return kept


def reference_parts(opened: Opened, length: int) -> Array:
    """`[length, channels]`: a sequence's first part, that from its third on, and its last; each a third of `length`.

    opened: called twice at least. A shorter one repeats until it is `length` long. As
    diffusers' AceStepPipeline.prepare_reference_audio_latents. Raises RequestError where it is empty.
    """
    num_once, part = sum(map(len, opened())), length // REFERENCE_PARTS
    if not num_once:
        raise RequestError("is empty", field="timbre")
    total = num_once * -(-length // num_once) if num_once < length else num_once
    starts, at = (0, total // REFERENCE_PARTS, total - part), 0
    found: list[list[Array]] = [[] for _ in starts]
    while at < total:
        for piece in opened():
            for kept, start in zip(found, starts, strict=True):
                kept.append(piece[max(start - at, 0) : max(start + part - at, 0)].copy())
            at += len(piece)
    return np.concatenate([piece for kept in found for piece in kept])
