"""The latents of a session's state by name, and what refers to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runtime.config.codec import Latents
from runtime.live.playback.canvas import CanvasPart, Piece, PlacedSource
from runtime.live.storage.document import StoredPart, StoredSource, damaged


class Pieces:
    """The arrays of a snapshot by name; equal names are one piece. What loads raises StoreError for what is damaged."""

    def __init__(self, arrays: Mapping[str, Latents] | None = None) -> None:
        self.arrays = dict(arrays or {})
        self._pieces: dict[str, Piece] = {}

    def store(self, piece: Piece) -> str:
        """Add a piece; returns its name."""
        self.arrays[piece.name] = piece.latents
        return piece.name

    def load(self, name: str) -> Piece:
        """The piece of a name."""
        latents = self.arrays.get(name)
        if latents is None or latents.dtype.kind != "f" or latents.ndim != 2 or not latents.size:
            raise damaged(f"{name!r:.60} are no latents")
        return self._pieces.setdefault(name, Piece(name, latents))

    def store_parts(self, parts: Iterable[CanvasPart]) -> list[StoredPart]:
        """What `load_parts` takes."""
        return [
            (self.store(part.piece), part.row, part.start, part.end, part.first_seq, part.full_seq) for part in parts
        ]

    def load_parts(self, stored: Iterable[StoredPart], channels: int | None = None) -> tuple[CanvasPart, ...]:
        """Parts that follow each other, of pieces with so many channels; None: any."""
        parts = tuple(CanvasPart(self.load(name), *rest) for name, *rest in stored)
        ends = (*(part.start for part in parts[1:]), parts[-1].end) if parts else ()
        for part, end in zip(parts, ends, strict=True):
            rows, width = part.piece.latents.shape
            is_inside = part.start < part.end == end and part.row + part.end - part.start <= rows
            if not is_inside or channels not in (None, width):
                raise damaged(f"the parts of {part.piece.name!r:.60} do not fit")
        return parts

    def store_source(self, source: PlacedSource | None) -> StoredSource | None:
        """What `load_source` takes."""
        return None if source is None else (source.id, source.strength, self.store(source.piece), source.start)

    def load_source(self, stored: StoredSource | None) -> PlacedSource | None:
        """A source, or a structure."""
        if stored is None:
            return None
        source_id, strength, name, start = stored
        return PlacedSource(source_id, strength, self.load(name), start)
