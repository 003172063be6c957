"""A session's audio as a stream, and its pace."""

from __future__ import annotations

import asyncio
from typing import Self

import numpy as np
import pytest
from helpers.live_clients import ready

from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import ServerMessage
from server.protocols.lyria.audio import AHEAD_S, CHUNK_S, LEAST_AHEAD_S, AudioStream, Pace

pytestmark = pytest.mark.anyio
RATE_HZ = 1000
SIZE = round(CHUNK_S * RATE_HZ)


def chunk(start: int, level: float, seq: int = 0, samples: int = SIZE, channels: int = 1) -> AudioChunk:
    return AudioChunk(1, start, np.full((samples, channels), level, np.float32), full_seq=seq)


@pytest.fixture
def messages() -> list[ServerMessage]:
    """What streams passed on."""
    return []


@pytest.fixture
async def stream(messages: list[ServerMessage]) -> AudioStream:
    return AudioStream(RATE_HZ, 1, lambda: None, messages.append)


async def write(stream: AudioStream, *chunks: AudioChunk) -> None:
    for each in chunks:
        stream.on_audio(each)
    await asyncio.sleep(0)


def pcm_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").reshape(-1, 2)


async def test_what_was_given_is_not_taken_back_and_the_rest_is_replaced(stream: AudioStream) -> None:
    await write(stream, chunk(0, 0.25, samples=2 * SIZE))
    seq, _ = stream.read()
    assert (seq, stream.ring.playhead_sample / RATE_HZ) == (0, CHUNK_S)
    await write(stream, chunk(SIZE // 2, 0.5, seq=3, samples=2 * SIZE))
    seq, data = stream.read()
    assert seq == 3
    assert not stream.has_chunk
    assert len(pcm_of(data)) > 0


async def test_samples_are_stereo_at_48_khz(stream: AudioStream) -> None:
    sent = []
    for index in range(10):
        await write(stream, chunk(index * SIZE, 0.5))
        sent.append(pcm_of(stream.read()[1]))
    pcm = np.concatenate(sent)
    assert abs(len(pcm) - 10 * CHUNK_S * 48_000) < 2400
    assert np.array_equal(pcm[:, 0], pcm[:, 1])
    assert np.median(pcm) == pytest.approx(16384, abs=2)


async def test_the_channels_of_stereo_stay_apart() -> None:
    stream = AudioStream(48_000, 2, lambda: None, lambda message: None)
    await write(stream, AudioChunk(1, 0, np.tile(np.array([[0.5, -0.5]], np.float32), (9600, 1))))
    assert np.array_equal(pcm_of(stream.read()[1])[0], [16384, -16384])


async def test_nothing_of_before_a_reset_is_given(stream: AudioStream) -> None:
    await write(stream, chunk(0, 0.25))
    stream.begin_at(5)
    await write(stream, chunk(SIZE, 0.25, seq=4))
    assert not stream.has_chunk
    await write(stream, chunk(2 * SIZE + 60, 0.5, seq=5), chunk(3 * SIZE + 60, 0.5, seq=5))
    assert stream.read()[0] == 5
    assert stream.ring.playhead_sample == 3 * SIZE + 60


async def test_a_session_that_is_ready_again_goes_on_where_it_says(stream: AudioStream) -> None:
    await write(stream, chunk(0, 0.25, samples=2 * SIZE))
    stream.on_message(ready(next_sample=5 * SIZE))
    await asyncio.sleep(0)
    assert not stream.has_chunk
    assert stream.ring.playhead_sample == 5 * SIZE
    await write(stream, chunk(5 * SIZE, 0.5))
    assert pcm_of(stream.read()[1])[-1, 0] == pytest.approx(16384, abs=2)


async def test_messages_come_on_the_event_loop_until_the_end(
    stream: AudioStream, messages: list[ServerMessage]
) -> None:
    stream.on_message(ready())
    stream.close()
    stream.on_message(ready())
    await asyncio.sleep(0)
    assert messages == [ready()]


class TimedPace(Pace):
    """By a clock that the test sets."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s)

    def at(self, now_s: float) -> Self:
        self.now_s = now_s
        return self

    def sent(self) -> int:
        """Chunks that may be sent now, all of which are sent."""
        count = 0
        while self.wait_s() <= 1e-9:
            self.send()
            count += 1
        return count


def test_the_pace_is_2_s_ahead_then_real_time() -> None:
    pace = TimedPace()
    pace.at(10.0).play()
    assert pace.at(10.0).sent() == round(AHEAD_S / CHUNK_S)
    assert pace.wait_s() == pytest.approx(CHUNK_S)
    assert pace.wait_s(LEAST_AHEAD_S) == pytest.approx(AHEAD_S - LEAST_AHEAD_S + CHUNK_S)
    assert [pace.at(10.0 + index * CHUNK_S).sent() for index in range(1, 6)] == [1, 1, 1, 1, 1]


def test_a_client_that_had_nothing_left_is_served_ahead_again() -> None:
    pace = TimedPace()
    pace.at(0.0).play()
    pace.at(0.0).sent()
    assert pace.at(60.0).sent() == round(AHEAD_S / CHUNK_S)


def test_a_pause_keeps_what_the_client_has_and_a_stop_does_not() -> None:
    pace = TimedPace()
    pace.at(0.0).play()
    pace.at(0.0).sent()
    pace.at(1.0).pause()
    pace.at(100.0).play()
    assert pace.at(100.0).sent() == round(1.0 / CHUNK_S)
    pace.at(100.0).pause()
    pace.stop()
    pace.at(200.0).play()
    assert pace.at(200.0).sent() == round(AHEAD_S / CHUNK_S)
