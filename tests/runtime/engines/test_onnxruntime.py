"""Bound executions write where they are told to, and give what a plain run gives."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Built

from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engine
from runtime.errors import ShapeError


def test_a_bound_execution_equals_a_plain_run_and_can_be_repeated(built: Built) -> None:
    device = HostDevice()
    engine = open_engine(built().engine_folder(), "rows.plain", device)
    latents, rows, out = (
        device.zeros((3, 4, 8), "float32"),
        device.zeros((2,), "int64"),
        device.zeros((2, 4, 8), "float32"),
    )
    execution = engine.bind({"latents": latents, "row_slots": rows, "hidden_states": out})
    assert latents.host is not None
    assert rows.host is not None
    assert out.host is not None
    for seed in range(3):
        latents.host[...] = np.random.default_rng(seed).standard_normal((3, 4, 8))
        rows.host[...] = [2, seed % 3]
        execution.launch(device.stream())
        np.testing.assert_array_equal(out.host, latents.host[rows.host])
        plain = engine.run({"latents": latents.host, "row_slots": rows.host})
        np.testing.assert_array_equal(plain["hidden_states"], out.host)


def test_an_output_of_the_wrong_shape_is_refused_when_bound(built: Built) -> None:
    device = HostDevice()
    engine = open_engine(built().engine_folder(), "rows.plain", device)
    tensors = {
        "latents": device.zeros((3, 4, 8), "float32"),
        "row_slots": device.zeros((2,), "int64"),
        "hidden_states": device.zeros((3, 4, 8), "float32"),
    }
    with pytest.raises(ShapeError, match="hidden_states has shape"):
        engine.bind(tensors)
