"""The build environment: versions and device, or all that is missing."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from simulator.fixture import simulated

from engine_build.compile.environment import (
    build_environment,
    driver_release,
    need_int8_products,
    other_card,
    probe_environment,
)
from engine_build.config import BuildConfig
from runtime.base.errors import BuildError

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:09:03 UTC 2025\nGCC version: 12.2.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (dvs-builder)"


@pytest.mark.parametrize(("text", "release"), [(CLOSED, "570.124.06"), (OPEN, "580.82.07"), ("something else", "")])
def test_the_driver_release_is_read(tmp_path: Path, text: str, release: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_release(tmp_path / "version") == release
    assert driver_release(tmp_path / "none") == ""


def test_the_cpu_is_an_architecture_or_one_processor() -> None:
    assert set(build_environment("cpu", BuildConfig()).device) == {"arch"}
    assert set(build_environment("cpu", BuildConfig(optimization="all")).device) == {"arch", "cpu"}


@pytest.mark.parametrize(("flags", "has_them"), [("avx2 avx512_vnni", True), ("fma avx2 avx512f", False), ("", False)])
def test_int8_needs_a_processor_with_8_bit_products(tmp_path: Path, flags: str, has_them: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name : X\nflags : fpu {flags}\n")
    if has_them:
        need_int8_products(tmp_path / "cpuinfo")
    else:
        with pytest.raises(BuildError, match="avx512_vnni") as raised:
            need_int8_products(tmp_path / "cpuinfo")
        assert 'precision = "fp32"' in raised.value.fix


@pytest.mark.parametrize(
    ("compatibility", "fields"),
    [
        ("none", {"arch", "gpu", "compute_capability"}),
        ("same_compute_capability", {"arch", "compute_capability"}),
        ("ampere_plus", {"arch"}),
    ],
)
def test_a_plan_is_valid_as_widely_as_it_was_built_for(compatibility: str, fields: set[str]) -> None:
    with simulated(gpu_name="Simulated L4", cc="8.9"):
        environment = build_environment("tensorrt", BuildConfig(hardware_compatibility=compatibility))  # type: ignore[arg-type]
    assert set(environment.device) == fields
    assert (environment.facts["gpu"], environment.facts["compute_capability"]) == ("Simulated L4", "8.9")
    assert environment.built_on == "Simulated L4"
    assert set(environment.tool_versions) == {"tensorrt"}


def test_all_missing_packages_are_in_one_error() -> None:
    with pytest.raises(BuildError) as caught:
        build_environment("tensorrt", BuildConfig())
    assert caught.value.what.count("; ") == 1
    assert caught.value.fix == (
        "pip install 'tickrt[tensorrt]'; build on the machine that will serve, or with --target cpu"
    )
    found = probe_environment("tensorrt", BuildConfig())
    assert found.missing is not None
    assert found.device == {}


def test_tensorrt_rtx_needs_no_gpu_and_depends_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"tensorrt-rtx": "1.7.1.116"}[name])
    with simulated(no_driver=True):
        found = build_environment("tensorrt-rtx", BuildConfig())
    assert (found.tool_versions, found.device) == ({"tensorrt-rtx": "1.7.1.116"}, {})
    assert "no NVIDIA driver" in found.cannot_run


@pytest.mark.parametrize(
    ("cc", "says"),
    [("8.9", ""), ("12.0", ""), ("9.0", "built for SM80, SM86, SM89, SM120, SM121, this machine's GPU is SM90")],
)
def test_engines_of_tensorrt_rtx_are_for_rtx_cards(cc: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.7.1.116")
    with simulated(gpu_name="A card", cc=cc):
        found = build_environment("tensorrt-rtx", BuildConfig())
    assert (found.cannot_run, found.device, found.facts["gpu"]) == (says, {}, "A card")


def test_engines_of_one_card_are_for_no_other() -> None:
    assert other_card(("SM89",), "8.6") == "built for SM89, this machine's GPU is SM86"
    assert other_card(("SM89",), "12.0") == "built for SM89, this machine's GPU is SM120"
    assert other_card(("SM89",), "8.9") == other_card(("SM86", "SM89"), "8.9") == other_card((), "13.0") == ""
    assert other_card((), "10.3") != ""


def test_without_tensorrt_rtx_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    missing = probe_environment("tensorrt-rtx", BuildConfig()).missing
    assert missing is not None
    assert missing.fix.startswith("pip install 'tickrt[tensorrt-rtx]'")


def test_fp8_needs_a_gpu_that_has_it() -> None:
    fp8 = BuildConfig(precision="fp8")
    with simulated(gpu_name="Simulated A10", cc="8.6"):
        assert build_environment("tensorrt", BuildConfig(precision="int8")).facts["gpu"] == "Simulated A10"
        with pytest.raises(BuildError, match=r"A10 has compute capability 8.6, products in fp8 need 8.9") as raised:
            build_environment("tensorrt", fp8)
    assert "int8" in raised.value.fix
    for later in ("8.9", "9.0", "12.0"):
        with simulated(gpu_name="A later one", cc=later):
            assert build_environment("tensorrt", fp8).facts["compute_capability"] == later


def test_a_missing_driver_is_reported_before_tensorrt_is_loaded() -> None:
    with simulated(no_driver=True):
        missing = probe_environment("tensorrt", BuildConfig()).missing
    assert missing is not None
    assert "no NVIDIA driver" in missing.what
    assert "nvidia-smi" in missing.fix
