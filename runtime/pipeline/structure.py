"""Structure: codes of latents, and hints for the context of covers, by the bundle's two graphs."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import ConfigError, RequestError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.engines.engine import RunnableGraph, run_once
from runtime.requests.options import GenerationOptions
from runtime.requests.segments import Segment
from runtime.requests.tasks import task_of

Codes = NDArray[np.int64]

CACHE_ENTRIES = 32
CODE = re.compile(r"<\|audio_code_(\d{1,18})\|>")


class StructureCodec:
    """Codes and hints, with a cache of the `cache_entries` contents used last. Any thread may call it.

    codes_per_piece: the most codes that one execute takes; every piece is encoded and decoded by itself.
    Raises ConfigError where the bundle has no structure.
    """

    def __init__(
        self, bundle: Bundle, encode: RunnableGraph, decode: RunnableGraph, *, cache_entries: int = CACHE_ENTRIES
    ) -> None:
        if bundle.structure is None:
            raise ConfigError(f"bundle {bundle.name!r} has no [structure]")
        self.spec, self._bundle = bundle.structure, bundle
        self._encode, self._decode = encode, decode
        self.codes_per_piece = self.spec.codes_per_piece(bundle.latents.canvas_frames)
        self._cache: ContentCache[Latents] = ContentCache(cache_entries)

    def codes(self, latents: Latents) -> Codes:
        """Codes `[Q]` of latents `[N, C]`; the last one is of frames that end in silence. Raises EngineError."""
        frames = self.spec.frames_per_code
        missing = self.spec.num_codes_of(len(latents)) * frames - len(latents)
        padded = np.concatenate((latents, self._bundle.silence(missing)))
        size, roles = self.codes_per_piece * frames, self.spec.encode
        pieces = [
            run_once(self._encode, {roles.inputs.latents: padded[None, start : start + size]})[roles.outputs.codes][0]
            for start in range(0, len(padded), size)
        ]
        return np.concatenate(pieces)

    def hints(self, latents: Latents) -> Latents:
        """Hints `[N, C]` of latents `[N, C]`, read-only. Raises EngineError."""
        return self._cached(latents, lambda: self._decoded(self.codes(latents))[: len(latents)])

    def hints_of_codes(self, codes: str | Sequence[int]) -> Latents:
        """Hints `[Q * frames_per_code, C]`, read-only, of codes as parse_codes() takes them. Raises RequestError."""
        parsed = np.array(parse_codes(codes, self.spec.num_codes), np.int64)
        return self._cached(parsed, lambda: self._decoded(parsed))

    def _decoded(self, codes: Codes) -> Latents:
        roles, size = self.spec.decode, self.codes_per_piece
        pieces = [
            run_once(self._decode, {roles.inputs.codes: codes[None, start : start + size]})[roles.outputs.hints][0]
            for start in range(0, len(codes), size)
        ]
        return np.concatenate(pieces)

    def _cached(self, content: NDArray[Any], make: Callable[[], Latents]) -> Latents:
        """What was made of this content before, or now."""

        def made() -> Latents:
            hints = np.ascontiguousarray(make(), np.float32)
            hints.flags.writeable = False
            return hints

        return self._cache.get((content.dtype.char, hashlib.sha256(content.tobytes()).digest()), made)


def open_structure(bundle: Bundle, engines: Mapping[str, RunnableGraph]) -> StructureCodec | None:
    """The bundle's structure by its engines; None where it has none."""
    if bundle.structure is None:
        return None
    return StructureCodec(bundle, engines["structure_encode"], engines["structure_decode"])


def given_latents(
    options: GenerationOptions, segment: Segment, silence: Latents, source: Latents | None, hints: Latents | None
) -> Latents:
    """`[T, C]`: what a segment's context has of frames that are generated.

    The source in a task that makes a track for it, or from it; hints `[N, C]`, interpolated from silence by their
    strength; else `silence`.
    """
    if options.task in ("extract", "lego", "complete") and source is not None:
        return segment.part(source, silence)
    if hints is None:
        return silence
    strength = 1.0 if options.structure_strength is None else options.structure_strength
    share = np.asarray(segment.curve(strength), np.float32)[..., None]
    return share * segment.part(hints, silence) + (1 - share) * silence


def hints_of(
    codec: StructureCodec | None, options: GenerationOptions, source: Latents | None, structure: Latents | None
) -> Latents | None:
    """Hints `[N, C]` of the codes, else of the structure, else of a cover's source. Raises RequestError."""
    if codec is None:
        for field, value in (("codes", options.codes), ("structure", structure)):
            if value is not None:
                raise no_structure(field)
        return None
    if options.codes is not None:
        return codec.hints_of_codes(options.codes)
    if structure is None and (task_of(options, source) == "cover" or options.structure_strength is not None):
        structure = source
    return None if structure is None else codec.hints(structure)


def no_structure(field: str = "structure") -> RequestError:
    """What codes and structures for a bundle without [structure] are refused with."""
    return RequestError("the bundle has no [structure]", field=field, fix="leave it out")


def parse_codes(codes: str | Sequence[int], num_codes: int) -> list[int]:
    """Codes from a text such as `<|audio_code_12|><|audio_code_7|>`, or from numbers. Raises RequestError."""
    numbers = [int(number) for number in CODE.findall(codes)] if isinstance(codes, str) else list(codes)
    rest = CODE.sub("", codes).strip() if isinstance(codes, str) else ""
    if rest or not numbers:
        raise RequestError(
            f"expected codes, got {rest or codes!r:.60}",
            field="codes",
            fix="<|audio_code_12|><|audio_code_7|>, or [12, 7]",
        )
    for index, number in enumerate(numbers):
        if not 0 <= number < num_codes:
            raise RequestError(f"code {index} is {number}, the model has 0 to {num_codes - 1}", field="codes")
    return numbers


T = TypeVar("T")


class ContentCache(Generic[T]):
    """Keeps the `entries` results used last. Any thread may call it; one result is made at a time."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        # Held while a result is made: other callers wait until it is there, also for other keys.
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of a key; what `make` returns where there is none. What it raises is not kept."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
            made = self._found[key] = make()
            if len(self._found) > self._entries:
                self._found.popitem(last=False)
            return made
