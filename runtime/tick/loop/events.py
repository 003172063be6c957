"""The events of a generation, which its listener receives on the tick thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runtime.base.errors import TickError


@dataclass(frozen=True, slots=True)
class Started:
    """A generation took a slot; its first step is in this tick."""

    request_id: str
    tick: int


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` of `steps` are done."""

    request_id: str
    step: int
    steps: int
    tick: int
    tick_ms: float


@dataclass(frozen=True, slots=True)
class Updated:
    """Its step parameters changed: the step of this tick and all later ones use the new ones."""

    request_id: str
    tick: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The clean latents `[T, C]` float32, of a sequence its new tokens int64; the array belongs to the receiver."""

    request_id: str
    latents: NDArray[Any]
    tick: int
    steps: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended with an error."""

    request_id: str
    error: TickError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The generation was cancelled; nothing of it runs any more. `replaced_by` is the newer one of its session."""

    request_id: str
    replaced_by: str = ""


Event = Started | Progress | Updated | Finished | Failed | Cancelled
