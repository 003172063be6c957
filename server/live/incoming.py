"""What a client of a live session sends: messages and the audio that they announce, parsed and given to the session."""

from __future__ import annotations

from runtime.base.errors import RequestError
from runtime.live.hosting.host import SessionHost
from runtime.live.protocol.frames import decode_pcm, sample_bytes
from runtime.live.protocol.messages import (
    MAX_MESSAGE_BYTES,
    MAX_WRITE_S,
    ClientMessage,
    Open,
    WriteAudio,
    parse_client_message,
)
from server.config import KIB


class ViolationError(RequestError):
    """The client does not keep to the protocol: its connection ends. `reason`: the reason in `closed`."""

    code = "protocol_violation"

    def __init__(self, what: str, *, reason: str = "violation", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.reason = reason


class WriteError(RequestError):
    """A `write` whose audio is missing or has another length. `seq`: that of the write."""

    def __init__(self, what: str, seq: int) -> None:
        super().__init__(what, field="samples")
        self.seq = seq


class Incoming:
    """The receiving side of one connection of a session."""

    def __init__(self, host: SessionHost, session: str, sample_rate_hz: int, channels: int) -> None:
        self._host = host
        self._session = session
        self._rate = sample_rate_hz
        self._channels = channels
        self._announced: WriteAudio | None = None
        self._has_stray_audio = False

    def take(self, data: str | bytes) -> None:
        """Process one WebSocket message. Raises TickError, ViolationError where the connection has to end."""
        if isinstance(data, bytes):
            self._take_audio(data)
            return
        message = parse_text(data)
        announced, has_seq = self._announced, hasattr(message, "seq")
        if has_seq:
            self._announced = None
        self._take_message(message)
        if announced is not None and has_seq:
            raise WriteError(f"the audio of the write with seq {announced.seq} did not follow", announced.seq)

    def _take_message(self, message: ClientMessage) -> None:
        if isinstance(message, Open):
            raise RequestError("the session is open", field="type", fix="use another connection")
        if isinstance(message, WriteAudio):
            self._announce(message)
            return
        self._host.post(self._session, message)

    def _announce(self, message: WriteAudio) -> None:
        limit = int(MAX_WRITE_S * self._rate)
        if message.samples > limit:
            raise RequestError(f"expected at most {limit}, {MAX_WRITE_S:g} seconds", field="samples")
        self._announced = message

    def _take_audio(self, data: bytes) -> None:
        message, self._announced = self._announced, None
        if message is None:
            self._refuse_stray_audio()
            return
        expected = message.samples * sample_bytes(message.format, self._channels)
        if len(data) != expected:
            raise WriteError(f"{len(data)} bytes of audio, expected {expected}", message.seq)
        pcm = decode_pcm(data, message.format, self._rate, self._channels)
        self._host.post(self._session, message, pcm)

    def _refuse_stray_audio(self) -> None:
        what, fix = "a binary message without a write before it", "send write {seq, at_s, samples, format} first"
        if self._has_stray_audio:
            raise ViolationError(what, fix=fix)
        self._has_stray_audio = True
        raise RequestError(what, fix=fix)


def num_counted(data: str | bytes) -> int:
    """What a message counts against the limit: a text, which is parsed, one per KiB."""
    return 1 + len(data) // KIB if isinstance(data, str) else 1


def parse_text(text: str) -> ClientMessage:
    """A message. Raises RequestError, ViolationError where it is too large."""
    if len(text) > MAX_MESSAGE_BYTES:
        raise ViolationError(f"a message is larger than {MAX_MESSAGE_BYTES} bytes", reason="too_large")
    return parse_client_message(text)
