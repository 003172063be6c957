"""Files of LoRA adapters: of PEFT, diffusers and the models' own trainers, checked against the bundle's decoder.

y += strength * scale * (x A) B for each matrix, with scale = alpha / r (rank-stabilized: alpha / sqrt(r)); Hu et al.,
2021, and Kalajdzievski, 2023.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import from_json

from runtime.config.adapter_spec import AdapterSpec
from runtime.config.deployment import Deployment
from runtime.engines.adapters import NO_ADAPTERS, Adapter, AdapterCatalog, Floats
from runtime.errors import AdapterError, ConfigError, RequestError, did_you_mean
from runtime.untrusted import parse_json_object, quoted, safetensors_bytes, safetensors_header

CONFIG_NAME = "adapter_config.json"
WEIGHT_NAMES = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
# Where diffusers keeps the configuration in a file's own metadata.
DIFFUSERS_METADATA = "lora_adapter_metadata"
# Where trainers that use torch's parametrizations do, and their names for PEFT's.
TRAINER_METADATA = "lora_config"
TRAINER_NAMES = {"rank": "r", "alpha": "lora_alpha"}
PREFIXES = ("base_model.model.", "transformer.")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TENSOR = re.compile(
    r"(?P<module>.+?)(\.parametrizations\.weight\.0)?\.(?P<part>lora_A|lora_B|alpha)(\.default)?(\.weight)?"
)
DORA = ("lora_magnitude_vector", "dora_scale", ".magnitude")
OTHER_KINDS = ("use_bdlora", "use_qalora")
MAX_HEADER_MEMBERS = 32_768
MAX_CONFIG_BYTES = 1 << 20
MAX_RANK = 512
# Of r and alpha.
MAX_NUMBER = 1_000_000


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
    if not folder.is_dir():
        raise ConfigError(f"{deployment.path}: adapters: {folder} is not a folder", fix="create it, or leave it out")
    found: dict[str, Adapter] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() or path.suffix == ".safetensors":
            adapter = read_adapter(path, bundle.adapters)
            if adapter.id in found:
                raise AdapterError(f"{folder} has two adapters {adapter.id!r}", fix="rename one of them")
            found[adapter.id] = adapter
    return AdapterCatalog(found, rank)


def read_adapter(path: Path, spec: AdapterSpec) -> Adapter:
    """Read an adapter, a folder or a .safetensors file, for a decoder with these matrices.

    Raises AdapterError that names file and tensor: not such a file, a matrix that the decoder does not have, another
    shape or rank, DoRA.
    """
    id_ = path.name if path.is_dir() else path.stem
    if not ID.fullmatch(id_):
        raise AdapterError(f"{path}: {quoted(id_)} is no id of an adapter", fix="name it with letters, digits, . _ -")
    weights = _weights_file(path)
    try:
        with weights.open("rb") as file:
            return _File(weights, file, spec, _folder_config(path)).adapter(id_)
    except OSError as error:
        raise AdapterError(f"{weights} cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise AdapterError(f"{weights}: {error.what}") from None


def _weights_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.safetensors"))
    named = [file for file in files if file.name in WEIGHT_NAMES] or files
    if len(named) != 1:
        what = "several" if named else "no"
        raise AdapterError(f"{path} has {what} .safetensors files", fix=f"keep one, such as {WEIGHT_NAMES[0]}")
    return named[0]


def _folder_config(path: Path) -> dict[str, Any]:
    """adapter_config.json; empty where there is none."""
    file = path / CONFIG_NAME
    if not file.is_file():
        return {}
    with file.open("rb") as opened:
        return parse_json_object(opened.read(MAX_CONFIG_BYTES))


@dataclass(frozen=True)
class _Scales:
    """alpha and r by module: of a configuration, in which patterns of module names have their own; else of tensors."""

    where: str
    config: Mapping[str, Any]

    def rank(self, module: str) -> int | None:
        """The configured r of a module."""
        found = self._value(module, "rank_pattern", "r")
        return None if found is None else int(found)

    def scale(self, module: str, rank: int, alpha: float | None) -> float:
        """What the product of a module's factors is multiplied by; 1 where nothing says it."""
        configured = self._value(module, "alpha_pattern", "lora_alpha")
        chosen = configured if configured is not None else alpha
        if chosen is None:
            return 1.0
        return float(chosen) / (sqrt(rank) if self.config.get("use_rslora") else rank)

    def _value(self, module: str, patterns: str, name: str) -> Any:
        """As PEFT does: a pattern is a regular expression for the end of a module's path."""
        found, table = self.config.get(name), self.config.get(patterns) or {}
        if not isinstance(table, dict):
            raise AdapterError(f"{self.where}: {patterns} is {quoted(table)}, expected a JSON object")
        for pattern, value in table.items():
            try:
                if re.fullmatch(rf"(.*\.)?({pattern})", module):
                    found = value
                    break
            except re.error as error:
                raise AdapterError(f"{self.where}: {patterns} {quoted(pattern)}: {error}") from None
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if found is not None and not (is_number and 0 < found <= MAX_NUMBER):
            raise AdapterError(
                f"{self.where}: {name} of {module} is {quoted(found)}, expected a number above 0, at most {MAX_NUMBER}"
            )
        return found


class _File:
    """An open safetensors file with an adapter's factors."""

    def __init__(self, path: Path, file: BinaryIO, spec: AdapterSpec, config: Mapping[str, Any]) -> None:
        self._path, self._file, self._spec = path, file, spec
        header = safetensors_header(file, MAX_HEADER_MEMBERS)
        self._start = file.tell()
        metadata = header.pop("__metadata__", {})
        self._metadata: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
        self._entries = header
        self._config = config or self._own_config()
        self._scales = _Scales(str(path), self._config)

    def adapter(self, id_: str) -> Adapter:
        """The adapter. Raises AdapterError, RequestError."""
        self._check_kind()
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

    def _own_config(self) -> dict[str, Any]:
        """The configuration in the file's metadata; diffusers' is of the part `transformer`."""
        for key in (DIFFUSERS_METADATA, TRAINER_METADATA):
            if isinstance(text := self._metadata.get(key), str):
                plain = {name.removeprefix("transformer."): value for name, value in parse_json_object(text).items()}
                return {TRAINER_NAMES.get(name, name): value for name, value in plain.items()}
        return {}

    def _check_kind(self) -> None:
        kind, own_kind = self._config.get("peft_type", "LORA"), self._config.get("adapter_type", "lora")
        if own_kind != "lora":
            fix = "train it with --adapter_type lora"
            raise AdapterError(f"{self._path} is of type {quoted(own_kind)}, expected a plain LoRA", fix=fix)
        dora = next((name for name in self._entries if any(part in name for part in DORA)), None)
        if self._config.get("use_dora") or dora is not None:
            raise AdapterError(f"{self._path} is a DoRA ({dora or 'use_dora'}), expected a LoRA")
        if found := [name for name in OTHER_KINDS if self._config.get(name)]:
            raise AdapterError(f"{self._path}: {found[0]} is set, expected a plain LoRA")
        if kind != "LORA":
            raise AdapterError(f"{self._path} is of type {quoted(kind)}, expected a LoRA")
        if not self._entries:
            raise AdapterError(f"{self._path} has no tensors, expected lora_A and lora_B of the decoder's matrices")

    def _parts(self) -> dict[str, dict[str, str]]:
        """Module path in the bundle -> part (lora_A, lora_B, alpha) -> tensor name."""
        parts: dict[str, dict[str, str]] = {}
        for name in self._entries:
            match = TENSOR.fullmatch(name)
            if match is None:
                raise self._wrong(name, "is no lora_A.weight, lora_B.weight or alpha of a module")
            path = self._spec.path(_without_prefix(match["module"]))
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
        rank = self._scales.rank(module) or (shape[0] if shape else 0)
        if not 1 <= rank <= MAX_RANK:
            raise self._wrong(names["lora_A"], f"has rank {rank}, expected 1 to {MAX_RANK}")
        a = self._read(names["lora_A"], (rank, matrix.inputs))
        b = self._read(names["lora_B"], (matrix.outputs, rank))
        alpha = float(self._read(names["alpha"], ()).item()) if "alpha" in names else None
        if order := self._spec.order(_module(names["lora_B"])):
            parts = b.reshape(len(order), -1, rank)
            b = np.concatenate([parts[index] for index in order])
        return a, b * np.float32(self._scales.scale(module, rank, alpha))

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
        name = self._config.get("base_model_name_or_path") or self._metadata.get("base_model")
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
    return _without_prefix(match["module"])


def _without_prefix(module: str) -> str:
    for prefix in PREFIXES:
        module = module.removeprefix(prefix)
    return module
