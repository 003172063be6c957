"""CUDA runtime calls: what the GPU is, statuses as errors, and the arguments that the real bindings take."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from simulator.fixture import Machine, simulated

from runtime.base.errors import EngineDeadError, EngineError, OutOfMemoryError
from runtime.devices.machine import open_device

# Every call on the real bindings, with arguments as the device passes them: without a driver each must fail, and none
# because of its arguments.
REAL_CALLS = """
from runtime.devices import cuda_calls
from runtime.base.errors import EngineError
calls = {
    "open_first": (), "free_bytes": (), "take_device": (8,), "take_pinned": (8,), "free_device": (8,),
    "stream_priorities": (), "new_stream": (0,), "free_pinned": (8,), "zero": (8, 8, 8),
    "copy_to_device": (8, 8, 8, 8), "copy_to_host": (8, 8, 8, 8),
    "close_stream": (8,), "new_event": (), "close_event": (8,), "record": (8, 8), "make_wait": (8, 8), "is_done": (8,),
    "wait": (8,), "elapsed_ms": (8, 8), "capture": (8, print), "launch_graph": (8, 8), "close_graph": (8,), "probe": (),
}
for name, arguments in calls.items():
    try:
        getattr(cuda_calls, name)(*arguments)
        print(name, "succeeded")
    except EngineError as error:
        print(name, "failed:", error.what)
"""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


def test_a_gpu_is_described(machine: Machine) -> None:
    from runtime.devices.cuda_calls import probe

    gpu = probe()
    assert (gpu.name, gpu.compute_capability, gpu.sm_count) == ("Simulated GPU", "9.0", 132)
    assert (gpu.memory_bytes, gpu.driver_version, gpu.cuda_version) == (2 << 30, "13.0", "13.5")
    assert len(gpu.uuid) == 32
    assert machine.alive() == {}, "a probe allocates nothing"


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"no_driver": True}, "no NVIDIA driver", "nvidia-smi"),
        (
            {"driver": 12020},
            "supports CUDA 12.2 at most, and the installed cuda-python needs 13.5",
            "a driver that supports CUDA 13",
        ),
        ({"devices": 0}, "no GPU is visible", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_missing_driver_or_gpu_is_reported_with_a_fix(options: dict[str, Any], what: str, fix: str) -> None:
    with simulated(**options):
        from runtime.devices.cuda_calls import probe

        for call in (probe, lambda: open_device("cuda"), lambda: open_device("tensorrt")):
            with pytest.raises(EngineError, match=what) as caught:
                call()
            assert fix in caught.value.fix
            assert "--target cpu" in caught.value.fix


def test_without_cuda_python_the_module_imports_and_probe_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(fresh=True):
        for name in ("cuda", "cuda.bindings", "cuda.bindings.runtime"):
            monkeypatch.setitem(sys.modules, name, None)
        from runtime.devices.cuda_calls import probe

        with pytest.raises(EngineError, match="cuda-python is not installed") as caught:
            probe()
        assert "pip install 'tickrt[tensorrt]'" in caught.value.fix
        monkeypatch.undo()


def test_another_error_of_the_probe(machine: Machine) -> None:
    machine.sticky = 46
    from runtime.devices.cuda_calls import probe

    with pytest.raises(EngineError, match="counting the GPUs: cudaErrorDevicesUnavailable"):
        probe()


@pytest.mark.builder
def test_the_real_bindings_take_our_arguments() -> None:
    """Needs the real package (`make test-builder` installs it) and a machine without a driver."""
    installed = Path(sys.prefix) / "contract" / "cuda"
    if not (installed / "cuda" / "bindings").is_dir():
        pytest.skip(f"no cuda.bindings in {installed}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(installed), str(ROOT)))}
    command = [sys.executable, "-c", REAL_CALLS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if "no NVIDIA driver" not in lines[-1]:
        pytest.skip(f"there is a driver: {lines[-1]}")
    assert len(lines) == 23
    assert all("failed:" in line for line in lines)
    assert sum("cudaErrorInsufficientDriver" in line for line in lines) == 22


STATUSES: dict[type[EngineError], tuple[str, ...]] = {
    EngineDeadError: ("IllegalAddress", "LaunchFailure", "ECCUncorrectable", "HardwareStackError", "Unknown"),
    EngineError: ("InvalidValue", "NotSupported", "StreamCaptureInvalidated", "InvalidResourceHandle"),
    OutOfMemoryError: ("MemoryAllocation",),
}


def test_a_status_is_an_error_that_names_it(machine: Machine) -> None:
    """Of a lost device where nothing clears it."""
    from cuda.bindings import runtime

    from runtime.devices import cuda_calls

    for kind, names in STATUSES.items():
        for code in (f"cudaError{name}" for name in names):
            with pytest.raises(EngineError, match=f"doing something: {code}") as caught:
                cuda_calls.check((runtime.cudaError_t[code],), "doing something")
            assert caught.type is kind, code


def test_every_sticky_status_exists(machine: Machine) -> None:
    from cuda.bindings import runtime

    from runtime.devices.cuda_calls import STICKY

    assert set(runtime.cudaError_t.__members__) >= STICKY


def test_garbage_is_not_collected_during_a_capture(machine: Machine) -> None:
    from runtime.devices import cuda_calls

    class Owner:
        """Frees device memory in its finalizer, as an engine's context does."""

        def __init__(self) -> None:
            self.address, self.itself = cuda_calls.take_device(100), self

        def __del__(self) -> None:
            cuda_calls.free_device(self.address)

    Owner()

    def work() -> None:
        _ = [[index] for index in range(100_000)]

    stream = cuda_calls.new_stream(0)
    cuda_calls.close_graph(cuda_calls.capture(stream, work))
    cuda_calls.close_stream(stream)
    assert gc.isenabled()
    gc.collect()
