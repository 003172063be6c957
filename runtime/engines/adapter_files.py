"""Files of LoRA adapters: of PEFT, diffusers and the models' own trainers, checked against the bundle's decoder.

y += strength * scale * (x A) B for each matrix, with scale = alpha / r (rank-stabilized: alpha / sqrt(r)); Hu et al.,
2021, and Kalajdzievski, 2023.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO
from unicodedata import category

import numpy as np
from pydantic_core import from_json

from runtime.base.errors import AdapterError, ConfigError, FileError, RequestError, did_you_mean
from runtime.base.files import check_file, is_left_behind, open_file, own_entries, plain_name
from runtime.base.untrusted import quoted, safetensors_bytes, safetensors_header, shortened
from runtime.config.decoder import AdapterSpec
from runtime.config.deployment import Deployment
from runtime.engines.adapter_config import (
    CONFIG_NAME,
    REFUSED,
    AdapterConfig,
    config_of_folder,
    config_of_metadata,
    without_prefix,
)
from runtime.engines.adapters import NO_ADAPTERS, Adapter, AdapterCatalog, Floats

WEIGHT_SUFFIX = ".safetensors"
WEIGHT_NAMES = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
MAX_ID = 100
# Unicode's control characters and line ends, and bytes of names that are no text.
NOT_IN_IDS = ("Cc", "Cs", "Zl", "Zp")
TENSOR = re.compile(
    r"(?P<module>.+?)(\.parametrizations\.weight\.0)?\.(?P<part>lora_A|lora_B|alpha)(\.default)?(\.weight)?"
)
DORA = ("lora_magnitude_vector", "dora_scale", ".magnitude")
MAX_HEADER_MEMBERS = 32_768
MAX_RANK = 512
MAX_WARNING = 8_000
logger = logging.getLogger("tickrt.engines")


def read_catalog(deployment: Deployment) -> AdapterCatalog:
    """Read every adapter of a deployment's folder: subfolders and .safetensors files, whose name is the id.

    Raises ConfigError where there is no such folder or the bundle takes no adapters, AdapterError.
    """
    folder, rank = deployment.adapters, deployment.runtime.adapter_rank
    if folder is None and not rank:
        return NO_ADAPTERS
    bundle = deployment.loaded_bundle
    if bundle.adapters is None:
        raise ConfigError(
            f"{deployment.path}: bundle {bundle.name!r} takes no adapters: its bundle.toml has no [adapters]",
            fix="remove adapters and adapter_rank, or export the bundle again",
        )
    if folder is None:
        return AdapterCatalog({}, rank)
    try:
        paths = sorted(folder.iterdir(), key=_id_of)
    except OSError as error:
        what = f"{deployment.path}: adapters: {folder} is no folder that can be read: {error.strerror}"
        raise ConfigError(what, fix="create it, or leave it out") from None
    if any(path.name == CONFIG_NAME for path in paths):
        what = f"{deployment.path}: adapters: {folder} is one adapter, expected a folder of adapters"
        raise ConfigError(what, fix=f"adapters = {str(folder.parent)!r}, or move it into a folder of its own there")
    return AdapterCatalog(_read_all(paths, bundle.adapters), rank)


def _read_all(paths: Sequence[Path], spec: AdapterSpec) -> dict[str, Adapter]:
    """The adapters of these paths by id; what else is there is named in one warning. Raises AdapterError."""
    found: dict[str, Adapter] = {}
    skipped: dict[Path, str] = {path: reason for path in paths if (reason := _skipped_because(path))}
    for path in paths:
        if path in skipped or not _may_be_one(path):
            continue
        adapter = read_adapter(path, spec)
        if (other := _copied(adapter, found.values())) is not None:
            skipped[path] = f"a copy of {other.id}"
        elif adapter.id in found:
            raise AdapterError(f"{path.parent} has two adapters {adapter.id!r}", fix="rename one of them")
        else:
            found[adapter.id] = adapter
    if skipped:
        _warn(", ".join(f"{quoted(path.name)} ({reason})" for path, reason in skipped.items()), paths[0].parent)
    return found


def _may_be_one(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() == WEIGHT_SUFFIX


def _skipped_because(path: Path) -> str:
    """Why an entry that looks like an adapter is none; "" for one, and for other files."""
    if is_left_behind(path.name):
        return "not an adapter"
    if not (_may_be_one(path) or path.is_symlink()):
        return ""
    if not _is_id(_id_of(path)):
        return f"its name is no id: up to {MAX_ID} characters, none of them a control character"
    try:
        if not (files := _weights_in(path)):
            return f"no {WEIGHT_SUFFIX} file in it"
        check_file(files[0])
    except (OSError, FileError) as error:
        return str(error).removeprefix(f"{path} ")
    return ""


def _copied(adapter: Adapter, others: Iterable[Adapter]) -> Adapter | None:
    """The adapter that this one is a file manager's copy of: "x" of "x - Copy (2)", or of another form of "x"."""
    names = (other for other in others if adapter.sha256 == other.sha256)
    return next((other for other in names if f"{adapter.id} ".startswith(f"{other.id} ")), None)


@cache
def _warn(skipped: str, folder: Path) -> None:
    """Once for each change of a folder: commands read it several times."""
    logger.warning("adapters: in %s these are skipped: %s", folder, shortened(skipped, MAX_WARNING))


def _id_of(path: Path) -> str:
    return plain_name(path.name if path.is_dir() else path.stem)


def _is_id(name: str) -> bool:
    return 0 < len(name) <= MAX_ID and not any(category(character) in NOT_IN_IDS for character in name)


def adapter_files(folder: Path) -> list[Path]:
    """The files that a folder's adapters are read from. Raises AdapterError, OSError."""
    paths = [path for path in own_entries(folder) if _may_be_one(path) and not _skipped_because(path)]
    configs = (path / CONFIG_NAME for path in paths)
    return [*map(_weights_file, paths), *(config for config in configs if config.is_file())]


def read_adapter(path: Path, spec: AdapterSpec) -> Adapter:
    """Read an adapter, a folder or a .safetensors file, for a decoder with these matrices.

    Raises AdapterError that names file and tensor: not such a file, a matrix that the decoder does not have, another
    shape or rank; or file and key of a configuration that is no plain LoRA's.
    """
    if not _is_id(id_ := _id_of(path)):
        raise AdapterError(f"{path}: {quoted(id_)} is no id of an adapter", fix="rename it")
    weights = _weights_file(path)
    config = config_of_folder(path) if path.is_dir() else None
    try:
        with open_file(weights) as file:
            return _File(weights, file, spec, config).adapter(id_)
    except OSError as error:
        raise AdapterError(f"{weights} cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise AdapterError(f"{weights}: {error.what}") from None


def _weights_in(path: Path) -> list[Path]:
    """The files with weights at a path: itself, or those of a folder, the usual names first. Raises OSError."""
    if not path.is_dir():
        return [path]
    files = [file for file in own_entries(path) if file.suffix.lower() == WEIGHT_SUFFIX]
    return [file for file in files if file.name in WEIGHT_NAMES] or files


def _weights_file(path: Path) -> Path:
    try:
        files = _weights_in(path)
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from error
    if len(files) != 1:
        what = "several" if files else "no"
        raise AdapterError(f"{path} has {what} {WEIGHT_SUFFIX} files", fix=f"keep one, such as {WEIGHT_NAMES[0]}")
    return files[0]


class _File:
    """An open safetensors file with an adapter's factors."""

    def __init__(self, path: Path, file: BinaryIO, spec: AdapterSpec, config: AdapterConfig | None) -> None:
        self._path, self._file, self._spec = path, file, spec
        header = safetensors_header(file, MAX_HEADER_MEMBERS)
        self._start = file.tell()
        metadata = header.pop("__metadata__", {})
        self._metadata: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
        self._entries = header
        self._config = config or config_of_metadata(path, self._metadata)

    def adapter(self, id_: str) -> Adapter:
        """The adapter. Raises AdapterError, RequestError."""
        self._check_tensors()
        parts = self._parts()
        factors = {path: self._factors(path, names) for path, names in parts.items()}
        rank = max(len(a) for a, _ in factors.values())
        a = np.zeros((rank, self._spec.num_inputs), np.float32)
        b = np.zeros((rank, self._spec.num_outputs), np.float32)
        for path, own in factors.items():
            inputs, outputs = self._spec.places[path]
            a[: len(own[0]), inputs] = own[0]
            b[: len(own[0]), outputs] = own[1].T
        digest = hashlib.sha256()
        for array in (a, b):
            if not np.isfinite(array).all():
                raise AdapterError(f"{self._path} has values that are not finite", fix="train or export it again")
            array.flags.writeable = False
            digest.update(array.data)
        words = tuple(self._trigger_words())
        return Adapter(id_, a, b, tuple(sorted(parts)), self._base_model(), words, digest.hexdigest())

    def _check_tensors(self) -> None:
        if dora := next((name for name in self._entries if any(part in name for part in DORA)), None):
            raise AdapterError(f"{self._path} is a DoRA ({dora}), expected a LoRA", fix=REFUSED["use_dora"])
        if not self._entries:
            raise AdapterError(f"{self._path} has no tensors, expected lora_A and lora_B of the decoder's matrices")

    def _parts(self) -> dict[str, dict[str, str]]:
        """Module path in the bundle -> part (lora_A, lora_B, alpha) -> tensor name."""
        parts: dict[str, dict[str, str]] = {}
        for name in self._entries:
            match = TENSOR.fullmatch(name)
            if match is None:
                raise self._wrong(name, "is no lora_A.weight, lora_B.weight or alpha of a module")
            self._config.check_module(match["module"])
            path = self._spec.path(without_prefix(match["module"]))
            if path not in self._spec.matrices:
                similar = self._spec.refusal(path) or did_you_mean(path, self._spec.matrices)
                raise self._wrong(
                    name, f"is for {quoted(path)}, which [adapters] of bundle.toml does not have", similar
                )
            if parts.setdefault(path, {}).setdefault(match["part"], name) != name:
                raise self._wrong(name, f"is the second {match['part']} of {path}")
        return parts

    def _factors(self, path: str, names: Mapping[str, str]) -> tuple[Floats, Floats]:
        """A `[r, in]` and B `[out, r]`, B with the scale."""
        matrix = self._spec.matrices[path]
        for part in ("lora_A", "lora_B"):
            if part not in names:
                raise AdapterError(f"{self._path} has no {part} of {path}", fix="train or export it again")
        module = _module(names["lora_A"])
        shape = self._shape(names["lora_A"])
        rank = self._config.rank(module) or (shape[0] if shape else 0)
        if not 1 <= rank <= MAX_RANK:
            raise self._wrong(names["lora_A"], f"has rank {rank}, expected 1 to {MAX_RANK}")
        a = self._read(names["lora_A"], (rank, matrix.inputs))
        b = self._read(names["lora_B"], (matrix.outputs, rank))
        alpha = float(self._read(names["alpha"], ()).item()) if "alpha" in names else None
        if order := self._spec.order(_module(names["lora_B"])):
            parts = b.reshape(len(order), -1, rank)
            b = np.concatenate([parts[index] for index in order])
        return a, b * np.float32(self._config.scale(module, rank, alpha))

    def _shape(self, name: str) -> list[Any]:
        entry = self._entries[name]
        shape = entry.get("shape") if isinstance(entry, dict) else None
        return shape if isinstance(shape, list) and all(type(size) is int for size in shape) else []

    def _read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """A tensor of this shape as float32; one number may also be `[1]`. Raises AdapterError, RequestError."""
        entry, found = self._entries[name], self._shape(name)
        dtype = entry.get("dtype") if isinstance(entry, dict) else None
        if dtype not in ("F32", "F16", "BF16") or (tuple(found) != shape and (shape or found != [1])):
            expected = f"F32, F16 or BF16 {list(shape)}"
            raise self._wrong(name, f"is {quoted(dtype, 20)} {quoted(found, 60)}, expected {expected}")
        size = prod(shape) * (4 if dtype == "F32" else 2)
        data = safetensors_bytes(self._file, self._start, entry.get("data_offsets"), size)
        if dtype == "BF16":
            values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)
        return values.reshape(shape)

    def _wrong(self, name: str, what: str, fix: str = "") -> AdapterError:
        return AdapterError(f"{self._path}: {quoted(name, 200)} {what}", fix=fix or "use an adapter of this model")

    def _base_model(self) -> str | None:
        name = self._config.base_model or self._metadata.get("base_model")
        return name[:200] if isinstance(name, str) else None

    def _trigger_words(self) -> Iterator[str]:
        """Of the file's metadata: a comma-separated text or a JSON list."""
        text = self._metadata.get("trigger_words") or self._metadata.get("modelspec.trigger_phrase") or ""
        words = str(text).split(",")
        if str(text).startswith("["):
            try:
                words = [str(word) for word in from_json(text)]
            except ValueError as error:
                raise AdapterError(f"{self._path}: trigger_words is not a JSON list: {error}") from None
        yield from (word.strip()[:100] for word in words[:100] if word.strip())


def _module(name: str) -> str:
    """The module of a tensor whose name fits."""
    match = TENSOR.fullmatch(name)
    assert match is not None
    return without_prefix(match["module"])
