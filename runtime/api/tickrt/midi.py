"""MIDI clock of live sessions: sent to studio gear, and followed. Ports are opened by python-rtmidi, extra `midi`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

from runtime.base.errors import ConfigError, TickError
from runtime.live.protocol.server_messages import Beat
from runtime.music.clock import BarLine, ClockIn, ClockOut

# Messages are handed to a port so long before they are due, by a thread that waits for each of them.
AHEAD_S, POLL_S = 0.05, 0.005
# How often a session is told of the clock that it follows, and how soon a new position is played.
TELL_S, JUMP_S = 1.0, 0.1
# How fast the estimate of what is played follows what is read, and where it jumps there.
FOLLOW, LARGEST_ERROR_S = 0.1, 0.25


class MidiOutput(Protocol):
    """A MIDI output port, as python-rtmidi has it."""

    def send_message(self, message: bytes) -> None:
        """Send a message at once."""


class MidiInput(Protocol):
    """A MIDI input port, as python-rtmidi has it."""

    def set_callback(self, function: Callable[[tuple[Any, float], Any], None]) -> None:
        """Call a function with every message, as (bytes, seconds since the one before), and with None."""

    def ignore_types(self, *, timing: bool) -> None:
        """Whether messages of clocks are left out."""


class Played:
    """When samples of the play axis are played: the reader takes them as a sound card wants them. Any thread."""

    def __init__(self, sample_rate_hz: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._rate_hz = sample_rate_hz
        self._began_s: float | None = None  # when sample 0 was played, or would have been

    def note(self, sample: int) -> None:
        """The reader takes a sample now."""
        began_s = self.now() - sample / self._rate_hz
        error_s = 0.0 if self._began_s is None else began_s - self._began_s
        if self._began_s is None or abs(error_s) > LARGEST_ERROR_S:
            self._began_s = began_s
        else:
            self._began_s += FOLLOW * error_s

    @property
    def has_begun(self) -> bool:
        """Whether something was read."""
        return self._began_s is not None

    def time_s(self, sample: int) -> float:
        """When a sample is played."""
        assert self._began_s is not None
        return self._began_s + sample / self._rate_hz

    def sample(self, time_s: float) -> int:
        """The sample that is played at a time."""
        assert self._began_s is not None
        return round((time_s - self._began_s) * self._rate_hz)


class ClockedSession(Protocol):
    """What a clock needs of a live session."""

    @property
    def beat(self) -> Beat | None:
        """Its newest bar line."""

    def follow(self, bpm: float, sample: int | None = None) -> None:
        """Take tempo and beats of a clock; None: its tempo alone."""


class MidiClock:
    """Sends the clock of a live session to a port, or lets it follow that of another, or both; see Live.midi_clock.

    latency_s: from when audio is read until it is heard. Ports are open, or opened by their names; those are closed
    with the clock. Raises ConfigError.
    """

    def __init__(
        self,
        session: ClockedSession,
        played: Played,
        sample_rate_hz: int,
        output: str | MidiOutput | None,
        input: str | MidiInput | None,
        latency_s: float = 0.0,
    ) -> None:
        self._session, self._played, self._latency_s = session, played, latency_s
        self._out, self._in = ClockOut(sample_rate_hz), ClockIn()
        self._output = None if output is None else open_output(output)
        received = None if input is None else open_input(input)
        named = ((output, self._output), (input, received))
        # A port without a reference is closed by python-rtmidi.
        self._opened: list[Any] = [port for given, port in named if isinstance(given, str)]
        self._beat: Beat | None = None
        self._told_s = 0.0
        self._begins = True
        self._given_until = 0  # messages of what is played before this sample
        # Held while one of the clocks is read or changed: by the thread, the port's thread, and who jumps or closes.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        if received is not None:
            received.ignore_types(timing=False)
            received.set_callback(self._receive)
        self._thread = threading.Thread(target=self._run, name="midi-clock", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the clock. Again does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()  # until it has sent what it waits to send: AHEAD_S at most
        self._send(self._out.stop(0))
        for port in self._opened:
            port.close_port()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closing.is_set()

    def jump(self) -> None:
        """The session is about to play another position: stop, and continue there."""
        with self._lock:
            self._begins = True

    def _receive(self, message: tuple[Any, float], _: Any = None) -> None:
        """In the port's thread."""
        with self._lock:
            self._in.receive(bytes(message[0]), self._played.now())

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            if self._played.has_begun:
                self._send(self._due())
                self._tell()

    def _due(self) -> list[tuple[int, bytes]]:
        """What is to be sent in the next AHEAD_S."""
        now_s = self._played.now() - self._latency_s
        beat, due = self._session.beat, list[tuple[int, bytes]]()
        with self._lock:
            if beat is not None and beat is not self._beat:
                self._out.line(BarLine(beat.sample, beat.bar, beat.bpm, beat.beats))
                self._beat = beat
            if beat is None:
                due += self._out.stop(self._played.sample(now_s))
                self._begins = True
            elif self._begins or self._has_stalled(now_s):
                due += self._out.start(max(0, self._played.sample(now_s + JUMP_S)))
                self._begins = False
            self._given_until = self._played.sample(now_s + AHEAD_S)
            return due + self._out.until(self._given_until)

    def _has_stalled(self, now_s: float) -> bool:
        """Whether the reader stood still, and goes on far before what was given meanwhile."""
        return self._played.sample(now_s + AHEAD_S + LARGEST_ERROR_S / 2) < self._given_until

    def _send(self, messages: list[tuple[int, bytes]]) -> None:
        for sample, message in messages:
            if self._output is not None:
                if not self._closing.is_set():
                    due_s = self._played.time_s(sample) + self._latency_s - self._played.now()
                    if due_s > AHEAD_S + LARGEST_ERROR_S / 2:
                        return  # they are of what was to be played while the reader stood still
                    self._closing.wait(max(0.0, due_s))  # until the message is due
                self._output.send_message(message)

    def _tell(self) -> None:
        """Let the session follow what is received, now and then."""
        now_s = self._played.now()
        with self._lock:
            bpm, beat_s, is_running = self._in.bpm, self._in.beat_s, self._in.is_running
        if is_running is False or bpm is None or now_s < self._told_s + TELL_S:
            return
        self._told_s = now_s
        sample = None if beat_s is None else self._played.sample(beat_s - self._latency_s)
        if sample is None or sample >= 0:
            try:
                self._session.follow(bpm, sample)
            except TickError:
                return  # there is no beat yet, or the session has ended


def open_output(port: str | MidiOutput) -> MidiOutput:
    """A port by its name or a part of it, or one that is open. Raises ConfigError."""
    return _opened("MidiOut", port) if isinstance(port, str) else port


def open_input(port: str | MidiInput) -> MidiInput:
    """A port by its name or a part of it, or one that is open. Raises ConfigError."""
    return _opened("MidiIn", port) if isinstance(port, str) else port


def _opened(kind: str, name: str) -> Any:
    try:
        import rtmidi
    except ModuleNotFoundError:
        raise ConfigError("MIDI ports need the package python-rtmidi", fix="pip install 'tickrt[midi]'") from None
    try:
        port = getattr(rtmidi, kind)()
        names = port.get_ports()
    except rtmidi.SystemError as error:
        raise ConfigError(f"this machine has no MIDI: {error}", fix="pass an open port") from None
    found = [index for index, each in enumerate(names) if name.lower() in each.lower()]
    if not found:
        fix = f"one of {', '.join(names)}" if names else "connect a device, or make a virtual port"
        raise ConfigError(f"there is no MIDI port {name!r:.60}", fix=fix)
    try:
        port.open_port(found[0])
    except rtmidi.SystemError as error:
        raise ConfigError(f"MIDI port {names[found[0]]!r:.60} cannot be opened: {error}") from None
    return port
