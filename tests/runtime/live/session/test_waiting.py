"""Messages that wait for their sample: their order, and how they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.base.errors import StoreError
from runtime.live.playback.canvas import Piece
from runtime.live.protocol.messages import LivePrompt, SetPrompts, SetSource
from runtime.live.session.waiting import Waiting, WaitingMessages

PIECE = Piece("p", np.zeros((2, 1), np.float32))


def prompts(seq: int, at_sample: int) -> Waiting:
    return Waiting(at_sample, SetPrompts(seq=seq, items=[LivePrompt(text="a")]), None)


def taken(messages: WaitingMessages, before_sample: float) -> list[int]:
    return [item.message.seq for item in messages.take(before_sample)]


def test_they_are_taken_once_in_the_order_of_their_samples() -> None:
    messages = WaitingMessages([prompts(1, 300), prompts(2, 100)])
    messages.add(prompts(3, 200))
    messages.add(prompts(4, 100))
    assert taken(messages, 100) == []
    assert taken(messages, 201) == [2, 4, 3]
    assert taken(messages, 301) == [1]
    assert taken(messages, 1e9) == []


def test_what_is_stored_waits_again_with_its_latents() -> None:
    source = SetSource(seq=2, id="x", strength=0.5)
    stored = WaitingMessages([prompts(1, 300), Waiting(100, source, PIECE)]).stored(lambda piece: piece.name)
    assert [(sample, values["type"], name) for sample, values, name in stored] == [
        (100, "source", "p"),
        (300, "prompts", None),
    ]
    restored = WaitingMessages.restored([(sample, values, name) for sample, values, name in stored], {"p": PIECE}.get)  # type: ignore[arg-type]
    first, second = restored.take(1e9)
    assert (first.message, first.piece) == (source, PIECE)
    assert (second.message, second.piece) == (prompts(1, 300).message, None)


@pytest.mark.parametrize(
    ("values", "what"), [({"type": "play"}, "waiting: play does not wait"), ({"type": "prompts"}, "waiting: ")]
)
def test_what_does_not_wait_is_damaged(values: dict[str, Any], what: str) -> None:
    with pytest.raises(StoreError, match=what):
        WaitingMessages.restored([(1, values, None)], lambda name: PIECE)
