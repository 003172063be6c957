"""Prompts and references that begin at a sample that is to come, and how they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.base.errors import RequestError
from runtime.live.playback.canvas import Piece
from runtime.live.protocol.messages import SetPrompts, SetReference, client_message
from runtime.live.protocol.server_messages import message_text
from runtime.live.storage.document import damaged

# Of all kinds together: also controls, bands and positions that begin at a sample.
MAX_WAITING = 256
Change = SetPrompts | SetReference


@dataclass(frozen=True, eq=False)
class Waiting:
    """A message that is carried out at `at_sample`; piece: the latents that came with it, as for LiveSession.handle."""

    at_sample: int
    message: Change
    piece: Piece | None


class WaitingMessages:
    """Those of one session, in the order of their samples."""

    def __init__(self, items: Sequence[Waiting] = ()) -> None:
        self._items = sorted(items, key=lambda each: each.at_sample)

    def add(self, item: Waiting) -> None:
        """Let a message wait."""
        self._items = sorted([*self._items, item], key=lambda each: each.at_sample)

    def take(self, before_sample: float) -> list[Waiting]:
        """Those that begin before a sample; they wait no longer."""
        begun = [item for item in self._items if item.at_sample < before_sample]
        self._items = self._items[len(begun) :]
        return begun

    def stored(self, store: Callable[[Piece], str]) -> list[list[Any]]:
        """JSON values that `restored` takes. store: gives a piece's name."""
        return [
            [item.at_sample, json.loads(message_text(item.message)), None if item.piece is None else store(item.piece)]
            for item in self._items
        ]

    @classmethod
    def restored(
        cls, stored: Sequence[tuple[int, Mapping[str, Any], str | None]], load: Callable[[str], Piece]
    ) -> WaitingMessages:
        """Those of a document. load: gives the piece of a name. Raises StoreError where it is damaged."""
        return cls(
            [Waiting(sample, _change(values), None if name is None else load(name)) for sample, values, name in stored]
        )


def _change(values: Mapping[str, Any]) -> Change:
    try:
        message = client_message(values)
    except RequestError as error:
        raise damaged(f"waiting: {error}") from None
    if not isinstance(message, Change):
        raise damaged(f"waiting: {message.type} does not wait")
    return message
