"""Every name, signature, enum member and callback of TensorRT and CUDA that we touch, in the real packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from contract import conftest, install
from contract.conftest import VERSIONS
from contract.follow import Follower
from paths import ROOT

ROOMS = ("runtime", "engine_build", "server", "profiling")
Surfaces = Callable[[str], dict[str, Any]]

HONEST = """
import tensorrt as trt

class Log(trt.ILogger):
    def __init__(self) -> None:
        trt.ILogger.__init__(self)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        print(severity, msg)

FLAGS = {"refit": "REFIT", "tf32": "TF32"}

class Work:
    def __init__(self) -> None:
        self._builder = trt.Builder(Log())
        self.network = self._builder.create_network(0)

    def configure(self, names: list[str]) -> trt.IBuilderConfig:
        config = self._builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)
        config.builder_optimization_level = 3
        for name, flag in FLAGS.items():
            if name in names:
                config.set_flag(getattr(trt.BuilderFlag, flag))
        return config

def inputs(work: Work) -> list[str]:
    return [work.network.get_input(index).name for index in range(work.network.num_inputs)]

def build(work: Work) -> object:
    return work._builder.build_serialized_network(work.network, work.configure([]))
"""
DISHONEST = (
    ("trt.Builder(", "trt.Bilder(", "tensorrt has no Bilder"),
    ("create_network(0)", "create_network(flag=0)", "takes no argument 'flag'"),
    ("create_network(0)", "create_network(0, 1)", "takes 1 positional arguments"),
    ("create_network(0)", "create_net(0)", "tensorrt.Builder has no create_net"),
    ("MemoryPoolType.WORKSPACE", "MemoryPoolType.WORK", "tensorrt.MemoryPoolType has no WORK"),
    ("WORKSPACE, 1 << 30", "WORKSPACE", "needs 'pool_size'"),
    ("builder_optimization_level = 3", "optimisation_level = 3", "has no optimisation_level"),
    ("work.network.num_inputs)", "work.network.input_count)", "INetworkDefinition has no input_count"),
    ("create_network(0)", "create_network(0)\n        self.network.num_inputs = 1", "num_inputs cannot be assigned"),
    ('"REFIT"', '"REFITTABLE"', "tensorrt.BuilderFlag has no REFITTABLE"),
    ("trt.BuilderFlag, flag", "trt.BuilderFlag, input()", "cannot be followed"),
    ("def log(", "def logg(", "Log does not override tensorrt.ILogger.log"),
    ("msg: str", "text: str, more: str", "tensorrt.ILogger.log takes"),
    ("work.configure([])", "work.configure([]).done", "tensorrt.IBuilderConfig has no done"),
    ("import tensorrt as trt", "import tensorrt as trt\nfrom tensorrt import Bilder", "tensorrt has no Bilder"),
)


@lru_cache
def sources(package: str) -> dict[str, str]:
    """Our modules that import the package, and those that they hand its objects to: dotted name -> source."""
    files = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    every = {name: file.read_text(encoding="utf-8") for name, file in zip(names, files, strict=True)}
    imports = {name: imported(ast.parse(text)) for name, text in every.items()}
    own = {name for name, found in imports.items() if any(item.partition(".")[0] == package for item in found)}
    below = {item for name in own for item in imports[name] if item in every}
    return {name: text for name, text in every.items() if name in own | below}


def imported(tree: ast.Module) -> set[str]:
    """Modules that a module imports, anywhere in it."""
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_tensorrt_has_all_that_we_touch(version: str, tensorrt_surface: Surfaces) -> None:
    follower = Follower(sources("tensorrt"), tensorrt_surface(version)["names"])
    assert follower.findings == []
    assert follower.lost == []
    assert len(follower.touched) > 60


def test_cuda_has_all_that_we_touch(cuda_surface: dict[str, Any]) -> None:
    follower = Follower(sources("cuda"), cuda_surface["names"])
    assert follower.findings == []
    assert follower.lost == []
    assert len(follower.touched) > 20


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_are_what_they_are_said_to_be(version: str, tensorrt_surface: Surfaces) -> None:
    assert tensorrt_surface(version)["versions"]["tensorrt"].startswith(f"{version}.")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_net_follows_types(version: str, tensorrt_surface: Surfaces) -> None:
    follower = Follower({"ours": HONEST}, tensorrt_surface(version)["names"])
    assert follower.findings == []
    for name in ("INetworkDefinition.num_inputs", "ITensor.name", "IBuilderConfig.set_flag", "BuilderFlag.TF32"):
        assert f"tensorrt.{name}" in follower.touched


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("old", "new", "says"), DISHONEST)
def test_a_made_up_name_is_found(version: str, old: str, new: str, says: str, tensorrt_surface: Surfaces) -> None:
    assert old in HONEST
    follower = Follower({"ours": HONEST.replace(old, new, 1)}, tensorrt_surface(version)["names"])
    assert any(says in finding for finding in follower.findings), follower.findings


def test_what_one_version_took_away_is_found(tensorrt_surface: Surfaces) -> None:
    gone = HONEST.replace("trt.BuilderFlag, flag", 'trt.BuilderFlag, "FP16"')
    assert Follower({"ours": gone}, tensorrt_surface("10.16")["names"]).findings == []
    assert Follower({"ours": gone}, tensorrt_surface("11.4")["names"]).findings == [
        "ours:24: tensorrt.BuilderFlag has no FP16"
    ]


def test_a_gap_in_the_net_is_found(tensorrt_surface: Surfaces) -> None:
    untyped = HONEST + "\ndef configure(config):\n    config.set_memory_pool_limit(0, 1)\n"
    follower = Follower({"ours": untyped}, tensorrt_surface("11.4")["names"])
    assert follower.lost == ["ours:34: config.set_memory_pool_limit"]


def test_every_made_up_name_in_a_copy_of_our_source_is_found(tensorrt_surface: Surfaces) -> None:
    names, ours = tensorrt_surface("11.4")["names"], sources("tensorrt")
    touched = {name.rpartition(".")[2] for name in Follower(ours, names).touched}
    places = {
        name: (module, match)
        for name in sorted(name for name in touched if "_" in name)
        for module, text in ours.items()
        for match in re.finditer(rf"\.{name}\b", text)
    }
    assert places.keys() >= {"execute_async_v3", "set_input_shape", "parse_from_file", "set_flag", "max_aux_streams"}
    for name, (module, match) in places.items():
        wrong = f"{ours[module][: match.end()]}_9{ours[module][match.end() :]}"
        findings = Follower({**ours, module: wrong}, names).findings
        assert any(f"{name}_9" in finding for finding in findings), (name, module)


def test_made_up_cuda_is_found(cuda_surface: dict[str, Any]) -> None:
    text = """from cuda.bindings import runtime
from cuda.core import Device, StreamOptions

def capture(device: Device) -> object:
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    return runtime.cudaStreamBeginCapture(stream.handle, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed)
"""
    assert Follower({"ours": text}, cuda_surface["names"]).findings == []
    for old, new, says in (
        ("nonblocking", "non_blocking", "takes no argument"),
        (".handle", ".pointer", "cuda.core.Stream has no pointer"),
        ("ModeRelaxed", "ModeStrict", "has no cudaStreamCaptureModeStrict"),
        ("Device, ", "Device, Board, ", "cuda.core has no Board"),
        ("cudaStreamBeginCapture(stream.handle, ", "cudaStreamBeginCapture(", "needs 'mode'"),
    ):
        found = Follower({"ours": text.replace(old, new, 1)}, cuda_surface["names"]).findings
        assert any(says in finding for finding in found), (new, found)


def test_a_python_without_wheels_is_said_and_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "RELEASES", {"trt-99": (["no-such-bindings==99"], (3, 0))})
    assert install.main(tmp_path) == 0
    assert "no-such-bindings==99: no wheel for Python 3." in (tmp_path / "trt-99" / install.NO_WHEEL).read_text()
    monkeypatch.setattr(conftest, "INSTALLED", tmp_path)
    with pytest.raises(pytest.skip.Exception, match="no wheel for Python"):
        conftest.installed("trt-99")


def test_a_failed_installation_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "RELEASES", {"trt-99": (["no-such-bindings==99"], (9, 0))})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert install.main(tmp_path) != 0
