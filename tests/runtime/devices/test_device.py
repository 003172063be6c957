"""The host device, and the description of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from simulator.fixture import simulated

from runtime.devices.device import ALIGNMENT_BYTES, HostDevice
from runtime.devices.machine import cpu_flags, machine, num_cores, num_physical_cores, open_device


def test_memory_is_aligned_zero_and_counted() -> None:
    device = HostDevice()
    for shape in ((3, 5), (1,), (7, 11, 2)):
        tensor = device.zeros(shape, np.float32)
        assert tensor.address % ALIGNMENT_BYTES == 0
        assert tensor.host is not None
        assert tensor.host.shape == shape
        assert not tensor.host.any()
    assert device.allocations == 3


def test_view_is_the_same_memory_at_an_offset() -> None:
    tensor = HostDevice().zeros((4, 6), np.float32)
    view = tensor.view(2, 3, start=6)
    assert view.host is not None
    assert tensor.host is not None
    view.host[...] = 5.0
    assert (tensor.host[1] == 5.0).all()
    assert view.address == tensor.address + 24


def test_view_beyond_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        HostDevice().zeros((4,), np.float32).view(3, start=2)


def test_the_processor_is_described() -> None:
    assert machine()["arch"] == os.uname().machine
    assert machine()["cpu"]


def test_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert (num_cores(), num_physical_cores(tmp_path)) == (8, 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert (num_cores(), num_physical_cores(tmp_path)) == (3, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 9})
    assert num_physical_cores(tmp_path) == 2, "not known of every core"


def test_the_device_of_each_target() -> None:
    with simulated():
        devices = {target: open_device(target) for target in ("cpu", "cuda", "tensorrt")}
        assert {target: device.kind for target, device in devices.items()} == {
            "cpu": "cpu",
            "cuda": "cuda",
            "tensorrt": "cuda",
        }
        for device in devices.values():
            device.close()


def test_a_processors_instructions_are_those_of_its_flags(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: avx_vnni in a name\nflags\t\t: fpu avx2 avx512_vnni\nbugs\t\t: amx_int8\n")
    assert {"fpu", "avx2", "avx512_vnni"} <= cpu_flags(path)
    assert not {"avx_vnni", "amx_int8"} & cpu_flags(path)
    path.write_text("processor : 0\nFeatures : fp asimd asimddp\n")
    assert "asimddp" in cpu_flags(path)
    assert cpu_flags(tmp_path / "none") == frozenset()
