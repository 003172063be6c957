"""The simulated NVTX: records ranges, and asserts that every range that is popped was pushed."""

from __future__ import annotations

from dataclasses import dataclass, field

__version__ = "0.2.17"
domains: dict[str, Domain] = {}


@dataclass(frozen=True)
class EventAttributes:
    """The attributes of a range."""

    message: str


@dataclass
class Domain:
    """`shown`: (nesting depth, message) of every range, in the order of their begins."""

    shown: list[tuple[int, str]] = field(default_factory=list)
    depth: int = 0

    def get_event_attributes(self, message: str) -> EventAttributes:
        return EventAttributes(message)

    def push_range(self, attributes: EventAttributes) -> None:
        self.shown.append((self.depth, attributes.message))
        self.depth += 1

    def pop_range(self) -> None:
        assert self.depth, "a range is popped that was not pushed"
        self.depth -= 1


def get_domain(name: str) -> Domain:
    return domains.setdefault(name, Domain())
