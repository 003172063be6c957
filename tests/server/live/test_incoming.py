"""The receiving side of a live connection."""

from __future__ import annotations

import json
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


def test_audio_of_another_length_is_refused(host: FakeHost, incoming: Incoming) -> None:
    incoming.take(text(**WRITE))
    with pytest.raises(WriteError, match="15 bytes of audio, expected 16") as error:
        incoming.take(bytes(15))
    assert error.value.seq == 3
    assert not host.posted


def test_a_write_without_audio_is_dropped_and_what_follows_is_posted(host: FakeHost, incoming: Incoming) -> None:
    incoming.take(text(**WRITE))
    with pytest.raises(WriteError, match="seq 3 did not follow"):
        incoming.take(text(type="set", seq=4, values={}))
    assert [message.type for message, _ in host.posted] == ["set"]


def test_a_write_of_more_than_ten_seconds_is_refused(incoming: Incoming) -> None:
    with pytest.raises(RequestError, match="at most 480000"):
        incoming.take(text(**{**WRITE, "samples": 480_001}))


def test_stray_audio_is_refused_once_and_then_a_violation(incoming: Incoming) -> None:
    with pytest.raises(RequestError) as first:
        incoming.take(bytes(4))
    assert not isinstance(first.value, ViolationError)
    with pytest.raises(ViolationError):
        incoming.take(bytes(4))


def test_a_message_that_is_too_large_is_a_violation(incoming: Incoming) -> None:
    with pytest.raises(ViolationError) as error:
        incoming.take(" " * (MAX_MESSAGE_BYTES + 1))
    assert error.value.reason == "too_large"


def test_a_message_with_too_many_members_is_refused(host: FakeHost, incoming: Incoming) -> None:
    with pytest.raises(RequestError, match="more than 1000 members"):
        incoming.take(text(type="set", seq=1, **{f"k{number}": 1 for number in range(1000)}))
    assert not host.posted


def test_a_long_text_counts_more_than_a_short_one_and_than_audio() -> None:
    assert [num_counted(data) for data in ("{}", " " * 2048, b"")] == [1, 3, 1]


def test_a_second_open_is_refused(host: FakeHost, incoming: Incoming) -> None:
    with pytest.raises(RequestError, match="the session is open"):
        incoming.take(text(type="open"))
    assert not host.posted


def test_a_rate_limit_spreads_what_exceeds_it() -> None:
    now_s = 0.0
    limit = RateLimit(3, 1.0, lambda: now_s)
    assert [limit.wait_s() for _ in range(5)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    now_s = 5.0
    assert limit.wait_s() == 0.0
    assert limit.wait_s(3) == 1.0
    now_s = 10.0
    assert limit.wait_s(7) == 2.0
