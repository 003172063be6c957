"""What there is on this machine."""

from __future__ import annotations

import os

import pytest

from runtime.devices.machine import machine, open_device
from runtime.engines.loading import tool_versions
from runtime.errors import EngineError


def test_tool_versions_name_what_is_installed() -> None:
    assert set(tool_versions("cpu")) & {"onnxruntime", "onnxruntime-gpu"}
    assert machine()["arch"] == os.uname().machine
    assert machine()["cpu"]


def test_unknown_target_says_what_to_do() -> None:
    with pytest.raises(EngineError, match="--target cpu"):
        open_device("tensorrt")
