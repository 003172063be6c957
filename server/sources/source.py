"""What is known of an uploaded source, and where the bytes of sources are kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, Self

NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,9})\.(audio|latents)")


@dataclass(frozen=True)
class Source:
    """One source. `id`: SHA-256 of its bytes, in hexadecimal. `kind`: audio or latents."""

    id: str
    milliseconds: int
    kind: str
    size_bytes: int

    @property
    def name(self) -> str:
        """Everything but the size, as the name of its file."""
        return f"{self.id}.{self.milliseconds}.{self.kind}"

    @classmethod
    def named(cls, name: str, size_bytes: int) -> Self | None:
        """The source of a name; None for the name of something else."""
        match = NAME.fullmatch(name)
        return None if match is None else cls(match[1], int(match[2]), match[3], size_bytes)


class SourceFiles(Protocol):
    """The bytes of sources, in the order of their last use. Any thread may call; every method raises StoreError."""

    def all(self) -> list[Source]:
        """Every source, the one used last at the end."""

    def find(self, source_id: str) -> Source | None:
        """One source, which counts as used now; None where there is none of this id."""

    def read(self, source: Source) -> bytes:
        """The bytes of a source; b"" where they are gone."""

    def add(self, source: Source, data: bytes) -> None:
        """Keep a source's bytes; it counts as used now."""

    def remove(self, source: Source) -> bool:
        """Delete a source; whether it was there."""

    def close(self) -> None:
        """Release what is open."""
