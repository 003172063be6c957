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

from runtime.base.errors import ConfigError
from runtime.base.files import expanded
from runtime.config.deployment import RuntimeConfig
from runtime.config.explain import explain

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
logger = logging.getLogger("tickrt.server")
PREFIX = "TICKRT_"
# Characters of the addresses of edges.
MAX_ADDRESSES = 768
# As browsers send it: lower case, no path, the port only where it is not the scheme's own.
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
PATHS = ("state", "certificate", "private_key")
# Other people's clients that are answered (server/protocols, server/protocols/mcp).
Client = Literal["lyria", "acestep", "mcp"]
CLIENTS: tuple[Client, ...] = get_args(Client)


class ServerSettings(BaseSettings):
    """Settings of the HTTP server. Sizes in bytes, times in seconds; 0 means "no limit" only where it says so."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 selects a free one.")
    api_key: SecretStr | None = Field(default=None, description="Required by every route but /health/live when set.")
    admin_key: SecretStr | None = Field(
        default=None,
        description="Enables /admin, which requires it as X-Admin-Key, besides the API key where one is set.",
    )
    insecure: bool = Field(
        default=False, description="Allow an address that other machines can reach without an API key."
    )
    certificate: Path | None = Field(default=None, description="PEM file for https and wss.")
    private_key: Path | None = Field(
        default=None, description="PEM file of the certificate's key. Default: it is part of the certificate's file."
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins of other sites that may call; * is every origin."
    )
    edges: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Further addresses at which clients reach their sessions, for when this one does not answer "
        "(https://HOST).",
    )
    clients: Annotated[tuple[Client, ...], NoDecode] = Field(
        default=CLIENTS,
        description="Other people's clients that are answered by their own protocols; mcp: assistants, at /mcp.",
    )
    osc_host: str = Field(default="127.0.0.1", min_length=1, description="Address of osc_port.")
    osc_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="UDP port where OSC surfaces turn the controls of live sessions; 0 selects a free one.",
    )
    osc_reply_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Where an OSC surface listens. Default: the port that it sends from.",
    )

    json_bytes: int = Field(default=2 * MIB, ge=KIB, le=256 * MIB, description="The largest body of JSON (413).")
    upload_bytes: int = Field(
        default=64 * MIB, ge=KIB, le=1024 * MIB, description="The largest file of an upload (413)."
    )
    body_budget_bytes: int = Field(
        default=512 * MIB,
        ge=KIB,
        description="Memory for bodies that are read; the first 64 KiB of each are free.",
    )
    max_seconds: float = Field(default=600.0, gt=0, le=24 * 3600.0, description="The longest generation.")
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Requests and WebSockets at a time, half of them of one client address unless client_in_flight is "
        "0 (503, 429); twice as many connections, if so many files may be open (ulimit -n).",
    )
    response_budget_bytes: int = Field(
        default=512 * MIB,
        ge=MIB,
        description="Memory for responses that are made or read; half of it for one client (429; 503; 422 where one "
        "response is larger).",
    )
    client_in_flight: int | None = Field(
        default=None,
        ge=0,
        description="Generations and uploads of one client address at a time; 0 is no limit, for a server behind a "
        "proxy. Default: half of the places.",
    )

    header_timeout_s: float = Field(default=10.0, gt=0, description="Longest time for a request's headers.")
    body_timeout_s: float = Field(default=30.0, gt=0, description="Longest time for a request's body (408).")
    queue_timeout_s: float = Field(default=120.0, gt=0, description="Longest wait for a slot (504).")
    send_timeout_s: float = Field(default=10.0, gt=0, description="How long a client may take none of what it is sent.")
    send_buffer_bytes: int = Field(
        default=256 * KIB, ge=4 * KIB, description="What the operating system holds of a response per connection."
    )
    keep_alive_s: int = Field(default=5, ge=1, description="How long a connection stays open without a request.")
    drain_s: float = Field(default=30.0, ge=0, description="How long what is in flight may take at the end.")
    tick_timeout_s: float = Field(
        default=5.0,
        gt=0,
        description="Age of the last tick, with work in flight, from which /health/live answers 503; later where ticks "
        "take long: after the time of 16.",
    )
    thread_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="The same for a piece of work in other threads, such as a decode.",
    )

    codec_workers: int = Field(
        default=0,
        ge=0,
        le=16,
        description="Windows decoded in parallel, on the CPU while the tick loop is idle; 0: one per core, at most 4, "
        "on the CPU, 4 elsewhere, where one execute decodes those that wait.",
    )
    first_window_s: float = Field(default=1.0, gt=0, description="Audio of a stream's first decoded window.")
    window_s: float = Field(default=2.0, gt=0, description="Audio of its further windows.")
    lead_s: float = Field(
        default=0.25,
        ge=0,
        description="Audio that a stream keeps ahead of real time while streams that share its ticks wait for their "
        "first audio.",
    )

    state: Path | None = Field(
        default=None,
        description="Folder for what survives a restart, sources and live sessions; without it they end with the "
        "server.",
    )
    redis: SecretStr | None = Field(
        default=None,
        description="URL of a Redis that stores live sessions instead of state (redis://:PASSWORD@HOST:6379/0).",
    )
    replica: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of this server among those that share redis; every second they tell each other which of "
        "them have room.",
    )
    replica_address: str | None = Field(
        default=None,
        pattern=r"^[^\s:]+:[0-9]{1,5}$",
        description="HOST:PORT at which an edge reaches the replica. Default: host and port.",
    )
    replica_url: str = Field(
        default="",
        description="Address at which clients reach the replica; one that is full sends them to another one that has "
        "such an address. Default: they use an edge.",
    )
    sources_bytes: int = Field(default=GIB, ge=MIB, description="Disk space of uploaded sources.")
    results_bytes: int = Field(
        default=GIB,
        ge=MIB,
        description="Disk space of finished audio that clients fetch later: ACE-Step's, and as much for assistants.",
    )
    result_keep_s: float = Field(
        default=3600.0, gt=0, description="How long that audio is kept, and what made a generation."
    )
    max_sessions: int = Field(default=64, ge=1, le=4096, description="Live sessions at a time.")
    client_sessions: int = Field(
        default=4, ge=0, description="Live sessions of one client address at a time; 0 is no limit."
    )
    session_keep_s: float = Field(
        default=900.0,
        gt=0,
        description="How long a session waits for its client's return; less where its place is needed.",
    )
    max_refresh_s: float = Field(
        default=4.0,
        gt=0,
        description="Longest projected time of a session's next generation with which a further session is accepted.",
    )

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
        if sum(map(len, given)) > MAX_ADDRESSES:
            raise ValueError(f"expected at most {MAX_ADDRESSES} characters in all: a header of the page names them")
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
        return expanded(Path(path)) if isinstance(path, str | Path) else path

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


def setting_help(name: str) -> str:
    """A setting's description and its default, as the help of an option."""
    setting = ServerSettings.model_fields[name]
    return f"{setting.description} [default: {setting.default}]" if setting.default else str(setting.description)


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
    paths = {name: folder / expanded(Path(table[name])) for name in PATHS if isinstance(table.get(name), str)}

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
