"""Fixtures of the simulated TensorRT."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulator.fixture import Machine, simulated
from simulator.rig import Rig


@pytest.fixture(params=["11.4.0.106", "10.16.1.11"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("SIMULATED_TENSORRT", request.param)
    with simulated() as machine:
        yield machine


@pytest.fixture
def rig(machine: Machine) -> Iterator[Rig]:
    rig = Rig(machine)
    yield rig
    rig.close()
