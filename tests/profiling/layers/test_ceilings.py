"""Ceilings: given by hand, and measured."""

from __future__ import annotations

import pytest

from profiling.layers import ceilings
from profiling.layers.ceilings import higher, measure_ceilings, parse_peaks
from profiling.layers.roofline import Ceilings
from runtime.devices.device import HostDevice
from runtime.errors import ConfigError


def test_given_by_hand() -> None:
    top = parse_peaks("989000,4800")
    assert (top.flops_per_s, top.bytes_per_s) == (989e12, 4.8e12)
    assert top.source == "given"


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", "0,1", "1,-1", "nan,1", "1,inf"])
def test_what_is_no_pair_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--peaks is[\s\S]*fix: --peaks"):
        parse_peaks(text)


def test_the_higher_of_two_looks() -> None:
    first, second = Ceilings(2.0, 30.0, "measured"), Ceilings(3.0, 20.0, "measured")
    assert higher(first, second) == Ceilings(3.0, 30.0, "measured")
    assert higher(None, None) is None
    assert higher(first, None) == first


def test_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.GEMM_SIZE, "cpu", 64)
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", 1 << 20)
    top = measure_ceilings("cpu", HostDevice(), half=True, threads=1)
    assert top.flops_per_s > 0
    assert top.bytes_per_s > 0
    assert "64 x 64" in top.source


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_where_nothing_measures_the_data_sheet_does(target: str) -> None:
    """Without the CUDA provider, as where only TensorRT is installed."""
    with pytest.raises(ConfigError, match=r"no ceiling of target[\s\S]*fix: --peaks"):
        measure_ceilings(target, HostDevice(), half=False, threads=1)  # type: ignore[arg-type]
