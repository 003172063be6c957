"""What is left when the loop has ended gets its error."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from helpers.generations import Inbox, make

from runtime.base.errors import DrainingError, EngineDeadError, EngineError, TickError
from runtime.tick.loop.registry import Registry
from runtime.tick.loop.shared import Cancel, LoopState, Rehearse, Snapshot, Stop, Submit, Swap


@pytest.mark.parametrize(
    ("fatal", "outcome"), [(None, "drained"), (EngineDeadError("the GPU has failed"), "engine_error")]
)
def test_generations_and_messages_that_are_left_end_with_an_error(fatal: TickError | None, outcome: str) -> None:
    engines: Any = None
    state, inbox, request = LoopState(engines, Registry(slots=1, queue=0), fatal=fatal), Inbox(), make("a")
    replies: list[Future[Any]] = [Future() for _ in range(4)]
    state.registry.enter(request, inbox)
    for message in (Submit(request, engines), Swap(engines, replies[1]), Rehearse(replies[2]), Cancel("b"), Stop()):
        state.inbox.put(message)
    state.inbox.put(Snapshot("a", replies[3]))
    state.end_leftovers([Snapshot("a", replies[0])])
    kinds = [type(reply.exception(0)) for reply in replies]
    assert kinds == [DrainingError, EngineError, EngineError, DrainingError]
    expected = DrainingError if fatal is None else EngineDeadError
    assert isinstance(inbox.terminal("a").error, expected)
    assert (state.registry.outcomes[outcome], len(state.registry), state.inbox.drain()) == (1, 0, [])
    with pytest.raises(expected):
        state.registry.enter(make("late"), inbox)
