"""The receiving side of a live connection."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from helpers.fake_live_host import CHANNELS, RATE_HZ, FakeHost

from runtime.base.errors import RequestError
from runtime.live.protocol.messages import MAX_MESSAGE_BYTES, WriteAudio
from server.asgi.shares import RateLimit
from server.live.incoming import Incoming, ViolationError, WriteError, num_counted

WRITE = {"type": "write", "seq": 3, "at_s": 0.5, "samples": 4, "format": "s16"}


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def incoming(host: FakeHost) -> Incoming:
    return Incoming(host, "one", RATE_HZ, CHANNELS)  # type: ignore[arg-type]


def text(**members: Any) -> str:
    return json.dumps(members)


def test_events_beyond_the_limit_are_not_taken_and_do_not_count() -> None:
    clock = iter([0.0, 0.5, 0.5, 0.9, 1.0, 1.4])
    limit = RateLimit(3, 1.0, lambda: next(clock))
    assert [limit.take(count) for count in (1, 3, 2, 1, 1, 1)] == [True, False, True, False, True, False]


def test_messages_are_posted_in_order(host: FakeHost, incoming: Incoming) -> None:
    incoming.take(text(type="set", seq=1, values={"guidance": 3}))
    incoming.take(text(type="ack", playhead_sample=5))
    incoming.take(text(type="close"))
    assert [message.type for message, _ in host.posted] == ["set", "ack", "close"]


def test_a_write_is_posted_with_its_audio(host: FakeHost, incoming: Incoming) -> None:
    incoming.take(text(**WRITE))
    incoming.take(text(type="ack", playhead_sample=5))
    assert [message.type for message, _ in host.posted] == ["ack"]
    incoming.take(np.arange(8, dtype="<i2").tobytes())
    message, pcm = host.posted[-1]
    assert isinstance(message, WriteAudio)
    assert pcm.shape == (4, CHANNELS)
    assert pcm[3, 1] == pytest.approx(7 / 32767)


@pytest.mark.parametrize(
    ("before", "refused", "kind", "error", "posted"),
    [
        ([text(**WRITE)], bytes(15), WriteError, "15 bytes of audio, expected 16", []),
        ([text(**WRITE)], text(type="set", seq=4, values={}), WriteError, "seq 3 did not follow", ["set"]),
        ([], text(**{**WRITE, "samples": 480_001}), RequestError, "at most 480000", []),
        ([], bytes(4), RequestError, "a binary message without a write", []),
        ([bytes(4)], bytes(4), ViolationError, "a binary message without a write", []),
        ([], " " * (MAX_MESSAGE_BYTES + 1), ViolationError, "larger than", []),
        ([], text(type="set", seq=1, **dict.fromkeys(map(str, range(1000)), 1)), RequestError, "than 1000 members", []),
        ([], text(type="open"), RequestError, "the session is open", []),
    ],
)
def test_what_is_refused(
    before: list[str | bytes],
    refused: str | bytes,
    kind: type[RequestError],
    error: str,
    posted: list[str],
    host: FakeHost,
    incoming: Incoming,
) -> None:
    for data in before:
        with suppress(RequestError):
            incoming.take(data)
    with pytest.raises(kind, match=error) as found:
        incoming.take(refused)
    assert isinstance(found.value, ViolationError | WriteError) == (kind is not RequestError)
    assert getattr(found.value, "seq", 3) == 3
    is_large = len(refused) > MAX_MESSAGE_BYTES
    assert getattr(found.value, "reason", "violation") == ("too_large" if is_large else "violation")
    assert [message.type for message, _ in host.posted] == posted


def test_a_long_text_counts_more_than_a_short_one_and_than_audio() -> None:
    assert [num_counted(data) for data in ("{}", " " * 2048, b"")] == [1, 3, 1]


def test_a_rate_limit_spreads_what_exceeds_it() -> None:
    now_s = 0.0
    limit = RateLimit(3, 1.0, lambda: now_s)
    assert [limit.wait_s() for _ in range(5)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    now_s = 5.0
    assert limit.wait_s() == 0.0
    assert limit.wait_s(3) == 1.0
    now_s = 10.0
    assert limit.wait_s(7) == 2.0
