"""Our modules fit TensorRT's and CUDA's real Python packages: mypy with stubs of them finds no error.

The other tests make such errors and demand that mypy finds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from contract.conftest import VERSIONS, Surface
from contract.type_check import Probes, TypeCheck

from runtime.engines.tensorrt.errors import DTYPES

pytestmark = pytest.mark.builder

Surfaces = Callable[[str], Surface]

# Attributes of objects whose type the real package does not tell.
UNTYPED = {"runtime/devices/cuda_calls.py: properties.uuid.bytes"}
CORRECT = """
import tensorrt as trt
from cuda.bindings import runtime

class Log(trt.ILogger):
    def __init__(self) -> None:
        trt.ILogger.__init__(self)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        print(severity, msg)

class Work:
    def __init__(self) -> None:
        self._builder = trt.Builder(Log())
        self.network = self._builder.create_network(0)

    def configure(self) -> trt.IBuilderConfig:
        config = self._builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)
        config.builder_optimization_level = 3
        config.set_flag(trt.BuilderFlag.TF32)
        return config

def inputs(work: Work) -> list[str]:
    return [work.network.get_input(index).name for index in range(work.network.num_inputs)]

def build(work: Work) -> object:
    return work._builder.build_serialized_network(work.network, work.configure())

def capture(stream: int) -> int:
    runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed)
    code, count = runtime.cudaGetDeviceCount()
    return count if code.name == "cudaSuccess" else 0
"""
WRONG = (
    ("trt.Builder(", "trt.Bilder(", 'Module has no attribute "Bilder"'),
    ("create_network(0)", "create_network(flag=0)", 'Unexpected keyword argument "flag"'),
    ("create_network(0)", "create_network(0, 1)", 'Too many arguments for "create_network"'),
    ("create_network(0)", 'create_network("0")', 'Argument 1 to "create_network" of "Builder"'),
    ("create_network(0)", "create_net(0)", '"Builder" has no attribute "create_net"'),
    ("MemoryPoolType.WORKSPACE", "MemoryPoolType.WORK", '"type[MemoryPoolType]" has no attribute "WORK"'),
    ("WORKSPACE, 1 << 30", "WORKSPACE", 'Missing positional argument "pool_size"'),
    ("builder_optimization_level = 3", "level = 3", '"IBuilderConfig" has no attribute "level"'),
    ("work.network.num_inputs)", "work.network.inputs)", '"INetworkDefinition" has no attribute "inputs"'),
    ("get_input(index).name", "get_input(index).title", '"ITensor" has no attribute "title"'),
    ("return config", "self.network.num_inputs = 1\n        return config", '"num_inputs" defined in'),
    ("work.configure()", "work.configure().done", '"IBuilderConfig" has no attribute "done"'),
    ("BuilderFlag.TF32", "BuilderFlag.TF64", '"type[BuilderFlag]" has no attribute "TF64"'),
    ("def log(", "def logg(", 'Cannot instantiate abstract class "Log"'),
    ("msg: str", "msg: str, more: str", 'Signature of "log" incompatible'),
    ("severity: trt.ILogger.Severity", "severity: trt.ILogger.Level", '"trt.ILogger.Level" is not defined'),
    ("import tensorrt as trt", "import tensorrt as trt\nfrom tensorrt import Bilder", 'no attribute "Bilder"'),
    ("ModeRelaxed", "ModeStrict", 'has no attribute "cudaStreamCaptureModeStrict"'),
    ("BeginCapture(stream, ", "BeginCapture(", 'Missing positional argument "mode"'),
    ("cudaGetDeviceCount", "cudaGetDevices", 'Module has no attribute "cudaGetDevices"'),
    ("code.name", "code.title", '"cudaError_t" has no attribute "title"'),
)
NAMED_BY_STRING = re.compile(r"getattr\((trt|cudart|nvtx)\b")
REMOVED = CORRECT.replace("BuilderFlag.TF32", "BuilderFlag.FP16")


@pytest.mark.parametrize("version", VERSIONS)
def test_our_modules_fit_the_real_packages(version: str, type_check: TypeCheck) -> None:
    assert type_check.errors(version, type_check.sources) == []


def test_no_attribute_is_named_by_a_string(type_check: TypeCheck) -> None:
    assert [path for path, text in type_check.sources.items() if NAMED_BY_STRING.search(text)] == []
    assert NAMED_BY_STRING.search("config.set_flag(getattr(trt.BuilderFlag, flag))")


def test_every_attribute_that_does_not_exist_is_found(
    type_check: TypeCheck,
    tensorrt_surface: Surfaces,
    rtx_surface: Surface,
    cuda_surface: Surface,
    nvtx_surface: Surface,
) -> None:
    surfaces = (tensorrt_surface("11.4"), rtx_surface, cuda_surface, nvtx_surface)
    names = {name for surface in surfaces for name in all_names(surface)}
    builtin = {name for kind in (str, bytes, int, float, list, dict, set, tuple) for name in dir(kind)}
    probes = Probes(names - builtin | {"name", "bytes"})
    assert unfound(type_check, probes, type_check.sources) == UNTYPED
    assert len(probes.made_up) > 150
    assert {"is_stream_capturable", "set_runtime_cache", "deserialize", "create_runtime_config"} <= {
        what.rpartition(".")[2] for what in probes.made_up.values()
    }
    assert {"execute_async_v3", "set_input_shape", "parse_from_file", "set_flag", "max_aux_streams"} <= {
        what.rpartition(".")[2] for what in probes.made_up.values()
    }


def test_an_attribute_of_an_untyped_object_is_not_found(type_check: TypeCheck) -> None:
    untyped = f"{CORRECT}\ndef limit(config: object) -> None:\n    config.set_memory_pool_limit(0, 1)\n"
    assert unfound(type_check, Probes({"set_memory_pool_limit"}), {"untyped.py": untyped}) == set()
    untyped = untyped.replace("config: object", "config: typing.Any").replace(
        "import runtime", "import runtime\nimport typing"
    )
    assert unfound(type_check, Probes({"set_memory_pool_limit"}), {"untyped.py": untyped}) == {
        "untyped.py: config.set_memory_pool_limit"
    }


def unfound(type_check: TypeCheck, probes: Probes, sources: Mapping[str, str]) -> set[str]:
    """The attributes beside which mypy does not find one that does not exist."""
    output = "\n".join(type_check.errors("11.4", {path: probes.insert(text, path) for path, text in sources.items()}))
    return {what for name, what in probes.made_up.items() if not re.search(rf"\b{name}\b", output)}


def all_names(surface: Surface) -> set[str]:
    """Names of a surface's modules, classes and their members, without what they are in."""
    found, entries = set(), dict(surface["names"])
    while entries:
        path, entry = entries.popitem()
        found.add(path.rpartition(".")[2])
        entries |= entry.get("members", {})
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_wrong_use_is_found(version: str, type_check: TypeCheck) -> None:
    assert all(old in CORRECT for old, _, _ in WRONG)
    files = {f"wrong_{index}.py": CORRECT.replace(old, new, 1) for index, (old, new, _) in enumerate(WRONG)}
    errors = type_check.errors(version, {"correct.py": CORRECT, **files})
    assert [error for error in errors if error.startswith("correct.py")] == []
    for index, (_, new, expected) in enumerate(WRONG):
        found = [error for error in errors if error.startswith(f"wrong_{index}.py")]
        assert any(expected in error for error in found), (new, found)


def test_a_removed_enum_member_is_found(type_check: TypeCheck) -> None:
    assert type_check.errors("10.16", {"removed.py": REMOVED}) == []
    (error,) = type_check.errors("11.4", {"removed.py": REMOVED})
    assert '"type[BuilderFlag]" has no attribute "FP16"' in error


@pytest.mark.parametrize("version", VERSIONS)
def test_installed_versions(version: str, tensorrt_surface: Surfaces) -> None:
    assert tensorrt_surface(version)["versions"]["tensorrt"].startswith(f"{version.removeprefix('rtx-')}.")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_data_type_has_a_name(version: str, tensorrt_surface: Callable[[str], dict[str, Any]]) -> None:
    members = tensorrt_surface(version)["names"]["tensorrt.DataType"]["members"]
    assert {name for name, member in members.items() if member.get("is_member")} == set(DTYPES)
