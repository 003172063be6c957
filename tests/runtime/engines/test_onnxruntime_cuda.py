"""ONNX Runtime's CUDA provider: session options, nodes on the host, translation of errors."""

from __future__ import annotations

import pytest

from runtime.base.errors import CaptureError, EngineDeadError, EngineError, OutOfMemoryError
from runtime.engines.onnxruntime_cuda import (
    provider_options,
    translate_error,
)

ILLEGAL = "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=h ; expr=cudaMemcpyAsync("
ARENA = (
    "Non-zero status code returned while running MatMul node. Name:'node' Status Message: "
    "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 4294967296"
)
LIMIT = "bfc_arena.cc:358 Available memory of 1048576 is smaller than requested bytes of 4194304"
CAPTURE = "CUDA failure 900: operation not permitted when stream is capturing ; GPU=0 ; expr=cudaFreeHost(p)"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ILLEGAL, EngineDeadError),
        ("CUDA failure 719: unspecified launch failure ; GPU=0", EngineDeadError),
        ("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);", OutOfMemoryError),
        (ARENA, OutOfMemoryError),
        (LIMIT, OutOfMemoryError),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", OutOfMemoryError),
        (CAPTURE, CaptureError),
        ("CUDA failure 1: invalid argument ; GPU=0", EngineError),
        ("Got invalid dimensions for input: x", EngineError),
    ],
)
def test_errors_are_translated(text: str, kind: type[EngineError]) -> None:
    error = translate_error("decoder", RuntimeError(text))
    assert type(error) is kind
    assert "decoder" in error.what
    assert text in error.what
    assert bool(error.fix) == (kind is not CaptureError)


def test_session_options_of_the_provider() -> None:
    options = provider_options(0x7F00_1234, tf32=False)
    assert options["user_compute_stream"] == str(0x7F00_1234)
    assert options["use_tf32"] == "0"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert options["do_copy_in_default_stream"] == "1"
    assert all(type(value) is str for value in options.values())
    assert "user_compute_stream" not in provider_options(None, tf32=True)
    assert provider_options(None, tf32=True)["use_tf32"] == "1"
