"""What was received: read in order, not faster than a change is made; kept where a session is resumed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_clients import ready
from helpers.lock_check import lock_checked

from runtime.base.errors import DrainingError, RequestError
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, Closed, problem_of
from tickrt import receiver as receiver_module
from tickrt.receiver import RESUMED_S, Receiver

Checked = lock_checked(
    Receiver, "ring", "_error", "_end", "_pending_seq", "_pending_s", "_pending_sample", lock="_changed"
)


def received(start: int, end: int, value: float = 1.0) -> Receiver:
    receiver = Checked(1000, 1)
    receiver.on_message(ready(next_sample=start))
    receiver.on_audio(AudioChunk(1, start, np.full((end - start, 1), value, np.float32)))
    return receiver


def test_a_change_that_is_being_made_is_not_outrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the test sets: 1000 samples per second are there, 4 s of them."""
    now_s = 10.0
    monkeypatch.setattr(receiver_module.time, "monotonic", lambda: now_s)
    receiver = Checked(1000, 1)
    receiver.on_audio(AudioChunk(1, 0, np.ones((4000, 1), np.float32)))
    slack = round(receiver_module.PACE_SLACK_S * 1000)
    assert len(receiver.read(100)) == 100
    receiver.expect(7)
    assert len(receiver.read(4000)) == slack
    now_s += 0.5
    assert len(receiver.read(4000)) == 500
    receiver.on_message(Applied(seq=6, first_sample=700))
    now_s += 0.1
    assert len(receiver.read(4000)) == 100
    receiver.on_message(Applied(seq=7, first_sample=900))
    assert len(receiver.read(4000)) == 4000 - 700 - slack


@pytest.mark.parametrize("next_sample", [100, 300, 350, 400])
def test_what_was_received_stays_where_the_session_is_resumed_a_little_before_its_end(next_sample: int) -> None:
    receiver = received(0, 400)
    receiver.read(300)
    receiver.on_message(ready(next_sample=next_sample, resumed=True, epoch=2))
    receiver.on_audio(AudioChunk(2, next_sample, np.full((600 - next_sample, 1), 1.0, np.float32)))
    assert len(receiver.read(1000)) == 300


@pytest.mark.parametrize(("next_sample", "is_resumed"), [(401, True), (300, False)])
def test_what_was_received_goes_where_other_audio_follows(next_sample: int, is_resumed: bool) -> None:
    receiver = received(0, 400)
    receiver.read(300)
    receiver.on_message(ready(next_sample=next_sample, resumed=is_resumed, epoch=2))
    with receiver._changed:
        assert receiver.ring.playhead_sample == receiver.ring.end_sample == next_sample


def test_a_new_canvas_begins_where_it_says_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    receiver = received(0, 400)
    receiver.read(300)
    receiver.on_message(ready(next_sample=0, resumed=True, epoch=2, notice="another model made the canvas"))
    with receiver._changed:
        assert receiver.ring.playhead_sample == receiver.ring.end_sample == 0
    assert "another model made the canvas" in caplog.text


def test_a_session_that_has_failed_gives_what_was_received_and_then_its_error() -> None:
    receiver = received(0, 400)
    receiver.fail(DrainingError("the server is gone"))
    assert len(receiver.read(1000)) == 400
    for _ in range(2):
        with pytest.raises(DrainingError, match="the server is gone"):
            receiver.read(1)


def test_what_is_too_far_ahead_goes() -> None:
    for back, kept in ((round(RESUMED_S * 1000), 11_000), (round(RESUMED_S * 1000) + 1, 0)):
        receiver = received(back, 11_000)
        receiver.on_message(ready(next_sample=0, resumed=True, epoch=2))
        with receiver._changed:
            assert receiver.ring.end_sample == kept


def test_the_end_is_raised_by_every_read_after_the_last_sample_and_a_problem_once() -> None:
    receiver = received(0, 10)
    receiver.on_message(problem_of(RequestError("wrong", field="a")))
    receiver.on_message(Closed(reason="deleted", resumable=False))
    assert len(receiver.read(100)) == 10
    with pytest.raises(RequestError):
        receiver.read(100)
    for _ in range(2):
        with pytest.raises(DrainingError, match="deleted"):
            receiver.read(100)
