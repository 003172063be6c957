"""The real packages' surfaces and stubs, read in child processes: no test imports TensorRT or CUDA."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from contract.install import NO_WHEEL
from contract.stubs import Surface, write_stubs
from contract.type_check import TypeCheck

HERE = Path(__file__).parent
INSTALLED = Path(sys.prefix) / "contract"
VERSIONS = ("10.16", "11.4", "rtx-1.7")
# Libraries that the bindings load; of TensorRT each in both versions, of TensorRT-RTX in version 1.
LIBRARIES = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser")
SONAMES = (
    *(f"{name}.so.{version}" for name in LIBRARIES for version in (10, 11)),
    "libtensorrt_rtx.so.1",
    "libtensorrt_onnxparser_rtx.so.1",
)
CUDA_PACKAGES = ("cuda.bindings.runtime", "cuda.bindings.utils")


def read_surface(*packages: str, path: Path, libraries: Path | None = None, **more: str) -> Surface:
    """The surface of packages ("tensorrt=tensorrt_bindings") in the folder `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path), "LD_LIBRARY_PATH": str(libraries or ""), **more}
    command = [sys.executable, "-P", str(HERE / "surface.py"), *packages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    surface: Surface = json.loads(done.stdout)
    return surface


def installed(name: str) -> Path:
    """The folder of one installation; skips the test where there is none."""
    folder = INSTALLED / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}: `make test-builder` installs the real bindings")
    if (folder / NO_WHEEL).exists():
        pytest.skip((folder / NO_WHEEL).read_text(encoding="utf-8").strip())
    return folder


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries that the bindings of all versions load, each with nine symbols only."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang) for the stub of TensorRT's library")
    folder = tmp_path_factory.mktemp("stub")
    for soname in SONAMES:
        options = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(folder / soname)]
        subprocess.run([compiler, *options, str(HERE / "nine_symbols.c")], check=True, timeout=60)
    return folder


@pytest.fixture(scope="session")
def tensorrt_surface(stub_library: Path) -> Callable[[str], Surface]:
    """`tensorrt_surface("11.4")`: the surface of that version of TensorRT, "rtx-1.7": of TensorRT-RTX."""
    read: dict[str, Surface] = {}

    def get(version: str) -> Surface:
        is_rtx = version.startswith("rtx")
        folder, package = installed(version if is_rtx else f"trt-{version}"), "tensorrt_rtx" if is_rtx else "tensorrt"
        if version not in read:
            read[version] = read_surface(f"tensorrt={package}_bindings", path=folder, libraries=stub_library)
        return read[version]

    return get


@pytest.fixture(scope="session")
def rtx_surface(stub_library: Path) -> Surface:
    """The surface of TensorRT-RTX under its own name: beside every TensorRT, for what only it has."""
    return read_surface("tensorrt_rtx=tensorrt_rtx_bindings", path=installed("rtx-1.7"), libraries=stub_library)


@pytest.fixture(scope="session")
def cuda_surface() -> Surface:
    """The surface of cuda.bindings."""
    return read_surface(*(f"{name}={name}" for name in CUDA_PACKAGES), path=installed("cuda"))


@pytest.fixture(scope="session")
def nvtx_surface() -> Surface:
    """The surface of nvtx."""
    return read_surface("nvtx=nvtx", path=installed("nvtx"))


@pytest.fixture(scope="session")
def type_check(
    tmp_path_factory: pytest.TempPathFactory,
    tensorrt_surface: Callable[[str], Surface],
    rtx_surface: Surface,
    cuda_surface: Surface,
    nvtx_surface: Surface,
) -> TypeCheck:
    """mypy with stubs of every version of TensorRT, and of CUDA and NVTX."""
    folder = tmp_path_factory.mktemp("stubs")

    def stubs(version: str) -> Path:
        if not (folder / version).exists():
            for surface in (tensorrt_surface(version), rtx_surface, cuda_surface, nvtx_surface):
                write_stubs(surface, folder / version)
        return folder / version

    return TypeCheck(tmp_path_factory.mktemp("checked"), stubs)
