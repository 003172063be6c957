"""Target cuda from build to ticks, on the simulated GPU: the same latents as on the CPU and as the parity vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import parity
from helpers.factories import tiny_deployment
from simulator.fixture import Machine, simulated
from simulator.onnxruntime_gpu import Provider, simulated_provider

from engine_build.compile.builder import build_deployment
from runtime.base.errors import EngineError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.launch_cache import LaunchCounts
from runtime.engines.loading import open_engines
from runtime.requests.request import Condition, GenerationRequest, StepParameters
from runtime.tick.loop.events import Event, Failed, Finished
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

SCENARIOS, INPUTS, EXPECTED = parity.load()


def test_a_build_refuses_a_graph_with_nodes_on_the_host(tmp_path: Path, machine: Machine) -> None:
    found = load_deployment(tiny_deployment(tmp_path))
    with simulated_provider(machine, on_host=frozenset({"Tanh"})), pytest.raises(Exception, match="no CUDA kernel"):
        build_deployment(found, target="cuda")


def generate(
    deployment: Deployment,
    target: Target,
    observe: Callable[[TickRecord], object] = bool,
    failed: list[Failed] | None = None,
) -> tuple[dict[str, np.ndarray], LaunchCounts]:
    """Latents of five requests (guided and not, two lengths, staggered) by id, and the launch counts.

    failed: gets those that fail; None where none may.
    """
    device = open_device(target)
    loop = TickLoop(open_engines(deployment, device, target=target), load_bundle(deployment.bundle), deployment, device)
    random = np.random.default_rng(5)
    events: list[Event] = []
    loop.observers.append(observe)
    for index in range(5):
        frames = (32, 32, 16, 32, 32)[index]
        positive, negative = (random.standard_normal((tokens, 12)).astype(np.float32) for tokens in (3 + index, 4))
        guided = {"negatives": (Condition(negative),), "parameters": StepParameters(guidance=3.0)} if index % 2 else {}
        context = random.standard_normal((frames, 16)).astype(np.float32)
        request = GenerationRequest(
            frames, (Condition(positive),), steps=6, seed=index, context=context, id=str(index), **guided
        )
        loop.submit(request, events.append)
    while loop.tick() is not None:
        pass
    counts = replace(loop._ticks._denoise.launch_counts)
    loop.close()
    device.close()
    ended = [event for event in events if isinstance(event, Failed)]
    if failed is not None:
        failed += ended
    else:
        assert ended == []
    return {event.request_id: event.latents for event in events if isinstance(event, Finished)}, counts


@pytest.mark.parametrize("recordable", [False, True])
def test_latents_equal_those_of_the_cpu(deployment: Deployment, machine: Machine, recordable: bool) -> None:
    expected_latents, _ = generate(deployment, "cpu")
    with simulated_provider(machine, recordable=recordable):
        found, counts = generate(deployment, "cuda")
    assert found.keys() == expected_latents.keys() == set("01234")
    for name, latents in expected_latents.items():
        np.testing.assert_allclose(found[name], latents, atol=2e-5)
    assert (counts.captured > 0) == (counts.replayed > 0) == recordable
    assert (counts.failed > 0) == (not recordable)


def test_ticks_in_flight_never_synchronize(deployment: Deployment, machine: Machine, provider: Provider) -> None:
    seen: list[int] = []
    generate(deployment, "cuda", lambda record: seen.append(machine.counters["synchronizes"]))
    assert len(seen) >= 6
    assert seen[-1] == seen[0] == 0


@pytest.mark.parametrize("recordable", [False, True])
def test_an_execute_that_fails_for_one_shape_ends_its_generations_alone(
    recordable: bool, deployment: Deployment, machine: Machine
) -> None:
    """In its plain launches and where the capture is probed; generation 2 alone has 16 frames."""

    def refuses(shapes: Mapping[str, tuple[int, ...]]) -> str:
        return "no kernel takes 16 frames" * any(shape[1:2] == (16,) for shape in shapes.values())

    with simulated_provider(machine, recordable=recordable):
        expected, counts = generate(deployment, "cuda")
    failed: list[Failed] = []
    with simulated_provider(machine, recordable=recordable, refuses=refuses):
        found, others = generate(deployment, "cuda", failed=failed)
    assert [event.request_id for event in failed] == ["2"]
    assert type(failed[0].error) is EngineError
    assert "Error in execution: no kernel takes 16 frames" in failed[0].error.what
    assert found.keys() == expected.keys() - {"2"}
    for name, latents in found.items():
        np.testing.assert_allclose(latents, expected[name], atol=2e-5)
    assert (others.captured > 0) == (counts.captured > 0) == recordable


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The parity vectors' decoder, built for the target cuda."""
    depth = max(scenario["depth"] for scenario in SCENARIOS.values())
    found = load_deployment(parity.write_deployment(tmp_path_factory.mktemp("parity"), depth=depth))
    with simulated() as machine, simulated_provider(machine):
        build_deployment(found, target="cuda")
    return found


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_parity_scenarios(reference: Deployment, provider: Provider, device: Any, name: str) -> None:
    engines = open_engines(reference, device, target="cuda")
    loop = TickLoop(engines, load_bundle(reference.bundle), reference, device)
    run = parity.run_scenario(loop, SCENARIOS[name], INPUTS)
    loop.close()
    for _, request_id in SCENARIOS[name]["finishes"]:
        np.testing.assert_allclose(run.finals[request_id], EXPECTED[f"{name}/{request_id}/final"], atol=2e-4, rtol=0)
