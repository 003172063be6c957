"""Checks of TensorRT's return values, and names of data types."""

from __future__ import annotations

from typing import Any

import pytest
from simulator.fixture import simulated

from runtime.base.errors import EngineDeadError, EngineError, EngineMismatchError, OutOfMemoryError
from runtime.engines.tensorrt.errors import DTYPES, check_trt, dtype_name


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


def test_an_unknown_data_type_is_an_error() -> None:
    class Fp2:
        name = "FP2"

    with pytest.raises(EngineError, match=r"unknown TensorRT data type FP2, expected one of FLOAT, "):
        dtype_name(Fp2())
