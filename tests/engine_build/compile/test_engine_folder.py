"""The folder of engines: locked, complete engines only, nothing left of failures."""

from __future__ import annotations

import threading
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.adapters import Arrays, deltas, merged, random_factors, write_peft
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from onnx import numpy_helper
from simulator.fixture import simulated

from engine_build.compile import builder, engine_folder, targets
from engine_build.compile.builder import with_merged_adapters
from engine_build.compile.engine_folder import (
    cache_path,
    locked,
    partial_folder,
    publish_engine,
    read_cache,
    remove_unwanted,
    updating,
)
from engine_build.compile.environment import (
    BuildEnvironment,
    build_environment,
    driver_release,
    need_int8_products,
    other_card,
    probe_environment,
)
from engine_build.compile.rebuild_check import RebuildDecision, check_rebuilds
from engine_build.compile.worker import Worker
from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import Graph, read_graph
from engine_build.precision import sensitivity
from engine_build.request import load_request
from runtime.base.errors import BuildError, EngineMismatchError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Target, load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engines


def test_a_partial_folder_is_always_removed(tmp_path: Path) -> None:
    with partial_folder(tmp_path, "decoder") as partial:
        assert partial.parent == tmp_path
        (partial / "decoder.onnx").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt), partial_folder(tmp_path, "decoder"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_second_build_is_refused_and_leftovers_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "engines"
    (folder / "decoder.abc.partial").mkdir(parents=True)
    with locked(folder):
        assert list(folder.iterdir()) == []
        with pytest.raises(BuildError, match="another build is running"), locked(folder):
            pass
    with locked(folder):
        pass


def written(partial: Path) -> Any:
    """A complete engine in a partial folder; its manifest's file names."""
    partial.mkdir()
    for name in ("decoder.onnx", "decoder.onnx.data", "decoder.manifest.json"):
        (partial / name).write_text(name)
    return SimpleNamespace(name="decoder", engine_file="decoder.onnx", data_files={"decoder.onnx.data": ""})


def test_an_engine_is_published_with_its_manifest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    publish = engine_folder.publish

    def recorded(source: Path, target: Path) -> None:
        order.append(target.name)
        publish(source, target)

    monkeypatch.setattr(engine_folder, "publish", recorded)
    publish_engine(tmp_path / "partial", tmp_path, written(tmp_path / "partial"))
    assert order == ["decoder.onnx.data", "decoder.onnx", "decoder.manifest.json"]
    assert (tmp_path / "decoder.onnx").read_text() == "decoder.onnx"


def test_unwanted_engines_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    for name in ("step.old.manifest.json", "decoder.manifest.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    wanted: Any = [SimpleNamespace(spec=SimpleNamespace(name="decoder"))]
    assert list(remove_unwanted(tmp_path, wanted)) == ["step.old"]
    assert {file.name for file in tmp_path.iterdir()} == {"decoder.manifest.json", "notes.txt"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return cache_path(tmp_path / "times", "11.4.0.106", "NVIDIA H200", "9.0")


def write(path: Path, data: bytes) -> None:
    with updating(path) as (_, replacement):
        replacement.append(data)


def write_and_fail(path: Path) -> None:
    with updating(path) as (_, replacement):
        replacement.append(b"half")
        raise RuntimeError


def test_the_file_name_has_version_gpu_and_capability(tmp_path: Path) -> None:
    names = {
        cache_path(tmp_path, version, gpu, capability).name
        for version in ("10.16.1.11", "11.4.0.106")
        for gpu, capability in (("NVIDIA H200", "9.0"), ("NVIDIA GeForce RTX 4090", "8.9"))
    }
    assert len(names) == 4
    assert "tensorrt-11.4.0.106-nvidia-geforce-rtx-4090-cc8.9.timing" in names


def test_nothing_is_written_without_a_replacement_or_after_an_error(path: Path) -> None:
    write(path, b"times")
    with updating(path) as (data, _):
        assert data == b"times"
    with pytest.raises(RuntimeError):
        write_and_fail(path)
    assert read_cache(path) == b"times"


def test_concurrent_updates_are_serialized(path: Path) -> None:
    def add(word: bytes) -> None:
        with updating(path) as (data, replacement):
            time.sleep(0.01)
            replacement.append(data + word)

    threads = [threading.Thread(target=add, args=(bytes([65 + number]),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_cache(path)) == list(range(65, 77))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file where a folder should be")
    with pytest.raises(BuildError, match="cannot be read"):
        read_cache(tmp_path / "times" / "cache.timing")


ELSEWHERE = BuildEnvironment({"tensorrt-rtx": "1.7.1.116"}, {}, cannot_run="there is no NVIDIA driver")
DECODERS = ("decoder", "decoder.adapters")
# PEFT's alpha over its rank.
SCALE = 2.0


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """A tiny decoder with one adapter in its weights, and a decoder for adapters of each row."""
    adapted = tiny_deployment(tmp_path, adapters=True, codec=False, text_encoder=False, more=FEW_VARIANTS)
    head = 'target = "cpu"\nadapters = "adapters"\nmerged_adapters = { soft = 0.7 }'
    text = adapted.read_text().replace('target = "cpu"', head)
    adapted.write_text(text.replace("queue = 8", "queue = 8\nadapter_rank = 8"))
    write_peft(tmp_path / "adapters" / "soft", factors(adapted, 0))
    return adapted


def factors(adapted: Path, seed: int) -> Arrays:
    spec = load_bundle(load_deployment(adapted).bundle).adapters
    assert spec is not None
    return random_factors(spec, 4, seed)


def decisions(adapted: Path, target: Target = "tensorrt-rtx") -> dict[str, RebuildDecision]:
    return {item.spec.name: item for item in check_rebuilds(load_request(adapted), target, environment=ELSEWHERE)}


def weights(model: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor, str(folder)) for tensor in model.graph.initializer}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("has_data_files", [False, True])
def test_the_graph_has_the_adapters_in_its_weights(
    adapted: Path, tmp_path: Path, name: str, has_data_files: bool
) -> None:
    deployment = load_deployment(adapted)
    expected = weights(merged(deployment.bundle, [(0.7, deltas(factors(adapted, 0), SCALE))]), tmp_path)
    file = deployment.bundle / "decoder.onnx"
    base = weights(onnx.load(file), tmp_path)
    if has_data_files:
        onnx.save(onnx.load(file), file, save_as_external_data=True, location="decoder.weights", size_threshold=64)
    decision = decisions(adapted)[name]
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
    adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the decoder that takes more of them: both have the same weights."""
    adapted.write_text(adapted.read_text() + 'precision = "int8"\n')
    decided = list[str]()

    def note(target: str, precision: str, bundle: object, graph: Graph, threads: int) -> None:
        decided.append(graph.sha256)

    monkeypatch.setattr(sensitivity, "quantization_for", note)
    request = load_request(adapted)
    with Worker() as worker:
        current = builder.Build(request, tmp_path, ELSEWHERE, worker)
        for name in DECODERS:
            with with_merged_adapters(decisions(adapted)[name], request.deployment, tmp_path) as found:
                current.quantization(found)
    base = read_graph(request.deployment.bundle / "decoder.onnx")
    assert len(decided) == 1
    assert decided[0] != base.sha256


def test_only_the_decoders_depend_on_adapters_and_only_for_this_target(adapted: Path) -> None:
    built = {name: item.wanted.build.get("merged_adapters") for name, item in decisions(adapted).items()}
    assert {name for name, merged in built.items() if merged} == set(DECODERS)
    assert built["decoder"]["soft"]["strength"] == 0.7
    assert not [item for item in decisions(adapted, "cpu").values() if "merged_adapters" in item.wanted.build]


def test_a_decoder_with_other_adapters_is_stale_and_is_not_opened(
    adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(targets.COMPILERS, "tensorrt-rtx", targets.COMPILERS["cpu"])
    builder.build(load_request(adapted), target="tensorrt-rtx", environment=ELSEWHERE)
    assert {item.action for item in decisions(adapted).values()} == {"reuse"}
    deployment = load_deployment(adapted).model_copy(update={"target": "tensorrt-rtx"})
    with pytest.raises(EngineMismatchError, match=r"weights \(soft 0\.7\) than are asked for \(none\)") as caught:
        open_engines(deployment, HostDevice(), merged={})
    assert "merged_adapters" in caught.value.fix
    with pytest.raises(EngineMismatchError, match="needs a cuda device"):
        open_engines(deployment, HostDevice())
    write_peft(tmp_path / "adapters" / "soft", factors(adapted, 1))
    assert {name for name, item in decisions(adapted).items() if item.action == "build"} == set(DECODERS)
    with pytest.raises(EngineMismatchError, match="built with other adapters"):
        open_engines(deployment, HostDevice())


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:09:03 UTC 2025\nGCC version: 12.2.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (dvs-builder)"


@pytest.mark.parametrize(("text", "release"), [(CLOSED, "570.124.06"), (OPEN, "580.82.07"), ("something else", "")])
def test_the_driver_release_is_read(tmp_path: Path, text: str, release: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_release(tmp_path / "version") == release
    assert driver_release(tmp_path / "none") == ""


def test_the_cpu_is_an_architecture_or_one_processor() -> None:
    assert set(build_environment("cpu", BuildConfig()).device) == {"arch"}
    assert set(build_environment("cpu", BuildConfig(optimization="all")).device) == {"arch", "cpu"}


@pytest.mark.parametrize(("flags", "has_them"), [("avx2 avx512_vnni", True), ("fma avx2 avx512f", False), ("", False)])
def test_int8_needs_a_processor_with_8_bit_products(tmp_path: Path, flags: str, has_them: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name : X\nflags : fpu {flags}\n")
    if has_them:
        need_int8_products(tmp_path / "cpuinfo")
    else:
        with pytest.raises(BuildError, match="avx512_vnni") as raised:
            need_int8_products(tmp_path / "cpuinfo")
        assert 'precision = "fp32"' in raised.value.fix


@pytest.mark.parametrize(
    ("compatibility", "fields"),
    [
        ("none", {"arch", "gpu", "compute_capability"}),
        ("same_compute_capability", {"arch", "compute_capability"}),
        ("ampere_plus", {"arch"}),
    ],
)
def test_a_plan_is_valid_as_widely_as_it_was_built_for(compatibility: str, fields: set[str]) -> None:
    with simulated(gpu_name="Simulated L4", cc="8.9"):
        environment = build_environment("tensorrt", BuildConfig(hardware_compatibility=compatibility))  # type: ignore[arg-type]
    assert set(environment.device) == fields
    assert (environment.facts["gpu"], environment.facts["compute_capability"]) == ("Simulated L4", "8.9")
    assert environment.built_on == "Simulated L4"
    assert set(environment.tool_versions) == {"tensorrt"}


def test_tensorrt_rtx_needs_no_gpu_and_depends_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"tensorrt-rtx": "1.7.1.116"}[name])
    with simulated(no_driver=True):
        found = build_environment("tensorrt-rtx", BuildConfig())
    assert (found.tool_versions, found.device) == ({"tensorrt-rtx": "1.7.1.116"}, {})
    assert "no NVIDIA driver" in found.cannot_run


@pytest.mark.parametrize(
    ("cc", "says"),
    [("8.9", ""), ("12.0", ""), ("9.0", "built for SM80, SM86, SM89, SM120, SM121, this machine's GPU is SM90")],
)
def test_engines_of_tensorrt_rtx_are_for_rtx_cards(cc: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.7.1.116")
    with simulated(gpu_name="A card", cc=cc):
        found = build_environment("tensorrt-rtx", BuildConfig())
    assert (found.cannot_run, found.device, found.facts["gpu"]) == (says, {}, "A card")


def test_engines_of_one_card_are_for_no_other() -> None:
    assert other_card(("SM89",), "8.6") == "built for SM89, this machine's GPU is SM86"
    assert other_card(("SM89",), "12.0") == "built for SM89, this machine's GPU is SM120"
    assert other_card(("SM89",), "8.9") == other_card(("SM86", "SM89"), "8.9") == other_card((), "13.0") == ""
    assert other_card((), "10.3") != ""


def test_without_tensorrt_rtx_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    missing = probe_environment("tensorrt-rtx", BuildConfig()).missing
    assert missing is not None
    assert missing.fix.startswith("pip install 'tickrt[tensorrt-rtx]'")


def test_fp8_needs_a_gpu_that_has_it() -> None:
    fp8 = BuildConfig(precision="fp8")
    with simulated(gpu_name="Simulated A10", cc="8.6"):
        assert build_environment("tensorrt", BuildConfig(precision="int8")).facts["gpu"] == "Simulated A10"
        with pytest.raises(BuildError, match=r"A10 has compute capability 8.6, products in fp8 need 8.9") as raised:
            build_environment("tensorrt", fp8)
    assert "int8" in raised.value.fix
    for later in ("8.9", "9.0", "12.0"):
        with simulated(gpu_name="A later one", cc=later):
            assert build_environment("tensorrt", fp8).facts["compute_capability"] == later
