"""TLS of the server's socket, for https and wss: its certificate, and the transport of its connections."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.base.errors import ConfigError, FileError
from runtime.base.files import check_file
from server.asgi.fair_reads import READ_BYTES, FairReads, FairTransport
from server.asgi.problems import MEDIA_TYPE, ProblemError

FIX = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 365 -subj /CN=localhost"

# What is decrypted at once: records of one byte take 0.1 us a byte, a handshake's last one 0.5 to 2 ms.
CIPHERTEXT_BYTES = 4096
# What a client's first record begins with.
HANDSHAKE = b"\x16"


class TlsTransport(FairTransport):
    """A connection's transport as its protocols see it, with TLS between them and the client.

    Handshake and decryption are part of the connection's turns. Nothing of TLS is there before the first byte has
    arrived. A client that begins with something else, as HTTP without TLS does, is told that.
    """

    def __init__(self, transport: Any, reads: FairReads, context: ssl.SSLContext) -> None:
        super().__init__(transport, reads)
        self._context = context
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ciphertext = b""
        self._can_write = self._is_at_end = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection: its "sslcontext", and what is known without TLS."""
        return self._context if name == "sslcontext" else self._transport.get_extra_info(name, default)

    def take(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._ciphertext += data
        super().take(b"")

    def write(self, data: bytes) -> None:
        """Send bytes; nothing before the end of the handshake."""
        if self._tls is None or not self._can_write or self._transport.is_closing():
            return
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def end(self) -> None:
        """The connection has ended: nothing of it is kept, above all not the TLS session."""
        super().end()
        self._tls, self._can_write, self._ciphertext = None, False, b""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def write_eof(self) -> None:
        """Send no more; what arrives is parsed."""
        self._end_writing()
        self._transport.write_eof()

    def close(self) -> None:
        """Send what was written, then close; a handshake that is not complete ends at once."""
        if not self._can_write:
            self._transport.abort()
        self._end_writing()
        super().close()

    def _parse(self, size: int) -> None:
        if self._has_more or self._kept:
            super()._parse(size)
        elif self._is_at_end:
            self._is_at_end = False
            if not self._transport.get_protocol().eof_received():
                self.close()
        elif self._tls is None and not self._ciphertext.startswith(HANDSHAKE):
            self._transport.write(_no_tls())
            self._transport.close()
        else:
            self._decrypt()

    def _has_bytes(self) -> bool:
        return bool(self._kept or self._ciphertext) or self._is_at_end

    def _decrypt(self) -> None:
        """Take a piece of what has arrived: shake hands, or keep what it is decrypted to."""
        if self._tls is None:
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        piece, self._ciphertext = self._ciphertext[:CIPHERTEXT_BYTES], self._ciphertext[CIPHERTEXT_BYTES:]
        self._incoming.write(piece)
        try:
            self._tls.do_handshake()
            self._can_write = True
            while data := self._tls.read(READ_BYTES):
                self._kept += data
            self._is_at_end, self._ciphertext = True, b""
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._flush()  # it has an alert that tells the client why
            self._transport.close()
            return
        self._flush()

    def _end_writing(self) -> None:
        """Tell the client that nothing comes any more."""
        if self._tls is not None and self._can_write and not self._transport.is_closing():
            with suppress(ssl.SSLError):  # the client has not said that yet
                self._tls.unwrap()
            self._flush()
        self._can_write = False

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())


def _no_tls() -> bytes:
    """The answer to a client without TLS."""
    problem = ProblemError(400, "no_tls", "the server speaks HTTPS and WSS here", fix="begin the URL with https://")
    body = problem.document().model_dump_json(exclude_none=True).encode()
    head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body


def tls_context(certificate: Path, private_key: Path | None) -> ssl.SSLContext:
    """The context of a certificate (chain) and its key, both PEM. Raises ConfigError."""
    for path in (certificate, private_key or certificate):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # The empty password turns OpenSSL's prompt for the one of an encrypted key into an error.
        context.load_cert_chain(certificate, private_key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_explain(error, certificate, private_key or certificate), fix=FIX) from None
    return context


def _check_readable(path: Path) -> None:
    try:
        check_file(path)
    except FileError as error:
        raise ConfigError(error.what, fix=FIX) from None


def _explain(error: Exception, certificate: Path, private_key: Path) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"{private_key} is not the key of {certificate}"
    return f"{certificate} and {private_key} are not a PEM certificate and its key without a password ({reason})"
