"""safetensors files: shards, variants and damage; what is read equals what safetensors wrote."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from engine_build.export.stored_tensors import fill, stored_tensors, weight_files, without_weights  # noqa: E402

NAME = "diffusion_pytorch_model"


def linear(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3, bias=False))


def shards(folder: Path, variant: str = "", dtype: Any = None) -> Any:
    """Two files and their index, named as diffusers names them."""
    tensors = {name: tensor.to(dtype or torch.float32) for name, tensor in linear().state_dict().items()}
    stem = f"{NAME}.{variant}" if variant else NAME
    files = {name: f"{stem}-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in files if files[name] == file}, folder / file)
    index = f"{NAME}.safetensors.index.{variant}.json" if variant else f"{NAME}.safetensors.index.json"
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return tensors


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("variant", ["", "fp16"])
def test_shards_become_a_module_in_float32(tmp_path: Path, variant: str, dtype: str) -> None:
    tensors = shards(tmp_path, variant, getattr(torch, dtype))
    with without_weights():
        module = linear(1)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    fill(module, stored_tensors(tmp_path))
    assert linear(1)[0].weight.device.type == "cpu"
    for name, value in module.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, tensors[name].float())


def test_the_full_precision_is_read_where_there_are_variants(tmp_path: Path) -> None:
    for name in (f"{NAME}.fp16", f"{NAME}.bf16", NAME):
        save_file({"a": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    assert [file.name for file in weight_files(tmp_path)] == [f"{NAME}.safetensors"]
    (tmp_path / f"{NAME}.safetensors").unlink()
    assert [file.name for file in weight_files(tmp_path)] == [f"{NAME}.bf16.safetensors"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / f"{NAME}-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"-00002-of-00002\.safetensors is missing; .*index\.json names it"):
        stored_tensors(tmp_path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no safetensors file"):
        stored_tensors(tmp_path)


def header(text: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda whole: whole[:-1], "is cut off: '0.weight' ends behind"),
        (lambda whole: whole[:40], "its header is cut off"),
        (lambda whole: b"", "its header is cut off"),
        (lambda whole: b"\xff" * 60, "its header is cut off"),
        (header(b"{]"), "its JSON cannot be read"),
        (header(b"[1]"), "its JSON cannot be read"),
        (header(b"[" * 100_000), "its JSON cannot be read"),
        (header(b'{"a": {"dtype": "F32"}}'), "does not describe 'a'"),
        (header(b'{"a": {"dtype": "I8", "shape": [], "data_offsets": [0, 0]}}'), "'a' as I8, expected one of F32"),
        (header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 0]}}'), r"'a' of shape \[2\] in 0 bytes"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes], says: str) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"0.weight": torch.zeros(3, 2)}, file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=rf"model\.safetensors.*{says}"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda tensors: tensors.pop("1.weight"),
            r"1 tensors that the .* are missing in .*model\.safetensors: '1\.weight'",
        ),
        (lambda tensors: tensors.update({"2.weight": torch.zeros(1)}), r"has a tensor '2\.weight', the configuration"),
        (lambda tensors: tensors.update({"0.bias": torch.zeros(2)}), r"'0\.bias' of shape \[2\], .* describes \[4\]"),
    ],
)
def test_tensors_that_do_not_fit_the_module_are_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    tensors = linear().state_dict()
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with without_weights():
        module = linear()
    with pytest.raises(ConfigError, match=says):
        fill(module, stored_tensors(tmp_path))
