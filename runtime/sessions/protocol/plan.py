"""Messages of a session's plan: the sections of what is played next, with their structure codes, and edits of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from runtime.sessions.protocol.base import Count, Identifier, Message, Seconds, Seq

MAX_SECTIONS = 64
MAX_CODES = 4096


class PlanChoices(Message):
    """What a section can be.

    group_size: a code has a digit of so many values for each layer, the first layer's counting 1; 0: of another kind.
    silent: of each layer the digit of its silence; empty where that is not known.
    """

    kinds: list[str]
    layers: list[str]
    bars: list[int]
    group_size: Count = 0
    silent: list[Count] = Field(default_factory=list)


class NewSection(Message):
    """A section that a client asks for."""

    kind: Identifier
    layers: Annotated[list[Identifier], Field(min_length=1, max_length=64)]
    bars: int = Field(ge=1, le=1024)


class SectionMessage(NewSection):
    """A section of the plan. `codes`: its structure codes, once all of them are there."""

    index: Count
    start_s: float
    end_s: float
    codes: list[int] | None


class Plan(Message):
    """The plan from what is near the playhead on, where it has changed and at the beginning. Times are the canvas'."""

    type: Literal["plan"] = "plan"
    header: dict[str, Any] = Field(description="Of the whole plan: genre, bpm, meter, key and more.")
    sections: list[SectionMessage]


class SetPlan(Message):
    """Replaces what is not played yet: the sections from the start of one on, codes from one on, or both.

    What follows is planned by itself. `start_s`: seconds on the canvas. Beside sections, `codes` are those of the first
    of them, from its beginning on.
    """

    type: Literal["set_plan"] = "set_plan"
    seq: Seq
    start_s: Seconds
    sections: Annotated[list[NewSection], Field(max_length=MAX_SECTIONS)] | None = None
    codes: Annotated[list[Count], Field(min_length=1, max_length=MAX_CODES)] | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.sections and self.codes is not None and self.sections is not None:
            raise PydanticCustomError("some", "codes beside sections need a section that they are of")
        if self.sections is None and self.codes is None:
            raise PydanticCustomError("some", "needs sections or codes")
        return self


class GetPlan(Message):
    """Asks for the plan."""

    type: Literal["get_plan"] = "get_plan"
