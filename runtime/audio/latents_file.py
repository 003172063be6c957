"""Reads latents from safetensors files, whose headers are bounded before they are parsed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from runtime.audio.formats import LATENTS_NAME, Latents
from runtime.errors import RequestError
from runtime.untrusted import is_pair, quoted, safetensors_bytes, safetensors_header

LATENT_DTYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


def read_latents(source: Path | bytes, channels: int, max_frames: int) -> Latents:
    """The tensor "latents" `[T, C]` of a safetensors file as float32; other tensors and metadata are not read.

    Raises RequestError: not such a file, another dtype or shape, more than `max_frames`, values that are not finite.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
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
