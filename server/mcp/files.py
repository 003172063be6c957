"""Files that were made for assistants, by name, until they are fetched or expire."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import FileError, StoreError
from server.asgi.problems import ProblemError, unavailable
from server.config import MIB
from server.sources.temporary_folder import TemporaryFolder

MAX_FILES = 1000
MAX_TITLE = 40
# Appended to the name of a file that is being written.
PART = ".partial"


@dataclass(frozen=True)
class MadeFile:
    """A file: what is told of it (`facts`), its plan where something was planned, and whose it is (`client`)."""

    name: str
    path: Path
    media_type: str
    size_bytes: int
    facts: dict[str, Any]
    plan: dict[str, Any]
    client: str

    def read(self) -> bytes:
        """Its content. Raises FileError where it is not there any more."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise FileError(f"the file cannot be read: {error.strerror}", fix="make it again") from None


class FileStore:
    """Files of a folder that keeps them; or of a temporary one, `limit_bytes` and `keep_s` at most.

    In a temporary folder the oldest ones make room for new ones. MAX_FILES are known; of a folder that keeps its files
    the older ones are still there. Event loop's thread. Raises ConfigError where no temporary folder can be made.
    """

    def __init__(self, folder: Path | None, limit_bytes: int, keep_s: float) -> None:
        self._temporary = None if folder is not None else TemporaryFolder("mcp")
        self._folder = folder or self._temporary_path
        self._limit_bytes, self._keep_s = limit_bytes, keep_s
        self._files: dict[str, MadeFile] = {}
        self._writing_bytes = 0

    @property
    def _temporary_path(self) -> Path:
        assert self._temporary is not None
        return self._temporary.path

    @property
    def keeps(self) -> bool:
        """Whether the files stay: then assistants are told their paths."""
        return self._temporary is None

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._temporary is not None:
            self._temporary.close()

    def of(self, client: str) -> list[MadeFile]:
        """A client's files, the newest first."""
        return [file for file in reversed(self._files.values()) if file.client == client]

    def get(self, name: str) -> MadeFile:
        """A file by its name. Raises ProblemError 404."""
        file = self._files.get(name)
        if file is None or not file.path.is_file():
            fix = "list the resources, or make it again"
            raise ProblemError(404, "file_not_found", "there is no file with this name, or not any more", fix=fix)
        return file

    def find(self, name: str) -> MadeFile | None:
        """A file by its name; None where it is not known."""
        return self._files.get(name)

    def new_name(self, title: str, suffix: str) -> str:
        """A name that cannot be guessed, with the beginning of a title."""
        words = re.sub(r"[^a-z0-9]+", "-", title.lower()[: 4 * MAX_TITLE]).strip("-")[:MAX_TITLE].strip("-")
        return f"{words or 'audio'}-{secrets.token_hex(8)}{suffix}"

    @contextmanager
    def room(self, size_bytes: int) -> Iterator[None]:
        """Room for a file that is written inside of the block. Raises ProblemError 422 or 503 where there is none."""
        if not self.keeps and size_bytes > self._limit_bytes:
            what = f"the file may need {size_bytes / MIB:.0f} MiB, the limit is {self._limit_bytes / MIB:.0f} MiB"
            raise ProblemError(422, "results_too_large", what, fix="ask for less, or raise [server] results_bytes")
        if not self.keeps and self._writing_bytes + size_bytes > self._limit_bytes:
            raise unavailable("busy", "files that are being made take all space for results")
        self._writing_bytes += size_bytes
        try:
            self._remove_oldest()
            yield
        finally:
            self._writing_bytes -= size_bytes
            self._remove_oldest()

    def path_of(self, name: str) -> Path:
        """Where a file of this name is written, before `add`."""
        return self._folder / f"{name}{PART}"

    def add(self, name: str, media_type: str, client: str, facts: dict[str, Any], plan: dict[str, Any]) -> MadeFile:
        """A complete file. Raises StoreError."""
        path = self._folder / name
        try:
            os.replace(self.path_of(name), path)
            size_bytes = path.stat().st_size
        except OSError as error:
            raise StoreError(f"the file cannot be stored: {error.strerror}", fix="free disk space") from None
        file = self._files[name] = MadeFile(name, path, media_type, size_bytes, facts, plan, client)
        if not self.keeps:
            asyncio.get_running_loop().call_later(self._keep_s, self._remove, name)
        return file

    def discard(self, name: str) -> None:
        """Remove what was written of a file that failed."""
        self.path_of(name).unlink(missing_ok=True)

    def _remove_oldest(self) -> None:
        used_bytes = self._writing_bytes + sum(file.size_bytes for file in self._files.values())
        for file in list(self._files.values()):
            if len(self._files) <= MAX_FILES and (self.keeps or used_bytes <= self._limit_bytes):
                return
            used_bytes -= file.size_bytes
            self._remove(file.name)

    def _remove(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None and not self.keeps:
            file.path.unlink(missing_ok=True)
