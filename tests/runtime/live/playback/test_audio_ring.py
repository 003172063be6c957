"""AudioRing, with the operations that the page's worklet is tested with, too."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

from runtime.live.playback.audio_ring import AudioRing

VECTORS = json.loads((ROOT / "tests/data/audio_ring.json").read_text())


def apply(ring: AudioRing, operation: dict[str, Any]) -> dict[str, Any]:
    """What an operation of the vectors gives, under the names of its expected values."""
    match operation["op"]:
        case "write":
            return {"taken": ring.write(operation["start_sample"], np.array(operation["pcm"], np.float32))}
        case "read":
            out = np.full((operation["samples"], VECTORS["channels"]), np.nan, np.float32)
            return {"missing": ring.read(out), "pcm": out}
        case "take_worst_lead":
            return {"lead_s": ring.lead_s, "worst_lead_s": ring.take_worst_lead_s()}
        case "clear":
            ring.clear(operation["start_sample"])
            return {}
    return {name: getattr(ring, name) for name in operation if name != "op"}


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_vectors(case: dict[str, Any]) -> None:
    ring = AudioRing(
        VECTORS["sample_rate_hz"],
        VECTORS["channels"],
        capacity_s=VECTORS["capacity_s"],
        start_sample=case["start_sample"],
    )
    for operation in case["operations"]:
        for name, value in apply(ring, operation).items():
            np.testing.assert_allclose(value, operation[name], atol=1e-5, err_msg=f"{operation['op']}: {name}")


def test_a_write_does_not_change_its_argument() -> None:
    ring = AudioRing(160, 1)
    ring.write(0, np.ones((8, 1), np.float32))
    pcm = np.zeros((8, 1), np.float32)
    ring.write(0, pcm)
    assert not pcm.any()


def test_reading_allocates_no_arrays() -> None:
    ring, out = AudioRing(48_000, 2), np.empty((4800, 2), np.float32)
    ring.write(0, np.ones((48_000, 2), np.float32))
    ring.read(out)
    tracemalloc.start()
    try:
        ring.read(out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1024
