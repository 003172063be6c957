"""What the sessions of a host share: the latents of an uploaded source as each kind of reference."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers.live_simulation import MODEL

from runtime.base.errors import RequestError
from runtime.live.hosting.services import HostServices
from runtime.live.protocol.messages import ReferenceKind

LATENTS = np.arange(12.0, dtype=np.float32).reshape(6, 2)


def services(untaken: Iterable[str] = (), **members: Any) -> HostServices:
    inputs = SimpleNamespace(timbre_latents=lambda latents: latents[:3])
    structure = SimpleNamespace(hints=lambda latents: -latents)
    pipeline: Any = SimpleNamespace(inputs=inputs, structure=structure)
    model, codec_work = replace(MODEL, untaken=frozenset(untaken)), cast(Any, None)
    return HostServices(model, pipeline, codec_work, time.monotonic, 60.0, **members)


@pytest.mark.parametrize(("kind", "expected"), [("source", LATENTS), ("timbre", LATENTS[:3]), ("structure", -LATENTS)])
def test_a_source_as_a_reference(kind: ReferenceKind, expected: Any) -> None:
    asked: list[str] = []

    def sources(source_id: str) -> Any:
        asked.append(source_id)
        return LATENTS

    assert np.array_equal(services(sources=sources).reference(kind, "a"), expected)
    assert asked == ["a"]


@pytest.mark.parametrize("kind", ["timbre", "structure"])
def test_a_source_is_not_read_for_a_part_that_the_bundle_lacks(kind: ReferenceKind) -> None:
    read: list[str] = []
    shared = services(sources=read.append, untaken=("timbre_strength", "structure_strength"))
    with pytest.raises(RequestError, match=rf"type: the bundle has no \[{kind}\]"):
        shared.reference(kind, "a")
    assert not read


def test_without_sources_there_are_no_references() -> None:
    with pytest.raises(RequestError, match="id: there are no sources here"):
        services().reference("timbre", "a")


def test_every_observer_is_told_of_a_change() -> None:
    told: list[tuple[str, str, float]] = []
    shared = services(control_observers=[lambda *change: told.append(change)] * 2)
    shared.observe_control("step", "first", 0.1)
    assert told == [("step", "first", 0.1)] * 2
