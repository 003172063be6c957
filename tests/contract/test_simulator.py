"""The simulator has only names and parameters that the real packages have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from contract.conftest import CUDA_PACKAGES, Surface, read_surface
from helpers.paths import TESTS

pytestmark = pytest.mark.builder

SITE = TESTS / "simulator" / "site"
RELEASES = {"10.16": "10.16.1.11", "11.4": "11.4.0.106", "rtx-1.7": "1.7.1.116"}
# Methods of Python's own base classes.
PYTHON_ONLY = frozenset({"count", "index"})
ENUM_BASES = frozenset({"name", "value"})
# Options of the simulator.
SETTINGS = frozenset({"tensorrt.VERSION", "cuda.bindings.runtime.RUNTIME_VERSION"})


def differences(simulated: Surface, real: Surface) -> Iterator[str]:
    """Names of the simulator that the real package lacks, or has with other parameters."""
    for path, entry in simulated["names"].items():
        if entry["kind"] == "module" or path in SETTINGS:
            continue
        found = real["names"].get(path)
        if found is None:
            yield f"{path} does not exist"
        elif entry["kind"] == "class":
            yield from _members(path, entry, found, real["names"])
        elif entry["kind"] == "function":
            yield from _parameters(path, entry, found, None)


def _members(path: str, entry: Mapping[str, Any], found: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[str]:
    if found["kind"] == "alias":
        found = names[found["returns"]]
    is_enum = any(member.get("is_member") for member in entry["members"].values())
    if not is_enum:
        yield from _parameters(path, entry, found, None)
    for name, member in entry["members"].items():
        if name in PYTHON_ONLY or (is_enum and name in ENUM_BASES):
            continue
        theirs = _find(name, found, names)
        if theirs is None:
            yield f"{path}.{name} does not exist"
        elif member["kind"] == "function" and theirs["kind"] != "function":
            yield f"{path}.{name} is a {theirs['kind']}, not a method"
        elif member["kind"] == "function":
            yield from _parameters(f"{path}.{name}", member, theirs, found["callbacks"].get(name))
        elif theirs["kind"] == "function":
            yield f"{path}.{name} is a method"


def _find(name: str, entry: Mapping[str, Any], names: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for holder in (entry, *(names[base] for base in entry["bases"] if base in names)):
        if name in holder["members"]:
            return holder["members"][name]
    return None


def _parameters(
    path: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], callback: list[str] | None
) -> Iterator[str]:
    if ours["signatures"] is None or theirs["signatures"] is None:
        return
    found = [item["name"] for item in ours["signatures"][0]]
    allowed = [callback] if callback is not None else [[p["name"] for p in s] for s in theirs["signatures"]]
    if not any(_equal(found, names) for names in allowed):
        yield f"{path} takes {found}, the real one {allowed}"


def _equal(ours: list[str], theirs: list[str]) -> bool:
    unnamed = [name.startswith("arg") and name[3:].isdigit() for name in theirs]
    return len(ours) == len(theirs) and all(skip or a == b for a, b, skip in zip(ours, theirs, unnamed, strict=True))


@pytest.mark.parametrize("version", RELEASES)
def test_simulated_tensorrt_matches_the_real_one(version: str, tensorrt_surface: Callable[[str], Surface]) -> None:
    real = tensorrt_surface(version)
    is_rtx = version.startswith("rtx")
    option = {"SIMULATED_TENSORRT_RTX" if is_rtx else "SIMULATED_TENSORRT": RELEASES[version]}
    simulated = read_surface(f"tensorrt={'tensorrt_rtx' if is_rtx else 'tensorrt'}", path=SITE, **option)
    assert simulated["versions"] == real["versions"]
    assert len(simulated["names"]) > 20
    assert list(differences(simulated, real)) == []


def test_simulated_cuda_matches_the_real_one(cuda_surface: Surface) -> None:
    offered = [name for name in CUDA_PACKAGES if (SITE / name.replace(".", "/")).with_suffix(".py").exists()]
    offered += [name for name in CUDA_PACKAGES if (SITE / name.replace(".", "/") / "__init__.py").exists()]
    simulated = read_surface(*(f"{name}={name}" for name in offered), path=SITE)
    assert len(simulated["names"]) > 20
    assert list(differences(simulated, cuda_surface)) == []


def test_a_difference_is_found(tensorrt_surface: Callable[[str], Surface]) -> None:
    real = tensorrt_surface("11.4")
    builder = real["names"]["tensorrt.Builder"]
    members = {
        **builder["members"],
        "create_engine": builder["members"]["create_network"],
        "create_network": {"kind": "function", "signatures": [[{"name": "options"}]], "returns": ""},
        "max_threads": builder["members"]["create_network"],
    }
    offer = {"names": {"tensorrt.Builder": {**builder, "members": members}, "tensorrt.Magic": builder}}
    assert list(differences(offer, real)) == [
        "tensorrt.Builder.create_network takes ['options'], the real one [['flags']]",
        "tensorrt.Builder.max_threads is a property, not a method",
        "tensorrt.Builder.create_engine does not exist",
        "tensorrt.Magic does not exist",
    ]
