"""Target cuda on the simulated GPU: its provider, a tiny deployment's engines, and its device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from simulator.fixture import Machine, simulated
from simulator.onnxruntime_gpu import Provider, simulated_provider

from engine_build.compile.builder import build_deployment
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


@pytest.fixture
def provider(machine: Machine) -> Iterator[Provider]:
    with simulated_provider(machine) as provider:
        yield provider


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Engines of the targets cpu and cuda."""
    few = '[build]\nstep_variants = ["plain", "guidance"]\n'
    found = load_deployment(tiny_deployment(tmp_path_factory.mktemp("cuda"), more=few))
    build_deployment(found)
    with simulated() as machine, simulated_provider(machine):
        build_deployment(found, target="cuda")
    return found


@pytest.fixture
def device(machine: Machine) -> Iterator[Any]:
    device = open_device("cuda")
    yield device
    device.close()
