"""What a server has besides its pipeline, as its settings say: stores, other replicas, OSC."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from runtime.sessions.storage.sqlite_store import open_sqlite_store
from runtime.sessions.storage.store import SessionStore
from server.config import ServerSettings
from server.replicas.lease import Lease
from server.sources.folder import SourceFolder
from server.sources.source import SourceFiles

if TYPE_CHECKING:
    from server.replicas.leases import Membership


def open_session_store(settings: ServerSettings) -> SessionStore | None:
    """Where live sessions survive the server; None where the settings name no place. Raises ConfigError."""
    if settings.redis is None:
        return None if settings.state is None else open_sqlite_store(settings.state)
    try:
        from runtime.sessions.storage.redis_store import open_redis_store
    except ModuleNotFoundError:
        raise ConfigError("[server] redis needs the package redis", fix="pip install 'tickrt[redis]'") from None
    return open_redis_store(settings.redis.get_secret_value(), keep_s=settings.session_keep_s)


def open_source_files(settings: ServerSettings) -> SourceFiles:
    """Where sources are kept: in the Redis that servers share, or in a folder. Raises ConfigError."""
    if settings.redis is None:
        return SourceFolder(None if settings.state is None else settings.state / "sources")
    from server.sources.shared import SharedSources

    return SharedSources(settings.redis.get_secret_value())


def open_membership(settings: ServerSettings, own: Callable[[], Lease]) -> Membership | None:
    """What this server knows of other replicas; None where it is none. Raises ConfigError."""
    if settings.replica is None or settings.redis is None:
        return None
    from server.replicas.leases import Leases, Membership

    return Membership(Leases(settings.redis.get_secret_value()), own)
