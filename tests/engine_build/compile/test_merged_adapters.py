"""Adapters are in the decoders' weights before tensorrt-rtx builds them: its engines take no other weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.adapters import Arrays, deltas, merged, random_factors, write_peft
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from onnx import numpy_helper

from engine_build.compile import builder, targets
from engine_build.compile.builder import with_merged_adapters
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import RebuildDecision, check_rebuilds
from engine_build.compile.worker import Worker
from engine_build.graphs.graph_file import Graph, read_graph
from engine_build.precision import sensitivity
from engine_build.request import load_request
from runtime.base.errors import EngineMismatchError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Target, load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engines

ELSEWHERE = BuildEnvironment({"tensorrt-rtx": "1.7.1.116"}, {}, cannot_run="there is no NVIDIA driver")
DECODERS = ("decoder", "decoder.adapters")
# PEFT's alpha over its rank.
SCALE = 2.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tiny decoder with one adapter in its weights, and a decoder for adapters of each row."""
    path = tiny_deployment(tmp_path, adapters=True, codec=False, text_encoder=False, more=FEW_VARIANTS)
    head = 'target = "cpu"\nadapters = "adapters"\nmerged_adapters = { soft = 0.7 }'
    text = path.read_text().replace('target = "cpu"', head)
    path.write_text(text.replace("queue = 8", "queue = 8\nadapter_rank = 8"))
    write_peft(tmp_path / "adapters" / "soft", factors(path, 0))
    return path


def factors(path: Path, seed: int) -> Arrays:
    spec = load_bundle(load_deployment(path).bundle).adapters
    assert spec is not None
    return random_factors(spec, 4, seed)


def decisions(path: Path, target: Target = "tensorrt-rtx") -> dict[str, RebuildDecision]:
    return {item.spec.name: item for item in check_rebuilds(load_request(path), target, environment=ELSEWHERE)}


def weights(model: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor, str(folder)) for tensor in model.graph.initializer}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("has_data_files", [False, True])
def test_the_graph_has_the_adapters_in_its_weights(path: Path, tmp_path: Path, name: str, has_data_files: bool) -> None:
    deployment = load_deployment(path)
    expected = weights(merged(deployment.bundle, [(0.7, deltas(factors(path, 0), SCALE))]), tmp_path)
    file = deployment.bundle / "decoder.onnx"
    base = weights(onnx.load(file), tmp_path)
    if has_data_files:
        onnx.save(onnx.load(file), file, save_as_external_data=True, location="decoder.weights", size_threshold=64)
    decision = decisions(path)[name]
    with with_merged_adapters(decision, deployment, tmp_path) as found:
        source = found.spec.graph.source
        assert isinstance(source, Path)
        assert found.spec.graph.has_data_files == has_data_files
        assert found.wanted == decision.wanted
        values = weights(onnx.load(source), tmp_path)
    assert not source.exists()
    for tensor, array in expected.items():
        np.testing.assert_allclose(values[tensor], array, rtol=1e-5, atol=1e-6)
    assert any(np.abs(expected[tensor] - base[tensor]).max() > 0.01 for tensor in base)


def test_8_bits_are_decided_on_the_decoder_that_has_the_adapters(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the decoder that takes more of them: both have the same weights."""
    path.write_text(path.read_text() + 'precision = "int8"\n')
    decided = list[str]()

    def note(target: str, precision: str, bundle: object, graph: Graph, threads: int) -> None:
        decided.append(graph.sha256)

    monkeypatch.setattr(sensitivity, "quantization_for", note)
    request = load_request(path)
    with Worker() as worker:
        current = builder.Build(request, tmp_path, ELSEWHERE, worker)
        for name in DECODERS:
            with with_merged_adapters(decisions(path)[name], request.deployment, tmp_path) as found:
                current.quantization(found)
    base = read_graph(request.deployment.bundle / "decoder.onnx")
    assert len(decided) == 1
    assert decided[0] != base.sha256


def test_only_the_decoders_depend_on_adapters_and_only_for_this_target(path: Path) -> None:
    built = {name: item.wanted.build.get("merged_adapters") for name, item in decisions(path).items()}
    assert {name for name, merged in built.items() if merged} == set(DECODERS)
    assert built["decoder"]["soft"]["strength"] == 0.7
    assert not [item for item in decisions(path, "cpu").values() if "merged_adapters" in item.wanted.build]


def test_a_decoder_with_other_adapters_is_stale_and_is_not_opened(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(targets.COMPILERS, "tensorrt-rtx", targets.COMPILERS["cpu"])
    builder.build(load_request(path), target="tensorrt-rtx", environment=ELSEWHERE)
    assert {item.action for item in decisions(path).values()} == {"reuse"}
    deployment = load_deployment(path).model_copy(update={"target": "tensorrt-rtx"})
    with pytest.raises(EngineMismatchError, match=r"weights \(soft 0\.7\) than are asked for \(none\)") as caught:
        open_engines(deployment, HostDevice(), merged={})
    assert "merged_adapters" in caught.value.fix
    with pytest.raises(EngineMismatchError, match="needs a cuda device"):
        open_engines(deployment, HostDevice())
    write_peft(tmp_path / "adapters" / "soft", factors(path, 1))
    assert {name for name, item in decisions(path).items() if item.action == "build"} == set(DECODERS)
    with pytest.raises(EngineMismatchError, match="built with other adapters"):
        open_engines(deployment, HostDevice())
