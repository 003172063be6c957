"""What is refused before an engine is loaded: files that are no engines, other versions, what a library says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator.fixture import simulated

from runtime.base.errors import (
    EngineDeadError,
    EngineError,
    EngineMismatchError,
    EngineNotBuiltError,
    OutOfMemoryError,
    StoreUnavailableError,
)
from runtime.engines.tensorrt.engine_file import (
    EngineHeader,
    check_engine_version,
    parse_engine_header,
    read_engine_header,
)
from runtime.engines.tensorrt.errors import DTYPES, check_trt, dtype_name

HEAD = b"ftrt" + bytes(20) + bytes((11, 4, 0, 106))
BUILD = "tickrt-build x.toml --target tensorrt-rtx"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "has 0 bytes"),
        (HEAD[:27], "has 27 bytes, a plan has at least 28"),
        (b"PK\3\4" + HEAD[4:], "is not a TensorRT plan: it begins with"),
        (HEAD[:4] + b"\1" + HEAD[5:], "is a damaged plan: bytes 4 to 7 are 01000000"),
    ],
)
def test_a_file_that_is_no_engine_is_refused_with_the_fix(head: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "decoder.plan"
    with pytest.raises(EngineNotBuiltError, match="no plan at"):
        read_engine_header(path)
    path.write_bytes(head)
    with pytest.raises(EngineMismatchError, match=rf"decoder\.plan {message}[\s\S]*fix: build it"):
        read_engine_header(path, fix="build it")
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        read_engine_header(tmp_path)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_header_or_a_mismatch(data: bytes) -> None:
    try:
        header = parse_engine_header(data, "x")
    except EngineMismatchError:
        return
    assert data[:8] in (b"ftrt" + bytes(4), b"vtrt" + bytes(4))
    assert header.version == tuple(data[24:28])


@pytest.mark.parametrize(
    ("library", "made_by", "installed", "compatible", "fits"),
    [
        ("TensorRT", (11, 4, 0, 106), "11.4.0.106", False, True),
        ("TensorRT", (11, 4, 0, 106), "11.4.0.107", False, False),
        ("TensorRT", (10, 16, 1, 11), "11.4.0.106", False, False),
        ("TensorRT", (10, 16, 1, 11), "11.4.0.106", True, True),
        ("TensorRT", (11, 4, 0, 106), "10.16.1.11", True, False),
        ("TensorRT-RTX", (11, 4, 0, 106), "11.4.0.106", False, False),
    ],
)
def test_an_engine_needs_its_library_and_version(
    library: str, made_by: tuple[int, ...], installed: str, compatible: bool, fits: bool
) -> None:
    header = EngineHeader(library, made_by)
    if fits:
        check_engine_version(header, "TensorRT", installed, "decoder.plan", version_compatible=compatible)
        return
    expected = rf"built by {library} {header.version_text}.*installed is TensorRT {installed}"
    with pytest.raises(EngineMismatchError, match=expected):
        check_engine_version(header, "TensorRT", installed, "decoder.plan", version_compatible=compatible)


@pytest.mark.parametrize("value", [True, 1, 7, "", [], {}, object()])
def test_values_other_than_false_and_none_are_returned(value: Any) -> None:
    assert check_trt(value, "a call", lambda: "an older message") is value


@pytest.mark.parametrize("value", [None, False])
@pytest.mark.parametrize(
    ("logged", "kind"),
    [
        ("", EngineMismatchError),
        ("Serialization assertion failed", EngineMismatchError),
        ("Cuda Runtime (out of memory)", OutOfMemoryError),
        ("std::bad_alloc", OutOfMemoryError),
        ("CUDA error: an Illegal Memory Access was encountered; out of memory", EngineDeadError),
    ],
)
def test_the_logged_message_decides_the_error(value: Any, logged: str, kind: type[EngineError]) -> None:
    with pytest.raises(EngineError, match="the plan does not load: ") as caught:
        check_trt(value, "the plan does not load", lambda: logged, kind=EngineMismatchError, fix="build it")
    assert caught.type is kind
    assert (logged or "without a message") in caught.value.what
    assert (caught.value.fix == "build it") == (kind is EngineMismatchError)


@pytest.mark.parametrize("version", ["11.4.0.106", "10.16.1.11"])
def test_every_data_type_has_a_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_TENSORRT", version)
    with simulated():
        import tensorrt as trt

        assert set(trt.DataType.__members__) == set(DTYPES)
        assert dtype_name(trt.DataType.BF16) == "bfloat16"
    unknown = type("Fp2", (), {"name": "FP2"})()
    with pytest.raises(EngineError, match=r"unknown TensorRT data type FP2, expected one of FLOAT, "):
        dtype_name(unknown)


def refusal(*diagnostics: str) -> EngineError:
    """For what TensorRT-RTX says against an engine."""
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
import tensorrt_rtx as trt
from runtime.base.errors import EngineMismatchError
from runtime.engines.tensorrt.rtx.loaded_engine import REFUSALS, check_validity
assert set(REFUSALS) == set(trt.EngineInvalidityDiagnostics.__members__)
try:
    check_validity(trt.Runtime(trt.Logger()), b"x" * 64, "decoder.plan", lambda: "its words", "")
except EngineMismatchError as error:
    assert error.what == "decoder.plan is damaged: its words"
else:
    raise AssertionError
"""


@pytest.mark.builder
def test_every_cause_that_the_library_knows_has_a_sentence() -> None:
    pytest.importorskip("tensorrt_rtx")
    subprocess.run([sys.executable, "-c", RUN], check=True, timeout=60)
