"""Why TensorRT-RTX does not run an engine: one sentence with a fix for each cause."""

from __future__ import annotations

import subprocess
import sys

import pytest
from simulator.fixture import simulated

from runtime.base.errors import EngineError, EngineMismatchError, OutOfMemoryError

BUILD = "tickrt-build x.toml --target tensorrt-rtx"


def refusal(*diagnostics: str) -> EngineError:
    with simulated(rtx=True):
        from runtime.engines.tensorrt.rtx.loaded_engine import refusal

        return refusal(diagnostics, "decoder.plan", BUILD)


@pytest.mark.parametrize(
    ("cause", "kind", "says", "fix"),
    [
        ("MALFORMED_ENGINE", EngineMismatchError, "is damaged", f"{BUILD} --force"),
        ("VERSION_MISMATCH", EngineMismatchError, "was built by another release of TensorRT-RTX", BUILD),
        ("UNSUPPORTED_CC", EngineMismatchError, "was not built for this GPU", "add this card's"),
        ("OLD_CUDA_DRIVER", EngineError, "needs a newer NVIDIA driver", "nvidia.com/drivers"),
        ("OLD_CUDA_RUNTIME", EngineError, "needs a newer CUDA runtime", "pip install --upgrade"),
        ("INSUFFICIENT_GPU_MEMORY", OutOfMemoryError, "needs more memory than this GPU has", "lower max of rows"),
        ("CUDA_ERROR", EngineError, "CUDA reports an error", "nvidia-smi"),
    ],
)
def test_each_cause_has_a_sentence_and_a_fix(cause: str, kind: type[EngineError], says: str, fix: str) -> None:
    error = refusal(cause)
    assert type(error) is kind
    assert error.what.startswith("decoder.plan ")
    assert says in error.what
    assert fix in error.fix


def test_several_causes_are_all_named_and_the_first_to_mend_first() -> None:
    error = refusal("OLD_CUDA_DRIVER", "VERSION_MISMATCH")
    assert error.what == (
        "decoder.plan was built by another release of TensorRT-RTX; it also needs a newer NVIDIA driver"
    )
    assert error.fix == BUILD
    assert refusal().what == "decoder.plan does not run here"


RUN = """
from runtime.engines.tensorrt.binding import bind
bind("tensorrt-rtx")
from runtime.engines.tensorrt.binding import trt
from runtime.engines.tensorrt.rtx import loaded_engine as validity

assert set(validity.REFUSALS) == set(trt.EngineInvalidityDiagnostics.__members__)
try:
    validity.check_validity(trt.Runtime(trt.Logger()), b"x" * 64, "decoder.plan", lambda: "its words", "")
except validity.EngineMismatchError as error:
    assert error.what == "decoder.plan is damaged: its words"
else:
    raise AssertionError
"""


@pytest.mark.builder
def test_every_cause_that_the_library_knows_has_a_sentence() -> None:
    pytest.importorskip("tensorrt_rtx")
    subprocess.run([sys.executable, "-c", RUN], check=True, timeout=60)
