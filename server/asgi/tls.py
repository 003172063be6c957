"""TLS of the server's socket, for https and wss."""

from __future__ import annotations

import ssl
from pathlib import Path

from runtime.errors import ConfigError

FIX = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 365 -subj /CN=localhost"


def tls_context(certificate: Path, private_key: Path | None) -> ssl.SSLContext:
    """The context of a certificate (chain) and its key, both PEM. Raises ConfigError."""
    for path in (certificate, private_key or certificate):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The empty password turns OpenSSL's prompt for the one of an encrypted key into an error.
        context.load_cert_chain(certificate, private_key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_explain(error, certificate, private_key or certificate), fix=FIX) from None
    return context


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", fix=FIX) from None


def _explain(error: Exception, certificate: Path, private_key: Path) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"{private_key} is not the key of {certificate}"
    return f"{certificate} and {private_key} are not a PEM certificate and its key without a password ({reason})"
