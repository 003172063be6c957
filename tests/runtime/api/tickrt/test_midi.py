"""MIDI clock of live sessions, with simulated ports and a simulated time."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from helpers.lock_check import lock_checked

import tickrt
from runtime.base.errors import RequestError
from runtime.live.protocol.server_messages import Beat
from runtime.music.clock import CLOCK, CONTINUE, POSITION, START, STOP
from tickrt import midi
from tickrt.midi import MidiClock, Played, open_output

RATE, WAIT_S = 48_000, 30.0


Checked = lock_checked(MidiClock, "_in", "_begins", "_beat")


class Port:
    """Both an output and an input."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.receive: Callable[[Any, Any], None] = lambda message, data: None
        self.has_timing = False

    def send_message(self, message: bytes) -> None:
        self.sent.append(bytes(message))

    def set_callback(self, function: Callable[[Any, Any], None]) -> None:
        self.receive = function

    def ignore_types(self, *, timing: bool) -> None:
        self.has_timing = not timing


class Session:
    """A session at 120 beats a minute; its first bar begins at sample 0."""

    def __init__(self) -> None:
        self.beat: Beat | None = line(0)
        self.followed: list[tuple[float, int | None]] = []

    def follow(self, bpm: float, sample: int | None = None) -> None:
        self.followed.append((bpm, sample))
        if len(self.followed) == 1:
            raise RequestError("no beat is known")


class Set:
    """A clock with its session, its port and the time, which the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.session, self.port = Session(), Port()
        self.played = Played(RATE, lambda: self.now_s)
        self.clock = Checked(self.session, self.played, RATE, self.port, self.port)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let a little time pass again and again until the condition holds."""
        ends_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < ends_s, self.port.sent
            self.now_s += 0.002
            time.sleep(0.001)

    def count(self, kind: int) -> int:
        return sum(message[0] == kind for message in self.port.sent)


def line(bar: int, bpm: float = 120.0) -> Beat:
    return Beat(bpm=bpm, beats=4, bar=bar, phase=0.0, sample=bar * 2 * RATE)


def test_the_clock_starts_jumps_with_its_position_and_stops() -> None:
    found = Set()
    with found.clock:
        time.sleep(0.05)
        assert found.port.sent == []  # nothing is played
        found.played.note(0)
        found.until(lambda: found.count(CLOCK) >= 50)
        first = next(index for index, message in enumerate(found.port.sent) if message[0] in (START, CONTINUE))
        assert all(message == bytes([CLOCK]) for message in found.port.sent[first + 1 :])
        found.session.beat = line(33).model_copy(update={"sample": 0})
        found.clock.jump()
        found.until(lambda: found.count(CONTINUE) + found.count(START) >= 2)
        stopped = found.port.sent.index(bytes([STOP]))
        position = found.port.sent[stopped + 1]
        assert position[0] == POSITION
        assert position[1] + 128 * position[2] >= 33 * 16
        assert found.port.sent[stopped + 2] == bytes([CONTINUE])
    assert found.port.sent[-1] == bytes([STOP])
    found.clock.close()
    assert found.count(STOP) == 2


class SimulatedEvent(threading.Event):
    """An event that waits in a simulated time, up to its end; from there on until it is set."""

    now_s, end_s = 100.0, 102.0

    def wait(self, timeout: float | None = None) -> bool:
        if self.now_s >= self.end_s:
            return super().wait()
        assert timeout is not None
        self.now_s += timeout
        return self.is_set()


def test_messages_are_sent_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse is due when its sample is heard: on the beat, later by the latency."""
    latency_s, pulse = 0.02, 1000
    event, sent = SimulatedEvent(), list[tuple[float, bytes]]()
    played = Played(RATE, lambda: event.now_s)
    played.note(0)
    output = SimpleNamespace(send_message=lambda message: sent.append((event.now_s, message)))
    parts = SimpleNamespace(Event=lambda: event, Lock=threading.Lock, Thread=threading.Thread)
    monkeypatch.setattr(midi, "threading", parts)
    with MidiClock(Session(), played, RATE, output, None, latency_s):
        ends_s = time.monotonic() + WAIT_S
        while event.now_s < event.end_s:
            assert time.monotonic() < ends_s, sent
            time.sleep(0.001)
    pulses = [(time_s - latency_s - 100.0) * RATE for time_s, message in sent if message == bytes([CLOCK])]
    assert len(pulses) > 80
    first = round(pulses[0] / pulse)
    assert pulses == pytest.approx([(first + number) * pulse for number in range(len(pulses))], abs=1)


def test_a_session_that_has_no_beat_any_more_stops_the_clock() -> None:
    found = Set()
    with found.clock:
        found.played.note(0)
        found.until(lambda: found.count(CLOCK) >= 2)
        found.session.beat = None
        found.until(lambda: found.count(STOP) == 1)


def test_a_clock_that_is_received_is_told_to_the_session() -> None:
    found = Set()
    with found.clock:
        assert found.port.has_timing
        found.played.note(0)
        found.port.receive(([START], 0.0), None)
        began_s, interval = found.now_s, 60 / (24 * 124.3)
        for number in range(72):
            found.now_s = began_s + number * interval
            found.port.receive(([CLOCK], interval), None)
        found.until(lambda: len(found.session.followed) >= 2)  # the first is refused
    bpm, sample = found.session.followed[-1]
    assert bpm == pytest.approx(124.3)
    beat = 60 / 124.3 * RATE
    assert sample is not None
    assert (sample + 2) % beat == pytest.approx(2, abs=2)


def test_of_a_clock_that_ran_already_the_tempo_is_told() -> None:
    found = Set()
    with found.clock:
        found.played.note(0)
        for _ in range(72):
            found.now_s += 0.02
            found.port.receive(([CLOCK], 0.02), None)
        found.until(lambda: len(found.session.followed) >= 2)
        assert found.session.followed[-1] == (pytest.approx(125.0), None)
        found.port.receive(([STOP], 0.0), None)
        count = len(found.session.followed)
        ends_s = found.now_s + 3.0
        found.until(lambda: found.now_s > ends_s)
        assert len(found.session.followed) <= count + 1  # one that was under way


def test_the_clock_goes_on_behind_a_reader_that_stood_still() -> None:
    found = Set()
    with found.clock:
        found.played.note(0)
        found.until(lambda: found.count(CLOCK) >= 20)
        sample = found.played.sample(found.now_s)
        found.now_s += 200.0
        found.until(lambda: found.count(CLOCK) >= 200 * 48 - 10)
        found.played.note(sample)  # goes on where it stood still
        found.until(lambda: found.count(STOP) == 1)
        stopped = found.port.sent.index(bytes([STOP]))
        found.until(lambda: len(found.port.sent) > stopped + 24)
        position = found.port.sent[stopped + 1]
        assert position[0] == POSITION
        assert abs((position[1] + 128 * position[2]) / 8 - sample / RATE) < 60.0  # not where it would be by now
        assert found.port.sent[stopped + 2 : stopped + 4] == [bytes([CONTINUE]), bytes([CLOCK])]


def test_what_is_played_follows_the_reader_without_its_jitter() -> None:
    now_s = [5.0]
    played = Played(RATE, lambda: now_s[0])
    assert not played.has_begun
    for number in range(200):
        now_s[0] = 5.0 + number * 0.1 + 0.01 * (number % 2)
        played.note(number * RATE // 10)
    assert played.time_s(RATE) == pytest.approx(6.005, abs=0.002)
    assert played.sample(6.005) == pytest.approx(RATE, abs=100)
    now_s[0] += 10.0
    played.note(0)
    assert played.time_s(0) == now_s[0]


def test_ports_need_rtmidi(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "rtmidi":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(tickrt.ConfigError, match=r"(?s)python-rtmidi.*tickrt\[midi\]"):
        open_output("synth")


class NamedPort(Port):
    """As python-rtmidi has it: it is closed with its last reference."""

    opened: ClassVar[list[weakref.ref[NamedPort]]] = []
    closed: ClassVar[list[int]] = []

    def get_ports(self) -> list[str]:
        return ["Other", "Drum machine"]

    def open_port(self, index: int) -> None:
        if index != 1:
            raise OSError("busy")
        self.opened.append(weakref.ref(self))

    def close_port(self) -> None:
        self.closed.append(id(self))


def test_ports_that_were_opened_by_name_are_open_as_long_as_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    rtmidi = SimpleNamespace(MidiIn=NamedPort, MidiOut=NamedPort, SystemError=OSError)
    monkeypatch.setitem(sys.modules, "rtmidi", rtmidi)
    with MidiClock(Session(), Played(RATE), RATE, "drum", "drum"):
        gc.collect()
        ports = [port() for port in NamedPort.opened]
        assert len(ports) == 2
        assert all(port is not None for port in ports)
        assert NamedPort.closed == []
    assert sorted(NamedPort.closed) == sorted(map(id, ports))
    with pytest.raises(tickrt.ConfigError, match="'Other' cannot be opened: busy"):
        open_output("other")


def test_a_port_that_is_not_there() -> None:
    pytest.importorskip("rtmidi")
    with pytest.raises(tickrt.ConfigError, match="MIDI"):
        open_output("no such synthesizer")
