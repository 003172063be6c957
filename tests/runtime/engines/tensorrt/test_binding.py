"""One TensorRT per process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from simulator.fixture import child_environment, simulated

from runtime.base.errors import EngineError


def test_tensorrt_is_bound_where_nothing_else_was_asked_for() -> None:
    with simulated(fresh=True):
        import tensorrt

        from runtime.engines.tensorrt import binding

        assert binding.trt is tensorrt
        binding.bind("tensorrt")
        with pytest.raises(EngineError, match="engines of target tensorrt, those of tensorrt-rtx need another process"):
            binding.bind("tensorrt-rtx")
        with pytest.raises(AttributeError, match="no attribute 'other'"):
            binding.other  # noqa: B018


def test_the_other_package_is_bound_before_the_library_is_loaded() -> None:
    lines = [
        "import sys, tensorrt",
        "sys.modules['tensorrt_rtx'] = tensorrt",
        "del sys.modules['tensorrt']",
        "from runtime.engines.tensorrt.binding import bind",
        "bind('tensorrt-rtx')",
        "from runtime.engines.tensorrt import library",
        "assert library.trt is sys.modules['tensorrt_rtx']",
        "assert 'tensorrt' not in sys.modules",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
