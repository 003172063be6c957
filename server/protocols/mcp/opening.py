"""The tools of a server, or of a command over stdio."""

from __future__ import annotations

from pathlib import Path

from server.protocols.mcp.files import FileStore
from server.protocols.mcp.live import AssistantSessions
from server.protocols.mcp.making import Maker
from server.protocols.mcp.tools import Tools
from server.service.service import Service


def open_tools(service: Service, folder: Path | None = None) -> Tools:
    """The tools of a service. folder: where files stay; then sources may be paths, too. Raises ConfigError."""
    settings = service.settings
    files = FileStore(folder, settings.results_bytes, settings.result_keep_s, service.client_share)
    maker = Maker(service, files, reads_paths=folder is not None)
    return Tools(service, files, maker, AssistantSessions(service, files))
