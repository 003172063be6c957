"""The page that plays live sessions at /, its client as one module for programs of other people (/page/tickrt.js), the
API documentation at /docs: static files with security headers.

/docs is Swagger UI (Apache-2.0), whose two files come with the package fastapi-offline.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response

from runtime.base.untrusted import quoted
from server.asgi.problems import ProblemError
from server.service.service import service_of

FOLDER = Path(__file__).parent / "page"
# In the order in which they need each other; only the last one's exports are those of the module.
MODULES = ("audio/wav.js", "audio/ring.js", "audio/player.js", "connection.js", "client.js")
# A module of its own, as audio threads load one: it becomes a text in the module.
WORKLET_MODULES = ("audio/ring.js", "audio/worklet.js")
WORKLET = 'new URL("worklet.js", import.meta.url)'
IMPORT = re.compile(r"^import \{[^{}]*\} from \"[^\"]+\";\n", re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
CLIENT_FILE = "tickrt.js"
SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
# Not by mimetypes: what that knows depends on the machine.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    # A browser shows it as it is.
    ".md": "text/plain; charset=utf-8",
}
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Swagger UI has styles and icons in its elements, and plays responses from blobs.
DOCS_POLICY = f"{POLICY}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; media-src 'self' blob:"
# Documents beside the code, as the documentation links to them.
DOCUMENTS = {"live": "live/PROTOCOL.md", "clients": "protocols/README.md"}
HEADERS = {
    # The browser keeps the files and asks with their tag whether they changed.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), midi=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class StaticFile:
    """A file of the page, as it is and packed, with its entity tag."""

    content: bytes
    packed: bytes
    media_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """The files of the page by their path in its folder, its client as one module, and those of Swagger UI."""
    paths = (path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES)
    ours = {path.relative_to(FOLDER).as_posix(): _static_file(path) for path in paths}
    swagger = Path(str(files("fastapi_offline"))) / "static"
    client = _file(client_module().encode(), ".js")
    return ours | {CLIENT_FILE: client} | {f"swagger/{name}": _static_file(swagger / name) for name in SWAGGER_FILES}


def _static_file(path: Path) -> StaticFile:
    return _file(path.read_bytes(), path.suffix)


def _file(content: bytes, suffix: str) -> StaticFile:
    packed = gzip.compress(content, mtime=0)
    return StaticFile(content, packed, MEDIA_TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    response = _response(request, static_files()["index.html"])
    if edges := service_of(request).settings.edges:
        sockets = [edge.replace("http", "ws", 1) for edge in edges]
        response.headers["Content-Security-Policy"] = f"{POLICY}; connect-src 'self' {' '.join(sockets)}"
    return response


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API documentation."""
    response = _response(request, static_files()["docs.html"])
    response.headers["Content-Security-Policy"] = DOCS_POLICY
    return response


@router.get("/docs/{name}")
async def document(request: Request, name: str) -> Response:
    """A document that the API documentation links to, as text."""
    if name not in DOCUMENTS:
        raise ProblemError(404, "not_found", f"there is no document {quoted(name)}")
    return _response(request, _document(DOCUMENTS[name]))


@cache
def _document(path: str) -> StaticFile:
    return _static_file(FOLDER.parents[1] / path)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    content = await service_of(request).describing.run_shared(request.app.state.openapi_json)
    return Response(content, media_type="application/json")


@router.get("/page/{name:path}")
async def part(request: Request, name: str) -> Response:
    """A module, a stylesheet or an image of the page."""
    file = static_files().get(name)
    if file is None:
        raise ProblemError(404, "not_found", f"the page has no file {quoted(name)}")
    return _response(request, file)


def _response(request: Request, file: StaticFile) -> Response:
    headers = {**HEADERS, "ETag": file.etag, "Vary": "Accept-Encoding"}
    known = request.headers.get("if-none-match", "")
    if file.etag in known or known.strip() == "*":
        return Response(status_code=304, headers=headers)
    codings = [part.partition(";") for part in request.headers.get("accept-encoding", "").replace(" ", "").split(",")]
    if any(name == "gzip" and parameters not in ("q=0", "q=0.0") for name, _, parameters in codings):
        return Response(file.packed, media_type=file.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)


@cache
def client_module() -> str:
    """One ES module without imports, which exports `Live`; its types are page/tickrt.d.ts."""
    worklet = "\n".join(EXPORT.sub("", _text(name)) for name in WORKLET_MODULES)
    source = f'URL.createObjectURL(new Blob([{json.dumps(worklet)}], {{ type: "text/javascript" }}))'
    *parts, last = map(_text, MODULES)
    joined = "\n".join([*(EXPORT.sub("", part) for part in parts), last])
    assert WORKLET in joined
    return joined.replace(WORKLET, source)


def _text(name: str) -> str:
    return IMPORT.sub("", (FOLDER / name).read_text(encoding="utf-8"))
