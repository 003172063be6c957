"""A small server that speaks the hub's routes of models, with faults that tests ask for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

LARGE_BYTES = 1000  # and more: stored as LFS does, named by SHA-256
API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/?]+))?")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Model:
    """A repository with one commit on the branch main."""

    files: dict[str, bytes]
    commit: str = "c" * 40
    card: Mapping[str, str] = field(default_factory=lambda: {"license": "mit"})
    is_gated: bool = False

    def lfs_sha256(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def blob_id(self, name: str) -> str:
        """Of a small file's contents, of a large one's pointer."""
        data = self.files[name]
        if self.is_large(name):
            data = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.lfs_sha256(name)}\n".encode()
        return hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()

    def is_large(self, name: str) -> bool:
        return len(self.files[name]) >= LARGE_BYTES

    def etag(self, name: str) -> str:
        return self.lfs_sha256(name) if self.is_large(name) else self.blob_id(name)


@dataclass
class Hub:
    """The server: models by id, what was requested, and what is wrong with it.

    cut: file -> after how many bytes its connection is lost, once. sent: file -> other contents than are listed.
    slow: files that are sent at 100 kB per second.
    """

    models: dict[str, Model] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    tokens: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    written: int = 0  # bytes of slow files
    before_file: Callable[[str], None] = lambda name: None
    url: str = ""

    def downloads(self) -> list[str]:
        """Names of files whose contents were asked for, in order."""
        found = [RESOLVE.fullmatch(path) for method, path, _ in self.requests if method == "GET"]
        return [match[3] for match in found if match]


def folder_files(folder: Path, under: str = "") -> dict[str, bytes]:
    """The files of a folder as those of a model."""
    return {
        f"{under}{file.relative_to(folder).as_posix()}": file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@contextmanager
def hub_server() -> Iterator[Hub]:
    """A server on a port of its own until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def hub_environment(url: str, home: Path, *, offline: bool = False) -> dict[str, str]:
    """The variables of a process that uses this hub, and a cache of its own."""
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }


def use_hub(patch: pytest.MonkeyPatch, url: str, home: Path) -> None:
    """As `hub_environment`, in this process, whose library has read its variables already."""
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setenv("NO_PROXY", "127.0.0.1")
    patch.delenv("HF_TOKEN", raising=False)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        if match := RESOLVE.fullmatch(path):
            self._file(*match.groups())
        elif match := API.match(path):
            self._about(*match.groups())
        else:
            self._send(404, b"")

    def _about(self, id: str, kind: str | None, revision: str | None) -> None:
        model = self._model(id, revision or "main")
        if model is None:
            return
        if kind == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": model.blob_id(name)}
                | (
                    {"lfs": {"oid": model.lfs_sha256(name), "size": len(data), "pointerSize": 134}}
                    if model.is_large(name)
                    else {}
                )
                for name, data in model.files.items()
            ]
            self._send(200, json.dumps(entries).encode())
            return
        about = {
            "id": id,
            "sha": model.commit,
            "private": False,
            "gated": "auto" if model.is_gated else False,
            "cardData": model.card,
            "siblings": [{"rfilename": name} for name in model.files],
        }
        self._send(200, json.dumps(about).encode())

    def _file(self, id: str, revision: str, name: str) -> None:
        model = self._model(id, revision)
        if model is None:
            return
        headers = {"X-Repo-Commit": model.commit}
        if model.is_gated and not self.headers.get("Authorization"):
            self._send(403, b"", {**headers, "X-Error-Code": "GatedRepo"})
            return
        if name not in model.files:
            self._send(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
            return
        headers |= {"ETag": f'"{model.etag(name)}"', "Accept-Ranges": "bytes"}
        data = model.files[name]
        if self.command == "GET":
            self.hub.before_file(name)
            data = self.hub.sent.get(name, data)
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(start[1]) if start else 0
        if start:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        end = self.hub.cut.pop(name, None) if self.command == "GET" else None
        if self.command == "GET" and name in self.hub.slow:
            self._send(200, data, headers, end=0)
            self._write_slowly(data)
            return
        self._send(206 if start else 200, data[first:], headers, end)

    def _write_slowly(self, data: bytes) -> None:
        with suppress(OSError):  # the client has closed the connection
            for first in range(0, len(data), 1000):
                self.wfile.write(data[first : first + 1000])
                self.hub.written += 1000
                time.sleep(0.01)

    def _model(self, id: str, revision: str) -> Model | None:
        """The model; None where an error was answered."""
        model = self.hub.models.get(id)
        if model is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", model.commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            model = None
        return model

    def _send(self, status: int, data: bytes, headers: Mapping[str, str] | None = None, end: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:end])
        self.close_connection = end is not None
