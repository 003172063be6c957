"""Which words of a prompt are understood."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptWords:
    """The phrases of texts that the text encoder understands, and those that it has no token for.

    Both are as written, in the order of the texts, without repeats.
    """

    understood: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether something is understood and nothing is unknown."""
        return bool(self.understood) and not self.unknown

    def __str__(self) -> str:
        understood = f"understood: {', '.join(self.understood) or 'nothing'}"
        return f"{understood} · not understood: {', '.join(self.unknown)}" if self.unknown else understood
