"""OSC surfaces as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from server.config import ServerSettings

if TYPE_CHECKING:
    from server.protocols.osc.server import OscServer


def open_osc(settings: ServerSettings) -> OscServer | None:
    """Where OSC surfaces send to; None where the settings name no port. Raises ConfigError."""
    if settings.osc_port is None:
        return None
    try:
        from server.protocols.osc.server import OscServer
    except ModuleNotFoundError:
        raise ConfigError("[server] osc_port needs the package python-osc", fix="pip install 'tickrt[osc]'") from None
    return OscServer(settings.osc_host, settings.osc_port, settings.osc_reply_port)
