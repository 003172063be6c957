"""What is known of an uploaded source, and where the bytes of sources are kept."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol, Self

from runtime.base.files import lost_audio

NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,9})\.(audio|latents)(?:\.([0-9a-f]{8}))?(?:\.lost(\d{1,9}))?")


@dataclass(frozen=True)
class Source:
    """One source. `id`: SHA-256 of its bytes, in hexadecimal. `kind`: audio or latents. `owner`: owner_of() its client,
    whose share it is part of; "" where that is not known. `lost_ms`: of its audio, what cannot be decoded.
    """

    id: str
    milliseconds: int
    kind: str
    size_bytes: int
    owner: str = ""
    lost_ms: int = 0

    @property
    def losses(self) -> list[str]:
        """What of it could not be decoded, as sentences."""
        return [lost_audio(self.lost_ms)] if self.lost_ms else []

    @property
    def name(self) -> str:
        """Everything but the size, as the name of its file."""
        owner, lost = f".{self.owner}" if self.owner else "", f".lost{self.lost_ms}" if self.lost_ms else ""
        return f"{self.id}.{self.milliseconds}.{self.kind}{owner}{lost}"

    def has(self, data: bytes) -> bool:
        """Whether bytes are those of this source."""
        return hashlib.sha256(data).hexdigest() == self.id

    @classmethod
    def named(cls, name: str, size_bytes: int) -> Self | None:
        """The source of a name; None for the name of something else."""
        match = NAME.fullmatch(name)
        if match is None:
            return None
        return cls(match[1], int(match[2]), match[3], size_bytes, match[4] or "", int(match[5] or 0))


def owner_of(client: str) -> str:
    """A client as the names of its sources have it."""
    return hashlib.sha256(client.encode()).hexdigest()[:8] if client else ""


class SourceFiles(Protocol):
    """The bytes of sources, in the order of their last use. Any thread may call; every method raises StoreError."""

    def all(self) -> list[Source]:
        """Every source, the one used last at the end."""

    def find(self, source_id: str) -> Source | None:
        """One source, which counts as used now; None where there is none of this id."""

    def read(self, source: Source) -> bytes:
        """The bytes of a source; b"" where they are gone."""

    def set_aside(self, source: Source) -> str:
        """Where the bytes of a source are kept from now on, which is none any more; "" where it has none, or its own.

        They are read once more: another thread may have done so, or brought the right ones, meanwhile.
        """

    def add(self, source: Source, data: bytes) -> None:
        """Keep a source's bytes; it counts as used now."""

    def remove(self, source: Source) -> bool:
        """Delete a source; whether it was there."""

    def close(self) -> None:
        """Release what is open."""
