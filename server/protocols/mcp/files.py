"""Files that were made for assistants, by name, until they are fetched or expire."""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runtime.base.errors import FileError, StoreError
from runtime.base.files import read_stored
from server.asgi.problems import ProblemError
from server.asgi.shares import Holding, Shares
from server.config import MIB
from server.service.temporary_folder import TemporaryFolder

FILE_URI = "tickrt://files/"

MAX_FILES = 1000
MAX_TITLE = 40
# Appended to the name of a file that is being written.
PART = ".partial"


@dataclass(frozen=True)
class MadeFile:
    """A file: what is told of it (`facts`), its plan where something was planned, and what it holds of the store."""

    name: str
    path: Path
    media_type: str
    size_bytes: int
    facts: dict[str, Any]
    plan: dict[str, Any]
    held: tuple[Holding, ...]

    def read(self) -> bytes:
        """Its content. Raises FileError where it is not there any more, StoreUnavailableError."""
        if (data := read_stored(self.path, "the file")) is None:
            raise FileError("the file cannot be read: it is not there any more", fix="make it again")
        return data


class FileStore:
    """Files of a folder that keeps them; or of a temporary one, `limit_bytes` and `keep_s` at most.

    In a temporary folder older ones make room for new ones, a client's own first where it has its share. MAX_FILES are
    known; of a folder that keeps its files the others are still there. client_share: of one client. Event loop's
    thread. Raises ConfigError where no temporary folder can be made.
    """

    def __init__(self, folder: Path | None, limit_bytes: int, keep_s: float, client_share: float = 0.5) -> None:
        self._temporary = None if folder is not None else TemporaryFolder("mcp")
        self._folder = folder or self._temporary_path
        self._keep_s = keep_s
        self._bytes = Shares("keeps bytes of results", math.inf if self.keeps else limit_bytes, client_share)
        self._number = Shares("keeps results", MAX_FILES, client_share)
        self._files: dict[str, MadeFile] = {}

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
        return [file for file in reversed(self._files.values()) if file.held[0].client == client]

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
    def room(self, client: str, size_bytes: int) -> Iterator[Holding]:
        """Room for a file that is written inside of the block. Raises ProblemError where there is none."""
        if size_bytes > self._bytes.limit:
            what = f"the file may need {size_bytes / MIB:.0f} MiB, the limit is {self._bytes.limit / MIB:.0f} MiB"
            raise ProblemError(422, "results_too_large", what, fix="ask for less, or raise [server] results_bytes")
        room = self._bytes.take(client, size_bytes)
        try:
            yield room
        finally:
            if room.evict is None:  # no file has it
                room.release()

    def path_of(self, name: str) -> Path:
        """Where a file of this name is written, before `add`."""
        return self._folder / f"{name}{PART}"

    def add(self, name: str, media_type: str, room: Holding, facts: dict[str, Any], plan: dict[str, Any]) -> MadeFile:
        """A complete file, which has the room from now on. Raises StoreError, ProblemError."""
        path, evict = self._folder / name, partial(self._remove, name)
        number = self._number.take(room.client, 1, evict)
        try:
            size_bytes = self.path_of(name).stat().st_size
            room.grow(size_bytes - room.size)
            os.replace(self.path_of(name), path)
        except (OSError, ProblemError) as error:
            number.release()
            if isinstance(error, ProblemError):
                raise
            raise StoreError(f"the file cannot be stored: {error.strerror}", fix="free disk space") from None
        room.evict = evict
        file = self._files[name] = MadeFile(name, path, media_type, size_bytes, facts, plan, (room, number))
        if not self.keeps:
            asyncio.get_running_loop().call_later(self._keep_s, evict)
        return file

    def discard(self, name: str) -> None:
        """Remove what was written of a file that failed."""
        self.path_of(name).unlink(missing_ok=True)

    def _remove(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is None:
            return
        for held in file.held:
            held.release()
        if not self.keeps:
            file.path.unlink(missing_ok=True)
