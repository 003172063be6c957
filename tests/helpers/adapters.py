"""LoRA adapters with random weights as files, and decoders with merged weights: what the tick is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file

from engine_build.compile.builder import build_deployment
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.config.deployment import Deployment, load_deployment
from runtime.engines.adapter_files import read_adapter

Arrays = dict[str, NDArray[Any]]


def random_factors(spec: AdapterSpec, rank: int, seed: int, modules: tuple[str, ...] = ()) -> Arrays:
    """`MODULE.lora_A.weight` `[r, in]` and `MODULE.lora_B.weight` `[out, r]` float32, of all modules or of these."""
    random, factors = np.random.default_rng(seed), Arrays()
    for path in modules or tuple(spec.matrices):
        matrix = spec.matrices[path]
        factors[f"{path}.lora_A.weight"] = random.standard_normal((rank, matrix.inputs)).astype(np.float32)
        factors[f"{path}.lora_B.weight"] = random.standard_normal((matrix.outputs, rank)).astype(np.float32) * 0.2
    return factors


def write_peft(folder: Path, factors: Arrays, metadata: dict[str, str] | None = None, **config: Any) -> Path:
    """An adapter as PEFT saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"base_model.model.{name}": np.ascontiguousarray(values) for name, values in factors.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata)
    table = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "tiny", **config}
    (folder / "adapter_config.json").write_text(json.dumps(table), encoding="utf-8")
    return folder


def deltas(factors: Arrays, scale: float) -> Arrays:
    """Module -> what its weight `[in, out]` changes by at strength 1."""
    modules = {name.partition(".lora_")[0] for name in factors}
    return {
        module: scale * (factors[f"{module}.lora_B.weight"] @ factors[f"{module}.lora_A.weight"]).T
        for module in modules
    }


def merged(bundle: Path, changes: Iterable[tuple[float, Arrays]]) -> onnx.ModelProto:
    """A bundle's decoder with strength * change added to its weights."""
    spec, model = load_bundle(bundle).adapters, onnx.load(bundle / "decoder.onnx")
    assert spec is not None
    for tensor in model.graph.initializer:
        for module, matrix in spec.matrices.items():
            if matrix.weight == tensor.name:
                weight = numpy_helper.to_array(tensor).copy()
                for strength, change in changes:
                    weight += (strength * change.get(module, np.zeros_like(weight))).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
    return model


def check_deltas(folder: Path) -> None:
    """Compare adapters that PEFT and diffusers wrote into a folder with deltas.npz, what PEFT changes weights by."""
    expected = np.load(folder / "deltas.npz")
    sizes = {name: expected[name].shape for name in expected.files}
    matrices = {
        name: AdapterMatrix(weight=name, inputs=inputs, outputs=outputs) for name, (outputs, inputs) in sizes.items()
    }
    for file in ("peft", "diffusers"):
        spec = AdapterSpec(matrices=matrices)
        adapter = read_adapter(folder / file, spec)
        for name, (inputs, outputs) in spec.places.items():
            np.testing.assert_allclose(adapter.b[:, outputs].T @ adapter.a[:, inputs], expected[name], atol=1e-6)


def adapter_deployment(folder: Path) -> Deployment:
    """A built tiny model with the adapters "hard" and "soft" of rank 4; a tick takes both."""
    path = tiny_deployment(folder, adapters=True, more=FEW_VARIANTS)
    text = path.read_text().replace('target = "cpu"', 'target = "cpu"\nadapters = "adapters"')
    path.write_text(text.replace("queue = 8", "queue = 8\nadapter_rank = 8"))
    found = load_deployment(path)
    add_adapter(found, "hard", seed=2)
    add_adapter(found, "soft", {"trigger_words": "soft, felt"})
    build_deployment(found)
    return found


def add_adapter(
    deployment: Deployment, name: str, metadata: dict[str, str] | None = None, seed: int = 1, rank: int = 4
) -> Path:
    """Write one of rank 4 into the folder of its deployment; its file says `rank`."""
    spec = load_bundle(deployment.bundle).adapters
    assert spec is not None
    return write_peft(deployment.path.parent / "adapters" / name, random_factors(spec, 4, seed), metadata, r=rank)
