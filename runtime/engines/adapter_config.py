"""What the configuration of a LoRA adapter says: each key is read, has no effect on what was trained, or is refused.

PEFT's adapter_config.json, the same in a file's metadata as diffusers writes it, and what trainers write there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import sqrt
from pathlib import Path
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from runtime.base.errors import AdapterError, FileError, RequestError
from runtime.base.files import read_file
from runtime.base.untrusted import MAX_JSON_MEMBERS, parse_json_object, quoted

CONFIG_NAME = "adapter_config.json"
# Where diffusers keeps the configuration in a file's own metadata.
DIFFUSERS_METADATA = "lora_adapter_metadata"
# Where trainers that use torch's parametrizations do, among their own settings, and their names for PEFT's.
TRAINER_METADATA = "lora_config"
TRAINER_NAMES = {"rank": "r", "alpha": "lora_alpha"}
PREFIXES = ("base_model.model.", "transformer.")
MAX_CONFIG_BYTES = 1 << 20
# Of r and alpha.
MAX_NUMBER = 1_000_000
# PEFT's value where lora_alpha is missing.
DEFAULT_ALPHA = 8

# Keys of PEFT's LoraConfig, of all releases up to 0.21.
READ = (
    *("peft_type", "adapter_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "init_lora_weights"),
    *("rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "layers_to_transform"),
)
# They say where the factors come from and how they were trained; and fan_in_fan_out how another program stores weights.
HARMLESS = (
    *("task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "runtime_config", "layers_pattern"),
    *("lora_dropout", "fan_in_fan_out", "merge_weights", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("lora_dtype", "lorap_lr_ratio", "lorap_emb_lr"),  # ms-swift's
)
_CONVERT = (
    "write it as a plain LoRA, of the model that has it loaded: peft.save_as_lora(FOLDER, model, rank=RANK), or train "
    "another one without it"
)
_MERGE = "train it without it; or export the merged model as a bundle: model.merge_and_unload() of PEFT"
_RETRAIN = "train it without it"
# With them the factors' product is not all that the adapter changes, and what to do.
REFUSED = {
    "use_dora": _MERGE,
    "modules_to_save": _MERGE,
    "bias": _MERGE,
    "kasa_config": _MERGE,
    "target_parameters": _MERGE,
    "velora_config": _CONVERT,
    "monteclora_config": _CONVERT,
    "use_bdlora": _MERGE,
    "lora_bias": _RETRAIN,
    "use_qalora": _MERGE,
    "trainable_token_indices": _RETRAIN,
    "alora_invocation_tokens": _RETRAIN,
    "layer_replication": _RETRAIN,
    "arrow_config": _RETRAIN,
    "enable_lora": _RETRAIN,
    "megatron_config": _RETRAIN,
}
UNKNOWN_FIX = f"remove it, if the adapter is a plain LoRA; else {_CONVERT}"
# Of init_lora_weights, where they leave the model's own weights as they are: training begins at W + B A.
PLAIN_BEGINNINGS = ("gaussian", "orthogonal", "eva", "mica")
INIT_FIX = (
    "write it as a plain LoRA: model.save_pretrained(FOLDER, path_initial_model_for_weight_conversion=INITIAL), with "
    " INITIAL as it was saved before the first step of training"
)
TYPE_FIX = (
    "write it as a plain LoRA, of the model that has it loaded, where PEFT can: peft.save_as_lora(FOLDER, model, "
    "rank=RANK); or train a LoRA"
)
TARGET_ALL: tuple[Any, ...] = (None, "", [], "all-linear")
NOT_SET: tuple[Any, ...] = (None, False, "", "none", [], {})


class AdapterConfig:
    """A checked configuration: rank and scale by module. where: in errors, the file that says it.

    Raises AdapterError: another kind of adapter than a plain LoRA.
    """

    def __init__(self, where: str, values: Mapping[str, Any], *, has_others: bool = False) -> None:
        """has_others: keys of another program may be among them, which say nothing of the factors."""
        self._where, self._values = where, values
        self._lists = {key: frozenset(map(str, value)) for key, value in values.items() if isinstance(value, list)}
        own_kind, kind = values.get("adapter_type", "lora"), values.get("peft_type", "LORA")
        if own_kind != "lora":
            raise self._wrong(
                f"it is of type {quoted(own_kind)}, expected a plain LoRA", "train it with --adapter_type lora"
            )
        if kind != "LORA":
            raise self._wrong(f"peft_type is {quoted(kind)}, expected a LoRA", TYPE_FIX)
        for key, value in values.items():
            self._check_key(key, value, has_others)
        self._check_beginning(values.get("init_lora_weights", True))

    @property
    def base_model(self) -> Any:
        """The name of the model that it was trained for."""
        return self._values.get("base_model_name_or_path")

    def rank(self, module: str) -> int | None:
        """The configured r of a module."""
        found = self._number(module, "rank_pattern", "r")
        return None if found is None else int(found)

    def scale(self, module: str, rank: int, alpha: float | None) -> float:
        """What the product of a module's factors is multiplied by; 1 where nothing says it."""
        configured = self._number(module, "alpha_pattern", "lora_alpha")
        if configured is None and "peft_type" in self._values:
            configured = DEFAULT_ALPHA
        chosen = configured if configured is not None else alpha
        if chosen is None:
            return 1.0
        return float(chosen) / (sqrt(rank) if self._values.get("use_rslora") else rank)

    def check_module(self, module: str) -> None:
        """Raises AdapterError for the factors of a module, as the file names it, that PEFT would not apply."""
        names = {module.removeprefix(prefix) for prefix in ("", *PREFIXES)} | {without_prefix(module)}
        is_target = self._values.get("target_modules") in TARGET_ALL or self._has("target_modules", names)
        is_applied = {
            "exclude_modules": not self._has("exclude_modules", names),
            "target_modules": is_target,
            "layers_to_transform": self._is_of_a_layer(names),
        }
        for key in (key for key, is_true in is_applied.items() if not is_true):
            what = f"{key} is {quoted(self._values.get(key))}, which leaves out {quoted(module)}"
            raise self._wrong(f"{what}, of which the file has factors", f"correct {key}, or remove the factors")

    def _check_key(self, key: str, value: Any, has_others: bool) -> None:
        if key in READ or key in HARMLESS or value in NOT_SET:
            return
        if key in REFUSED:
            raise self._wrong(f"{key} is {quoted(value, 40)}, expected a plain LoRA", REFUSED[key])
        if not has_others:
            raise self._wrong(f"{quoted(key)} is {quoted(value, 40)}, and this key of PEFT is not known", UNKNOWN_FIX)

    def _check_beginning(self, value: Any) -> None:
        """Whether the factors began beside the model's own weights: else they only fit weights that are not these."""
        if not isinstance(value, bool | None) and str(value).lower() not in PLAIN_BEGINNINGS:
            what = f"init_lora_weights is {quoted(value)}, with which training begins at other weights than the model's"
            raise self._wrong(what, INIT_FIX)

    def _has(self, key: str, modules: Collection[str]) -> bool:
        """Whether a list has the end of a module's path, or a regular expression is all of it."""
        if key in self._lists:
            ends = (module.split(".", number)[-1] for module in modules for number in range(module.count(".") + 1))
            return not self._lists[key].isdisjoint(ends)
        value = self._values.get(key)
        try:
            return bool(value) and any(_expression(f"^({value})$").isinstance_python(module) for module in modules)
        except SchemaError:  # with look-around, which no linear time is known for: the file is as PEFT has written it
            return key == "target_modules"

    def _is_of_a_layer(self, modules: Collection[str]) -> bool:
        """Of layers_to_transform, which says nothing of modules that are named with their whole path."""
        layers = self._values.get("layers_to_transform")
        if layers in (None, []) or not self._lists.get("target_modules", frozenset()).isdisjoint(modules):
            return True
        index = re.search(r"\.(\d{1,9})\.", f".{min(modules, key=len)}")
        return index is not None and index[1] in self._lists.get("layers_to_transform", {str(layers)})

    def _number(self, module: str, patterns: str, name: str) -> Any:
        """As PEFT does: a pattern is a regular expression for the end of a module's path."""
        found, table = self._values.get(name), self._values.get(patterns) or {}
        if not isinstance(table, dict):
            raise self._wrong(f"{patterns} is {quoted(table)}, expected a JSON object")
        for pattern, value in table.items():
            try:
                is_own = _expression(rf"^(.*\.)?({pattern})$").isinstance_python(module)
            except SchemaError as error:
                raise self._wrong(f"{patterns} {quoted(pattern)}: {str(error).splitlines()[-1]}") from None
            if is_own:
                found = value
                break
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if found is not None and not (is_number and 0 < found <= MAX_NUMBER):
            raise self._wrong(f"{name} of {module} is {quoted(found)}, expected a number above 0, at most {MAX_NUMBER}")
        return found

    def _wrong(self, what: str, fix: str = "") -> AdapterError:
        return AdapterError(f"{self._where}: {what}", fix=fix)


def config_of_folder(folder: Path) -> AdapterConfig | None:
    """adapter_config.json; None where there is none. Raises AdapterError that names it."""
    file = folder / CONFIG_NAME
    if not os.path.lexists(file):
        return None
    try:
        values = parse_json_object(read_file(file, MAX_CONFIG_BYTES))
    except FileError as error:
        raise AdapterError(error.what) from None
    except RequestError as error:
        raise AdapterError(
            f"{file}: {error.what}", fix="copy it again; json.tool of Python shows where it ends"
        ) from None
    return AdapterConfig(str(file), values)


def config_of_metadata(path: Path, metadata: Mapping[str, Any]) -> AdapterConfig:
    """The configuration in a safetensors file's metadata, empty where there is none. Raises AdapterError."""
    if isinstance(text := metadata.get(DIFFUSERS_METADATA), str):
        values, has_others = _without_parts(_parsed(path, DIFFUSERS_METADATA, text)), False
    elif isinstance(text := metadata.get(TRAINER_METADATA), str):
        found = _parsed(path, TRAINER_METADATA, text)
        values, has_others = {TRAINER_NAMES.get(name, name): value for name, value in found.items()}, True
    else:
        values, has_others = {}, False
    return AdapterConfig(str(path), values, has_others=has_others)


def _parsed(path: Path, key: str, text: str) -> dict[str, Any]:
    try:
        return parse_json_object(text)
    except RequestError as error:
        raise AdapterError(f"{path}: its metadata {key}: {error.what}") from None


def _without_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the part `transformer`, from those of all parts that a pipeline's file is of."""
    return {
        name.removeprefix("transformer."): value
        for name, value in values.items()
        if "." not in name.removeprefix("transformer.")
    }


@lru_cache(MAX_JSON_MEMBERS)
def _expression(pattern: str) -> SchemaValidator:
    """Takes texts that fit, in linear time: the pattern comes with the file. Raises SchemaError."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern))


def without_prefix(module: str) -> str:
    """A module's path in a file, without what PEFT and diffusers put in front of it."""
    for prefix in PREFIXES:
        module = module.removeprefix(prefix)
    return module
