"""Server settings: addresses, keys and limits.

Precedence, lowest to highest: defaults, the deployment's [server] table, environment variables TICKRT_*, flags.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from runtime.config.deployment import RuntimeConfig
from runtime.config.explain import explain
from runtime.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
logger = logging.getLogger("tickrt.server")
PREFIX = "TICKRT_"
# As browsers send it: lower case, no path, the port only where it is not the scheme's own.
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
PATHS = ("state", "certificate", "private_key")
# Servers whose clients are answered, too (server/compat).
Client = Literal["lyria", "acestep", "elevenlabs"]
CLIENTS: tuple[Client, ...] = get_args(Client)


class ServerSettings(BaseSettings):
    """Settings of the HTTP server. Sizes in bytes, times in seconds; 0 means "no limit" only where it says so.

    api_key: required by every route but /health/live when set. admin_key: enables /admin, which requires it as
    X-Admin-Key (besides the API key, where one is set). allowed_origins: origins of other sites that may call.
    edges: further addresses at which clients reach their sessions, for when this one does not answer ("https://HOST").
    clients: other servers whose clients are answered, too, by their own protocols.
    osc_port: UDP port where OSC surfaces turn the controls of live sessions (0: any free one; default: none), on
    osc_host. osc_reply_port: where a surface listens (default: the port that it sends from).
    max_connections: requests and WebSockets at a time, half of them of one client address unless client_in_flight is 0.
    client_in_flight: generations and uploads per client address at a time (0: no limit, which a proxy needs; default:
    half of the places). response_budget_bytes: memory for responses that are made or read, half of it for one client.
    queue_timeout_s: longest wait for a slot. send_timeout_s: longest wait for a client that does not read.
    tick_timeout_s: age of the last tick, with work in flight, from which /health/live answers 503.
    codec_workers: windows decoded in parallel while the tick loop is idle (0: one per core, at most 4, on the CPU;
    1 elsewhere).
    first_window_s and window_s: audio per decoded window. lead_s: audio that a stream keeps ahead of real time while
    streams that share its ticks wait for their first audio.
    certificate, private_key: PEM files for https and wss; private_key may be part of the certificate's file.
    state: folder for what survives a restart, sources and live sessions; without it they end with the server.
    redis: URL of a Redis that stores live sessions instead of `state` ("redis://:PASSWORD@HOST:6379/0").
    replica: name of this server among those that share `redis`; every second they tell each other which of them have
    room. replica_address: "HOST:PORT" at which an edge reaches it (default: host and port). replica_url: at which
    clients reach it; one that is full sends them to another one that has such an address (default: they use an edge).
    max_sessions: live sessions at a time; client_sessions: per client (0: no limit). session_keep_s: how long a session
    waits for its client to come back. max_refresh_s: longest projected time of a session's next generation with which a
    further session is accepted. sources_bytes: disk space of uploaded sources.
    results_bytes: disk space of finished audio that clients fetch later (ACE-Step's), result_keep_s: for how long.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: SecretStr | None = None
    admin_key: SecretStr | None = None
    insecure: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = ()
    edges: Annotated[tuple[str, ...], NoDecode] = ()
    clients: Annotated[tuple[Client, ...], NoDecode] = CLIENTS
    osc_host: str = Field(default="127.0.0.1", min_length=1)
    osc_port: int | None = Field(default=None, ge=0, le=65535)
    osc_reply_port: int | None = Field(default=None, ge=1, le=65535)

    json_bytes: int = Field(default=2 * MIB, ge=KIB, le=256 * MIB)
    upload_bytes: int = Field(default=64 * MIB, ge=KIB, le=1024 * MIB)
    body_budget_bytes: int = Field(default=512 * MIB, ge=KIB)
    max_seconds: float = Field(default=600.0, gt=0, le=24 * 3600.0)
    max_connections: int = Field(default=1024, ge=1, le=65536)
    response_budget_bytes: int = Field(default=512 * MIB, ge=MIB)
    client_in_flight: int | None = Field(default=None, ge=0)

    header_timeout_s: float = Field(default=10.0, gt=0)
    body_timeout_s: float = Field(default=30.0, gt=0)
    queue_timeout_s: float = Field(default=120.0, gt=0)
    send_timeout_s: float = Field(default=10.0, gt=0)
    send_buffer_bytes: int = Field(default=256 * KIB, ge=4 * KIB)
    keep_alive_s: int = Field(default=5, ge=1)
    drain_s: float = Field(default=30.0, ge=0)
    tick_timeout_s: float = Field(default=5.0, gt=0)

    codec_workers: int = Field(default=0, ge=0, le=16)
    first_window_s: float = Field(default=1.0, gt=0)
    window_s: float = Field(default=2.0, gt=0)
    lead_s: float = Field(default=0.25, ge=0)

    state: Path | None = None
    redis: SecretStr | None = None
    replica: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$")
    replica_address: str | None = Field(default=None, pattern=r"^[^\s:]+:[0-9]{1,5}$")
    replica_url: str = ""
    sources_bytes: int = Field(default=GIB, ge=MIB)
    results_bytes: int = Field(default=GIB, ge=MIB)
    result_keep_s: float = Field(default=3600.0, gt=0)
    max_sessions: int = Field(default=64, ge=1, le=4096)
    client_sessions: int = Field(default=4, ge=0)
    session_keep_s: float = Field(default=60.0, gt=0)
    max_refresh_s: float = Field(default=4.0, gt=0)

    @field_validator("allowed_origins", "edges", "clients", mode="before")
    @classmethod
    def _split(cls, value: Any, info: ValidationInfo) -> Any:
        """A variable: names separated by commas, or a JSON list of them. "" is none of them for clients."""
        if not isinstance(value, str):
            return value
        if value == "" and info.field_name == "clients":
            return ()
        if not value.lstrip().startswith("["):
            return tuple(part.strip() for part in value.split(","))
        try:
            return json.loads(value)
        except ValueError:
            what = "names" if info.field_name == "clients" else "origins"
            raise ValueError(
                f"expected {what} separated by commas, or a JSON list of them, got {value!r:.100}"
            ) from None

    @field_validator("edges", "replica_url")
    @classmethod
    def _are_addresses(cls, given: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for address in [given] if isinstance(given, str) and given else given:
            if not (ORIGIN.fullmatch(address) and address.startswith(("http://", "https://"))):
                raise ValueError(f"{address!r:.100} is not an address such as https://example.org, without a path")
        return given

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r:.100} is not an origin such as https://example.org: scheme, host and port in lower "
                    "case, no path, no trailing slash; * is every origin"
                )
        return origins

    @field_validator(*PATHS, mode="before")
    @classmethod
    def _is_a_path(cls, path: Any) -> Any:
        if path == "":
            raise ValueError("is empty; omit it")
        return path

    @field_validator("api_key", "admin_key")
    @classmethod
    def _is_a_key(cls, key: SecretStr | None) -> SecretStr | None:
        text = None if key is None else key.get_secret_value()
        if text is not None and (not text or text != text.strip() or not (text.isascii() and text.isprintable())):
            raise ValueError(
                "is empty, begins or ends with a space or newline, or has characters that no header can carry; "
                "omit it to serve without a key"
            )
        return key

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.private_key is not None and self.certificate is None:
            raise ValueError("private_key needs a certificate")
        return self

    @model_validator(mode="after")
    def _replicas_share_a_redis(self) -> Self:
        if self.replica is not None and self.redis is None:
            raise ValueError("replica needs redis, which replicas share")
        if self.replica is None and (self.replica_address or self.replica_url):
            raise ValueError("replica_address and replica_url need replica, its name")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback_host(self.host)

    @property
    def scheme(self) -> str:
        """http or https."""
        return "http" if self.certificate is None else "https"


def is_loopback_host(host: str) -> bool:
    """True for localhost and loopback addresses."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def load_settings(table: Mapping[str, Any], folder: Path = Path(), **flags: Any) -> ServerSettings:
    """Settings from a [server] table, the environment and flags (None: not given). Raises ConfigError.

    folder: where the table's relative paths begin.
    """
    paths = {name: folder / table[name] for name in PATHS if isinstance(table.get(name), str)}

    class _Loaded(ServerSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, {**table, **paths})

    try:
        settings = _Loaded(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        found = explain(error, ServerSettings, with_values=False)
        raise ConfigError(f"server settings: {found}", fix="see [server] and TICKRT_* variables") from None
    check_exposure(settings)
    warn_of_unknown_variables(os.environ)
    return settings


def warn_of_unknown_variables(environment: Iterable[str]) -> None:
    """Log TICKRT_ variables that have no effect. They are no errors: an orchestrator may set some for a service."""
    known = {name: f"TICKRT_{name.upper()}" for name in (*ServerSettings.model_fields, "cache")}
    suggestions = {name: f"{name} in [runtime] of the deployment" for name in RuntimeConfig.model_fields} | known
    for variable in environment:
        name = variable.lower().removeprefix(PREFIX.lower())
        if variable.upper().startswith(PREFIX) and name not in known:
            similar = get_close_matches(name, suggestions, n=1)
            hint = f"; did you mean {suggestions[similar[0]]}?" if similar else ""
            logger.warning("the environment variable %s is not known and has no effect%s", variable, hint)


def check_exposure(settings: ServerSettings) -> None:
    """Refuse an address that other machines can reach without a key. Raises ConfigError."""
    if settings.osc_port is not None and not (is_loopback_host(settings.osc_host) or settings.insecure):
        raise ConfigError(
            f"osc_host {settings.osc_host} is reachable from other machines, and OSC has no keys",
            fix="use osc_host 127.0.0.1, or add --insecure",
        )
    if settings.is_loopback or settings.insecure or settings.api_key is not None:
        return
    raise ConfigError(
        f"{settings.host} is reachable from other machines and no API key is set",
        fix="set TICKRT_API_KEY, use --host 127.0.0.1, or add --insecure",
    )
