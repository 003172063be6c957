"""Generations with LoRA adapters in the tick loop, against the oracle on a decoder with merged weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.adapters import deltas, merged, random_factors, write_peft
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from helpers.generations import GUIDED, Inbox, expected_latents, make, run_all
from helpers.graph_engine import GraphEngine

from engine_build.compile.builder import build_deployment
from runtime.base.errors import QueueFullError, RequestError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engines
from runtime.requests.request import StepParameters
from runtime.tick.loop.tick_loop import TickLoop

RANKS = {"soft": 4, "hard": 8, "wide": 12}
SMALL = {"depth": 8, "codec": False, "text_encoder": False, "max_rows": 16, "more": FEW_VARIANTS}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A tiny decoder with three adapters, of which two fit at a time."""
    folder = tmp_path_factory.mktemp("adapters")
    found = load_deployment(tiny_deployment(folder, adapters=True, **SMALL))  # type: ignore[arg-type]
    for seed, (name, rank) in enumerate(RANKS.items()):
        write_peft(folder / "adapters" / name, random_factors(spec_of(found), rank, seed), r=rank, lora_alpha=rank)
    runtime = found.runtime.model_copy(update={"adapter_rank": 16})
    found = found.model_copy(update={"adapters": folder / "adapters", "runtime": runtime})
    build_deployment(found)
    return found


def spec_of(deployment: Deployment) -> Any:
    return load_bundle(deployment.bundle).adapters


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def loop_of(deployment: Deployment, opened: ExitStack) -> TickLoop:
    device = HostDevice()
    loop = TickLoop(open_engines(deployment, device), load_bundle(deployment.bundle), deployment, device)
    opened.callback(loop.close)
    return loop


@pytest.fixture
def loop(deployment: Deployment, opened: ExitStack) -> TickLoop:
    return loop_of(deployment, opened)


def using(name: str, adapters: Mapping[str, float], **changes: Any) -> Any:
    parameters = changes.pop("parameters", StepParameters()).over(StepParameters(adapters=adapters))
    return make(name, parameters=parameters, **changes)


def with_merged_weights(loop: TickLoop, adapters: Mapping[str, float]) -> Any:
    """A loop whose decoder has the adapters in its weights, as far as the oracle needs one."""
    changes = [
        (adapters.get(name, 0.0), deltas(random_factors(spec_of(loop.deployment), rank, seed), 1.0))
        for seed, (name, rank) in enumerate(RANKS.items())
    ]
    decoder = GraphEngine(merged(loop.deployment.bundle, changes))
    return SimpleNamespace(engines=SimpleNamespace(decoder=decoder), bundle=loop.bundle)


def test_generations_with_different_adapters_share_a_tick(loop: TickLoop) -> None:
    chosen: dict[str, dict[str, float]] = {
        "none": {}, "off": {"soft": 0.0}, "one": {"soft": 0.7}, "both": {"soft": 1.0, "hard": -0.5}
    }  # fmt: skip
    requests = {name: using(name, adapters, **GUIDED) for name, adapters in chosen.items()}
    found = Inbox()
    for request in requests.values():
        loop.submit(request, found)
    ticks = list(iter(loop.tick, None))
    assert {tick.executes for tick in ticks} == {1}
    for name, adapters in chosen.items():
        expected = expected_latents(with_merged_weights(loop, adapters), make(name, **GUIDED))
        np.testing.assert_allclose(found.latents(name), expected, atol=1e-4, rtol=1e-4)
    assert np.abs(found.latents("one") - expected_latents(loop, make("one", **GUIDED))).max() > 0.01


def decoders(loop: TickLoop) -> list[str]:
    """The name of each engine that a tick executed for the decoder, in order."""
    names: list[str] = []
    for engine in (loop.engines.decoder, loop.engines.adapted):
        assert engine is not None
        bind = engine.bind
        engine.bind = lambda tensors, bind=bind, name=engine.name: names.append(name) or bind(tensors)  # type: ignore
    return names


def test_without_an_adapter_the_plain_decoder_runs(loop: TickLoop) -> None:
    names = decoders(loop)
    run_all(loop, make("a"), using("b", {"soft": 0.0}))
    assert set(names) == {"decoder"}
    run_all(loop, make("c"), using("d", {"soft": 0.1}))
    assert set(names) == {"decoder", "decoder.adapters"}


def test_an_adapter_takes_the_place_of_one_that_is_not_used_any_more(loop: TickLoop) -> None:
    alone = {name: run_all(loop, using(name, {name: 1.0})).latents(name) for name in ("soft", "wide")}
    together = run_all(loop, using("hard", {"hard": 1.0}), using("soft", {"soft": 1.0}))
    again = run_all(loop, using("wide", {"wide": 1.0}), using("soft", {"soft": 1.0}))
    for name, found in (("soft", together), ("soft", again), ("wide", again)):
        np.testing.assert_allclose(found.latents(name), alone[name], atol=1e-5)


def test_a_strength_changes_in_flight_with_the_next_tick(loop: TickLoop) -> None:
    inbox = Inbox()
    loop.submit(using("a", {"soft": 1.0}, session="s"), inbox)
    loop.tick()
    loop.update("s", {"adapters": {"soft": 0.5, "hard": 0.25}})
    while loop.tick() is not None:
        pass
    whole = run_all(loop, using("a", {"soft": 1.0})).latents("a")
    other = run_all(loop, using("a", {"soft": 0.5, "hard": 0.25})).latents("a")
    found = inbox.latents("a")
    assert min(np.abs(found - whole).max(), np.abs(found - other).max()) > 1e-3


def test_what_cannot_be_used_is_refused_and_changes_nothing(loop: TickLoop) -> None:
    inbox = Inbox()
    loop.submit(using("a", {"wide": 1.0}, session="s"), inbox)
    with pytest.raises(RequestError, match="no adapter 'sofd'"):
        loop.submit(using("b", {"sofd": 1.0}), inbox)
    with pytest.raises(RequestError, match=r"20 in sum.*takes 16"):
        loop.submit(using("b", {"wide": 1.0, "hard": 1.0}), inbox)
    with pytest.raises(QueueFullError, match=r"adapters of other generations.*20 in sum, at most 16"):
        loop.submit(using("b", {"hard": 1.0}), inbox)
    for patch in ({"sofd": 1.0}, {"wide": 1.0, "hard": 1.0}):
        with pytest.raises(RequestError):
            loop.update("s", {"adapters": patch})
    with pytest.raises(QueueFullError):
        loop.update("s", {"adapters": {"hard": 1.0}})
    loop.submit(using("c", {"soft": 1.0}), inbox)
    while loop.tick() is not None:
        pass
    alone = run_all(loop, using("a", {"wide": 1.0})).latents("a")
    np.testing.assert_allclose(inbox.latents("a"), alone, atol=1e-5)
    loop.submit(using("b", {"hard": 1.0}), inbox)
