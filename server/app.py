"""The ASGI app: routes, middleware, and the pipeline's lifespan."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from runtime.base.errors import ConfigError
from runtime.pipeline.pipeline import Pipeline
from server.asgi.access_control import KEY_HEADERS, AuthMiddleware
from server.asgi.middleware import PlacesMiddleware, RequestContextMiddleware
from server.asgi.openapi import GENERATION_HEADERS, openapi_document
from server.asgi.problems import REQUEST_ID_HEADER, install_handlers
from server.config import ServerSettings
from server.live import page_routes as page
from server.live import routes as live
from server.protocols.acestep import routes as acestep
from server.protocols.errors import ErrorShapeMiddleware
from server.protocols.lyria import routes as lyria
from server.protocols.mcp import routes as mcp
from server.routes import generations, health, models, sources, tick_profile
from server.service.service import Service

if TYPE_CHECKING:
    from server.protocols.osc.server import OscServer

PROTOCOLS = {"lyria": lyria, "acestep": acestep, "mcp": mcp}
DESCRIPTION = """Flow-matching diffusion as a live stream: text and audio in, audio out while it is generated.

Live sessions are played over a WebSocket: [the protocol of WS /v1/live](docs/live). So are those of Google's Lyria
RealTime, one of [other people's clients](docs/clients)."""
EXPOSED_HEADERS = (REQUEST_ID_HEADER, *GENERATION_HEADERS, "Retry-After")
# Of assistants in browsers.
MCP_HEADERS = ("Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Last-Event-ID")


def create_app(open_pipeline: Callable[[], Pipeline], settings: ServerSettings) -> FastAPI:
    """The ASGI app. Its lifespan opens the pipeline in the background and closes it at the end."""
    service, osc = Service(open_pipeline, settings), open_osc(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        playing = None if osc is None else asyncio.create_task(_play(osc, service))
        yield
        if osc is not None and playing is not None:
            playing.cancel()
            osc.close()
        await service.close()

    app = FastAPI(
        title="TickRT",
        version=metadata.version("tickrt"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # server/live/page_routes.py has it
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service, app.state.osc = service, osc
    routers = [module.router for module in (generations, sources, models, health, live, page)]
    if settings.admin_key is not None:
        routers += [tick_profile.router, models.admin_router, health.admin_router]
    routers += [PROTOCOLS[name].router for name in settings.clients]
    for router in routers:
        app.include_router(router)
    install_handlers(app)
    _add_middleware(app, service)
    app.openapi, app.state.openapi_json = _openapi_of(app, service)  # type: ignore[method-assign]
    return app


def open_osc(settings: ServerSettings) -> OscServer | None:
    """Where OSC surfaces send to; None where the settings name no port. Raises ConfigError."""
    if settings.osc_port is None:
        return None
    try:
        from server.protocols.osc.server import OscServer
    except ModuleNotFoundError:
        raise ConfigError("[server] osc_port needs the package python-osc", fix="pip install 'tickrt[osc]'") from None
    return OscServer(settings.osc_host, settings.osc_port, settings.osc_reply_port)


async def _play(osc: OscServer, service: Service) -> None:
    """Let OSC surfaces play the sessions, once there is what runs them."""
    await service.opened()
    if service.host is not None:
        osc.start(service.host)


def _add_middleware(app: FastAPI, service: Service) -> None:
    """The middleware added last runs first."""
    settings = service.settings
    app.add_middleware(PlacesMiddleware, places=service.places)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", *KEY_HEADERS, REQUEST_ID_HEADER, *MCP_HEADERS],
            expose_headers=[*EXPOSED_HEADERS, MCP_HEADERS[0]],
        )
    body_key_paths = acestep.BODY_KEY_PATHS if "acestep" in settings.clients else ()
    app.add_middleware(AuthMiddleware, settings=settings, body_key_paths=body_key_paths)
    shapes = {path: shape for name in settings.clients for path, shape in PROTOCOLS[name].ERROR_SHAPES.items()}
    app.add_middleware(ErrorShapeMiddleware, shapes=shapes)
    app.add_middleware(RequestContextMiddleware, requests=service.metrics.requests)


def _openapi_of(app: FastAPI, service: Service) -> tuple[Callable[[], dict[str, Any]], Callable[[], bytes]]:
    """The OpenAPI document, and its JSON, made once before the model is open and once after."""

    @cache
    def document(channels: int | None) -> dict[str, Any]:
        return openapi_document(app, service.body_model, channels, has_key=service.settings.api_key is not None)

    @cache
    def content(channels: int | None) -> bytes:
        return json.dumps(document(channels), ensure_ascii=False, separators=(",", ":")).encode()

    def channels() -> int | None:
        return None if service.pipeline is None else service.pipeline.bundle.latents.channels

    return lambda: document(channels()), lambda: content(channels())
