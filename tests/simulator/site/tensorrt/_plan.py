"""A plan: the real header (magic, zero, version at bytes 24 to 27), then a description, then the graph."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

from ._enums import IS_RTX, VERSION_TUPLE

MAGIC = b"vtrt" if IS_RTX else b"ftrt"
HEADER_BYTES = 32
# Where engines of TensorRT-RTX run.
RTX_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0", "12.1")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorPlan:
    """One input or output: name, DataType's name, shape with -1 where it is free, mode."""

    name: str
    dtype: str
    shape: Shape
    is_input: bool


@dataclass(frozen=True)
class Plan:
    """The content of a plan. `profiles`: per profile and input (min, opt, max)."""

    version: tuple[int, ...]
    gpu: str
    compute_capability: str
    tensors: tuple[TensorPlan, ...]
    profiles: tuple[dict[str, tuple[Shape, Shape, Shape]], ...]
    flags: tuple[str, ...]
    verbosity: str
    aux_streams: int
    hardware_compatibility: str
    level: int
    graph: bytes = field(repr=False)

    def pack(self) -> bytes:
        """The plan's bytes."""
        about = {key: value for key, value in asdict(self).items() if key != "graph"}
        about["sha256"] = hashlib.sha256(self.graph).hexdigest()
        text = json.dumps(about).encode()
        header = MAGIC + struct.pack("<IQQ", 0, len(text), len(self.graph)) + bytes(self.version) + bytes(4)
        return header + text + self.graph


class PlanDamagedError(Exception):
    """Bytes are not a plan of this version."""


def unpack(data: bytes) -> Plan:
    """Read a plan. Raises PlanDamagedError with the message of the real library."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        raise PlanDamagedError("Magic tag does not match")
    _, text_bytes, graph_bytes = struct.unpack("<IQQ", data[4:24])
    if len(data) != HEADER_BYTES + text_bytes + graph_bytes:
        raise PlanDamagedError("Serialization assertion failed: the engine is truncated or corrupted")
    graph = data[HEADER_BYTES + text_bytes :]
    try:
        about: dict[str, Any] = json.loads(data[HEADER_BYTES : HEADER_BYTES + text_bytes])
        digest = about.pop("sha256")
        tensors = tuple(TensorPlan(**{**item, "shape": tuple(item["shape"])}) for item in about.pop("tensors"))
        profiles = tuple(
            {name: tuple(tuple(shape) for shape in shapes) for name, shapes in profile.items()}
            for profile in about.pop("profiles")
        )
        about |= {"version": tuple(data[24:28]), "flags": tuple(about["flags"])}
        plan = Plan(tensors=tensors, profiles=profiles, graph=graph, **about)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError) as error:
        raise PlanDamagedError(f"Serialization assertion failed: {error}") from error
    if hashlib.sha256(graph).hexdigest() != digest:
        raise PlanDamagedError("Serialization assertion failed: checksum mismatch")
    return plan


def load_error(plan: Plan, compute_capability: str, *, host_code_allowed: bool) -> str | None:
    """The real library's message where a plan does not load on this version and device, else None."""
    expected = ".".join(map(str, VERSION_TUPLE))
    if "VERSION_COMPATIBLE" in plan.flags:
        if not host_code_allowed:
            return "Cannot deserialize engine with lean runtime since IRuntime::getEngineHostCodeAllowed() is false."
        if plan.version > VERSION_TUPLE:
            return f"The engine plan file is not compatible with this version of TensorRT, expecting {expected}"
    elif plan.version != VERSION_TUPLE:
        found = ".".join(map(str, plan.version))
        return (
            "The engine plan file is not compatible with this version of TensorRT, expecting library version "
            f"{expected} got {found}, please rebuild."
        )
    return _device_error(plan, compute_capability)


def _device_error(plan: Plan, compute_capability: str) -> str | None:
    if IS_RTX:
        is_known = compute_capability in RTX_CAPABILITIES
        return None if is_known else f"compute capability {compute_capability} is not supported"
    here, there = (
        tuple(int(part) for part in text.split(".")) for text in (compute_capability, plan.compute_capability)
    )
    if plan.hardware_compatibility == "AMPERE_PLUS" and here >= (8, 0):
        return None
    if here != there:
        return (
            "The engine plan file is generated on an incompatible device, expecting compute "
            f"{compute_capability} got compute {plan.compute_capability}, please rebuild."
        )
    return None
