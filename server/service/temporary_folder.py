"""Temporary folders of servers. What a server that was killed has left is removed by the next one."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import filelock

from runtime.base.errors import ConfigError

PREFIX = "tickrt-server-"
LOCK = ".lock"
# A folder is locked soon after it was made.
NEW_S = 60.0


class TemporaryFolder:
    """A folder of one server, until `close`; its lock ends with the process. Raises ConfigError."""

    def __init__(self, name: str) -> None:
        try:
            remove_abandoned(Path(tempfile.gettempdir()))
            self._parent = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
            self.path = self._parent / name
            self.path.mkdir()
        except OSError as error:
            raise ConfigError(f"no temporary folder can be made: {error.strerror}", fix="set TMPDIR") from None
        self._lock = _locked(self._parent)

    def close(self) -> None:
        """Remove it. Again does nothing."""
        self._lock.release()
        shutil.rmtree(self._parent, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders in `parent` whose server has ended."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        # Folders of other users, and those that a server holds or another one removes now, stay.
        with suppress(OSError, filelock.Timeout):
            if time.time() - path.stat().st_mtime > NEW_S and not path.parent.is_symlink():
                with _locked(path.parent):
                    shutil.rmtree(path.parent)


def _locked(folder: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(folder / LOCK, timeout=0, mode=0o600, thread_local=False)
    lock.acquire()
    return lock
