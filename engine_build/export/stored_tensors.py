"""safetensors files read one tensor at a time, so that a module needs no second copy of its weights.

The files are read, not mapped: mapped pages count as the process's memory as long as the map lives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, Final

import torch
from pydantic_core import from_json
from torch import Tensor, nn

from engine_build.export.hub import preferred_weights
from runtime.base.errors import ConfigError
from runtime.base.files import own_entries
from runtime.base.untrusted import plain_utf8

MAX_HEADER_BYTES: Final = 100 << 20  # safetensors' own limit
DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
AGAIN: Final = "copy or download it again"


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: `size_bytes` bytes of `dtype` at `offset` of a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.size_bytes // int(DTYPES[self.dtype].itemsize)

    def read(self) -> Tensor:
        """The tensor in float32, in pages of its own: they return to the system with it. Raises ConfigError."""
        if not self.size_bytes:
            return torch.empty(self.shape)
        with self.file.open("rb") as file:
            file.seek(self.offset)
            data = mmap(-1, self.size_bytes)
            if file.readinto(data) != self.size_bytes:
                raise ConfigError(f"{self.file} ends inside a tensor", fix=AGAIN)
        stored = torch.frombuffer(data, dtype=DTYPES[self.dtype]).reshape(self.shape)
        if stored.dtype == torch.float32:
            return stored
        return torch.frombuffer(mmap(-1, 4 * self.count), dtype=torch.float32).reshape(self.shape).copy_(stored)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or the shards of its index; a variant (bf16, fp16) where it has no other.

    Raises ConfigError where there are none, or a shard of the index is missing.
    """
    name = preferred_weights([file.name for file in own_entries(folder)] if folder.is_dir() else [])
    if name is None:
        raise ConfigError(f"{folder} has no safetensors file and no index of shards", fix=AGAIN)
    found = folder / name
    if found.suffix != ".json":
        return [found]
    shards = sorted({folder / Path(name).name for name in _json(found.read_bytes(), found, "weight_map").values()})
    for shard in shards:
        if not shard.is_file():
            raise ConfigError(f"{shard} is missing; {found.name} names it", fix=AGAIN)
    return shards


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder by name, from the files' headers. Raises ConfigError for a damaged file, naming it."""
    return {name: tensor for file in weight_files(folder) for name, tensor in _tensors_of(file)}


def fill(module: nn.Module, tensors: Mapping[str, StoredTensor], given: Collection[str] = ()) -> None:
    """Replace all parameters and persistent buffers but the `given` by stored tensors in float32, one after the other.

    Raises ConfigError where a tensor is missing, is left over or has another shape: the configuration does not fit.
    """
    expected = module.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if name not in expected:
            raise ConfigError(f"{tensor.file} has a tensor {name!r}, the configuration describes a model without it")
        if tensor.shape != tuple(expected[name].shape):
            raise ConfigError(
                f"{tensor.file} has {name!r} of shape {list(tensor.shape)}, "
                f"the configuration describes {list(expected[name].shape)}"
            )
    if missing := sorted(expected.keys() - tensors.keys() - set(given)):
        files = ", ".join(sorted({str(tensor.file) for tensor in tensors.values()}))
        raise ConfigError(
            f"{len(missing)} tensors that the configuration describes are missing in {files}: {missing[0]!r}, ..."
        )
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        value = tensor.read()
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        else:
            owner._buffers[leaf] = value


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules made inside have parameters without memory; buffers are real."""
    register: Callable[..., None] = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        kept = None if parameter is None else nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, kept)

    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def _tensors_of(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES
        if length > min(MAX_HEADER_BYTES, size_bytes - 8):
            raise ConfigError(f"{path} is not a complete safetensors file: its header is cut off", fix=AGAIN)
        header = _json(file.read(length), path)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        tensor = _entry(path, name, entry, 8 + length)
        if tensor.dtype not in DTYPES:
            raise ConfigError(f"{path} has {name!r} as {tensor.dtype}, expected one of {', '.join(DTYPES)}")
        if tensor.offset + tensor.size_bytes > size_bytes:
            raise ConfigError(f"{path} is cut off: {name!r} ends behind its {size_bytes} bytes", fix=AGAIN)
        if math.prod(tensor.shape) != tensor.count:
            raise ConfigError(
                f"{path} has {name!r} of shape {list(tensor.shape)} in {tensor.size_bytes} bytes", fix=AGAIN
            )
        yield name, tensor


def _entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        first, last = (int(offset) for offset in entry["data_offsets"])
        return StoredTensor(path, str(entry["dtype"]), tuple(entry["shape"]), start + first, last - first)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path} is damaged: its header does not describe {name!r}", fix=AGAIN) from None


def _json(data: bytes, path: Path, key: str | None = None) -> dict[str, Any]:
    try:
        found = from_json(plain_utf8(data))
        value: dict[str, Any] = found if key is None else found[key]
        value.items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is damaged: its JSON cannot be read", fix=AGAIN) from None
    return value
