"""Reads latents from safetensors files, whose headers are bounded before they are parsed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from runtime.audio.formats import LATENTS_NAME, Latents
from runtime.errors import RequestError
from runtime.untrusted import parse_json_object, quoted

LATENT_DTYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
LENGTH_BYTES = 8
# Metadata is part of the header: up to 1 MiB of options, with every quote escaped.
MAX_HEADER_BYTES = 4 * 2**20


def read_latents(source: Path | bytes, channels: int, max_frames: int) -> Latents:
    """The tensor "latents" `[T, C]` of a safetensors file as float32; other tensors and metadata are not read.

    Raises RequestError: not such a file, another dtype or shape, more than `max_frames`, values that are not finite.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            latents = _read(file, channels, max_frames)
    except OSError as error:
        raise RequestError(f"{source!s:.200} cannot be read: {error.strerror}", field="source") from error
    if not np.isfinite(latents).all():
        raise RequestError("latents have values that are not finite", field="source")
    return latents


def _read(file: BinaryIO, channels: int, max_frames: int) -> Latents:
    entry = _header(file).get(LATENTS_NAME)
    if not isinstance(entry, dict):
        raise RequestError(f'has no tensor "{LATENTS_NAME}"', field="source")
    name, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    dtype = LATENT_DTYPES.get(str(name))
    if dtype is None or not _is_pair(shape) or shape[1] != channels or not 1 <= shape[0] <= max_frames:
        found = f"{quoted(name, 20)} {quoted(shape, 40)}"
        expected = f"F32 [T, {channels}] with T up to {max_frames}"
        raise RequestError(f"latents are {found}, expected {expected}", field="source")
    values = np.frombuffer(_tensor_bytes(file, offsets, shape[0] * channels * dtype.itemsize), dtype)
    latents: Latents = values.reshape(shape).astype(np.float32)
    return latents


def _header(file: BinaryIO) -> dict[str, Any]:
    """The header: tensors by name. Raises RequestError."""
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise _not_safetensors(f"its header has {length} bytes, at most {MAX_HEADER_BYTES} are read")
    try:
        return parse_json_object(file.read(length))
    except RequestError as error:
        raise _not_safetensors(f"its header: {error.what}") from None


def _tensor_bytes(file: BinaryIO, offsets: Any, num_bytes: int) -> bytes:
    """The bytes between `offsets`, counted from the end of the header. Raises RequestError."""
    if _is_pair(offsets) and 0 <= offsets[0] <= 2**62 and offsets[1] - offsets[0] == num_bytes:
        file.seek(offsets[0], io.SEEK_CUR)
        values = file.read(num_bytes)
        if len(values) == num_bytes:
            return values
    raise _not_safetensors(f"its data_offsets {quoted(offsets, 40)} are not {num_bytes} bytes of the file")


def _is_pair(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) == 2 and all(type(item) is int for item in value)


def _not_safetensors(what: str) -> RequestError:
    return RequestError(f"not a safetensors file ({what})", field="source")
