"""Formats of audio and latents: names, suffixes, media types, files; latents to and from a safetensors file's bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import safetensors.numpy

from runtime.base.errors import FileError, RequestError
from runtime.base.files import expanded, open_file
from runtime.base.untrusted import is_pair, quoted, safetensors_bytes, safetensors_header
from runtime.config.codec import Latents

LAYOUTS = ("mono", "stereo", "2.1", "4.0", "5.0", "5.1", "6.1", "7.1")
LATENTS_NAME = "latents"
LATENT_DTYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


@dataclass(frozen=True)
class Format:
    """A format of a generation: its name in requests, the file suffix, the media type.

    rates_hz: samples per second that it can have, the last one in place of others; None: any, (): it is no audio.
    has_bit_rate: whether one can be chosen.
    """

    name: str
    suffix: str
    media_type: str
    rates_hz: tuple[int, ...] | None = None
    has_bit_rate: bool = False


StemFormat = Literal["wav", "flac"]
FormatName = Literal["wav", "pcm", "flac", "ogg", "mp3", "mid", "latents"]
OPUS_RATE_HZ = 48_000
MP3_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


FORMATS = {
    item.name: item
    for item in (
        Format("wav", ".wav", "audio/wav"),
        Format("pcm", ".pcm", "audio/pcm"),
        Format("flac", ".flac", "audio/flac"),
        Format("ogg", ".ogg", "audio/ogg", (OPUS_RATE_HZ,), has_bit_rate=True),
        Format("mp3", ".mp3", "audio/mpeg", MP3_RATES_HZ, has_bit_rate=True),
        Format("mid", ".mid", "audio/midi", ()),
        Format("latents", ".safetensors", "application/vnd.safetensors", ()),
    )
}
# Other usual names of formats, and of their media types.
_OTHER_NAMES = {
    "wave": "wav", "vnd.wave": "wav", "mpeg": "mp3", "mpeg3": "mp3", "opus": "ogg", "oga": "ogg", "raw": "pcm",
    "s16le": "pcm", "midi": "mid", "smf": "mid", "safetensors": "latents", "vnd.safetensors": "latents",
}  # fmt: skip
# What the stem of all layers together is called.
MIX = "mix"
# Several files in one.
ARCHIVE = Format("zip", ".zip", "application/zip", ())
AUDIO_FORMATS = tuple(name for name, item in FORMATS.items() if item.rates_hz != ())


def format_name(value: Any) -> Any:
    """The name of a format by a usual one, such as "MP3", ".mp3" or "audio/mpeg"; what is none as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip().casefold().partition(";")[0].strip()
    text = text.removeprefix("audio/").removeprefix("application/").removeprefix("x-").removeprefix(".")
    name = _OTHER_NAMES.get(text, text)
    return name if name in FORMATS else value


def latents_bytes(latents: Latents, metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with one tensor, "latents" `[T, C]` float32."""
    tensors = {LATENTS_NAME: np.ascontiguousarray(latents, np.float32)}
    return bytes(safetensors.numpy.save(tensors, metadata=dict(metadata)))


def is_latents_file(source: Path | bytes) -> bool:
    """By a path's suffix, or by the first bytes of safetensors: the header's length (8 bytes) and a JSON object."""
    if isinstance(source, Path):
        return source.suffix == FORMATS["latents"].suffix
    return source[8:9] == b"{" and int.from_bytes(source[:8], "little") < len(source)


def read_latents(source: Path | bytes, channels: int, max_frames: int) -> Latents:
    """The tensor "latents" `[T, C]` of a safetensors file as float32; other tensors and metadata are not read.

    Raises RequestError: not such a file, another dtype or shape, more than `max_frames`, values that are not finite.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as file:
            latents = _read(file, channels, max_frames)
    except OSError as error:
        raise RequestError(f"{source!s:.200} cannot be read: {error.strerror}", field="source") from error
    except RequestError as error:
        raise RequestError(error.what, field="source") from None
    if not np.isfinite(latents).all():
        raise RequestError("latents have values that are not finite", field="source")
    return latents


def _read(file: BinaryIO, channels: int, max_frames: int) -> Latents:
    entry, start = safetensors_header(file).get(LATENTS_NAME), file.tell()
    if not isinstance(entry, dict):
        raise RequestError(f'has no tensor "{LATENTS_NAME}"')
    name, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    dtype = LATENT_DTYPES.get(str(name))
    if dtype is None or not is_pair(shape) or shape[1] != channels or not 1 <= shape[0] <= max_frames:
        found = f"{quoted(name, 20)} {quoted(shape, 40)}"
        expected = f"F32 [T, {channels}] with T up to {max_frames}"
        raise RequestError(f"latents are {found}, expected {expected}")
    values = np.frombuffer(safetensors_bytes(file, start, offsets, shape[0] * channels * dtype.itemsize), dtype)
    latents: Latents = values.reshape(shape).astype(np.float32)
    return latents


SUFFIXES = (*(item.suffix for item in FORMATS.values()), ".opus", ".raw")


def format_of(path: Path, format: str | None = None) -> str:
    """The format to write: `format` if given, else the one of the suffix. Raises RequestError."""
    found = str(format_name(path.suffix if format is None else format))
    if found in FORMATS:
        return found
    if format is not None:
        raise RequestError(f"expected one of {', '.join(FORMATS)}, got {format!r}", field="format")
    fix = f"end it in one of {' '.join(SUFFIXES)}, or name the format"
    raise RequestError(f"the suffix of {str(path)!r} is not that of a format", fix=fix)


@contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` when the block ends; where it fails, `path` stays as it was.

    Raises FileError where it cannot be written.
    """
    path = expanded(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder, expected a file's name")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
