"""Formats of audio and latents: names, suffixes, media types; latents as safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from runtime.errors import RequestError

Pcm = NDArray[np.float32]
Latents = NDArray[np.float32]
LAYOUTS = ("mono", "stereo", "2.1", "4.0", "5.0", "5.1", "6.1", "7.1")
LATENT_DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
LATENTS_NAME = "latents"


@dataclass(frozen=True)
class Format:
    """A format of a generation: its name in requests, the file suffix, the media type."""

    name: str
    suffix: str
    media_type: str


FormatName = Literal["wav", "pcm", "flac", "ogg", "mp3", "latents"]


FORMATS = {
    item.name: item
    for item in (
        Format("wav", ".wav", "audio/wav"),
        Format("pcm", ".pcm", "audio/pcm"),
        Format("flac", ".flac", "audio/flac"),
        Format("ogg", ".ogg", "audio/ogg"),
        Format("mp3", ".mp3", "audio/mpeg"),
        Format("latents", ".safetensors", "application/vnd.safetensors"),
    )
}
AUDIO_FORMATS = tuple(name for name in FORMATS if name != "latents")


def latents_bytes(latents: Latents, metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with one tensor, "latents" `[T, C]` float32."""
    tensors = {LATENTS_NAME: np.ascontiguousarray(latents, np.float32)}
    return bytes(safetensors.numpy.save(tensors, metadata=dict(metadata)))


def is_latents_file(source: Path | bytes) -> bool:
    """By a path's suffix, or by the first bytes of safetensors: the header's length (8 bytes) and a JSON object."""
    if isinstance(source, Path):
        return source.suffix == FORMATS["latents"].suffix
    return source[8:9] == b"{" and int.from_bytes(source[:8], "little") < len(source)


def read_latents(source: Path | bytes, channels: int, max_frames: int) -> tuple[Latents, dict[str, str]]:
    """The "latents" `[T, C]` of a safetensors file as float32, and the file's metadata. Raises RequestError."""
    data = source if isinstance(source, bytes) else _read_bytes(source)
    try:
        tensors = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise RequestError(f"not a safetensors file ({error})", field="source") from error
    if LATENTS_NAME not in tensors:
        raise RequestError(f'has no tensor "{LATENTS_NAME}"', field="source")
    tensor = tensors[LATENTS_NAME]
    shape, dtype = tuple(tensor["shape"]), str(tensor["dtype"])
    if dtype not in LATENT_DTYPES or len(shape) != 2 or shape[1] != channels or not 1 <= shape[0] <= max_frames:
        raise RequestError(
            f"latents are {dtype} {list(shape)}, expected F32 [T, {channels}] with T up to {max_frames}", field="source"
        )
    latents = np.frombuffer(tensor["data"], LATENT_DTYPES[dtype]).reshape(shape).astype(np.float32)
    if not np.isfinite(latents).all():
        raise RequestError("latents have values that are not finite", field="source")
    return latents, _metadata(data)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", field="source") from error


def _metadata(data: bytes) -> dict[str, str]:
    """The header's metadata; the library has validated the header before."""
    (length,) = struct.unpack("<Q", data[:8])
    return dict(json.loads(data[8 : 8 + length]).get("__metadata__", {}))
