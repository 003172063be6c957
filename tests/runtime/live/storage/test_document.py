"""Documents of stored sessions with any JSON value at any place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.limits import assert_limits
from helpers.live_simulation import CHANNELS, MODEL, PLANNING, Simulation, new_session
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.errors import RequestError, StoreError
from runtime.live.protocol import messages
from runtime.live.protocol.messages import Ack, LivePrompt
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.document import MAX_NUMBER, StoredSession
from runtime.live.storage.store import DOCUMENT, SessionSnapshot, _seal, decode_snapshot, encode_piece

NUMBERS = st.integers() | st.sampled_from([-1, 0, 1, 2**31, 2**53, MAX_NUMBER + 1, 2**64, 10**30]) | st.floats()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=8)
    | st.sampled_from(["guidance", "steps", "loop", "extend"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
LATENTS = np.zeros((5, CHANNELS), np.float32)


@cache
def sessions() -> list[Simulation]:
    """With everything that a snapshot can have."""
    loop = Simulation(new_session(controls={"variation": 0.4}, prompts=[LivePrompt(text="a"), LivePrompt(text="b")]))
    loop.run(0.5)
    loop.handle(messages.SetSource(seq=1, id="x", strength=0.5), LATENTS)
    loop.handle(messages.SetTimbre(seq=2, id="x", strength=0.5), LATENTS)
    loop.set(3, ramp_ms=5000.0, guidance=5.0)
    loop.set(4, at=30.0, guidance=1.0)
    loop.handle(messages.SetPrompts(seq=5, items=[LivePrompt(text="c")], ramp_ms=3000.0))
    loop.run(0.3)
    extend = Simulation(new_session(mode="extend", plan=True, prompts=[LivePrompt(text="a")]))
    extend.run(3.0)
    extend.handle(messages.SetBand(seq=1, start_s=0.2, end_s=0.8))
    extend.handle(messages.SetStructure(seq=2, id="x", strength=0.5), LATENTS)
    extend.run(0.1)
    return [loop, extend]


@cache
def stored(number: int) -> tuple[dict[str, Any], dict[str, bytes], list[tuple[Any, ...]]]:
    """A document, its pieces, and the places of the document; not of the plan's state, which is the planner's."""
    simulation = sessions()[number]
    snapshot = simulation.session.snapshot(simulation.now_s)
    document = {"meta": snapshot.meta, "pieces": sorted(snapshot.pieces)}
    pieces = {name: encode_piece(name, array) for name, array in snapshot.pieces.items()}
    return json.loads(json.dumps(document)), pieces, [place for place in places(document) if "state" not in place]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(document: Any, place: tuple[Any, ...], value: Any, kind: str) -> Any:
    """The document with a value at a place, without what is there, or with a number that is a little different."""
    if not place:
        return value
    document = deepcopy(document)
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    before = parent[place[-1]]
    if kind == "removed":
        del parent[place[-1]]
    elif kind == "near" and isinstance(before, int | float):
        parent[place[-1]] = before + (value if isinstance(value, int) and abs(value) < 1000 else 1)
    else:
        parent[place[-1]] = value
    return document


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_value_at_any_place_gives_a_session_that_plays_or_the_error(data: st.DataObject) -> None:
    document, pieces, paths = stored(data.draw(st.sampled_from([0, 1])))
    place, kind = data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(["value", "removed", "near"]))
    sealed = _seal(DOCUMENT, json.dumps(changed(document, place, data.draw(VALUES), kind)).encode())
    try:
        session = LiveSession.restore(decode_snapshot(sealed, pieces), PLANNING, 0.0)
    except (RequestError, StoreError):
        return
    ready = session.attach("token", 0.0, keep_s=60.0)
    session.handle(Ack(playhead_sample=ready.next_sample), 0.1)
    for step in range(3):
        session.advance(0.1 + 0.3 * step, may_generate=True)
    json.dumps(session.snapshot(1.0).meta, allow_nan=False)


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (("playhead", "position"), "far", "playhead.position: Input should be a valid integer"),
        (("timeline", 0, "band"), [5, 5], "timeline: a band without frames"),
        (("timeline", 0, "parts", 0, 3), 10**6, "do not fit"),
        (("timeline", 0, "parts", 0, 0), "none", "'none' are no latents"),
        (("controls", "from_sample"), 10**12, "controls.from_sample is too far ahead"),
        (("controls", "ramps", "guidance", "end"), [1.0, 2.0], "controls.ramps.guidance has no values between"),
        (("token_sha256",), "ä", "token_sha256"),
    ],
)
def test_the_error_says_what_is_wrong(place: tuple[Any, ...], value: Any, what: str) -> None:
    document, pieces, _ = stored(0)
    meta = changed(document["meta"], place, value, "value")
    arrays = {name: sessions()[0].session.snapshot(0.0).pieces[name] for name in pieces}
    with pytest.raises(StoreError, match=what):
        LiveSession.restore(SessionSnapshot(meta, arrays), MODEL, 0.0)


def test_a_loop_without_a_canvas_has_not_all_changes() -> None:
    snapshot = new_session().snapshot(0.0)
    meta = changed(snapshot.meta, ("generations", "is_current"), True, "value")
    with pytest.raises(StoreError, match=r"generations\.is_current without a canvas"):
        LiveSession.restore(SessionSnapshot(meta, snapshot.pieces), MODEL, 0.0)


def test_the_limits_are_those_of_what_is_stored() -> None:
    assert_limits("stored", StoredSession)
