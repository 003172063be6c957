"""Folders that people keep files in: what file managers, editors, Git and downloads leave there is no file of ours."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from runtime.base.errors import ConfigError

# Names that begin with a point are hidden from people: ._x, .DS_Store, .git, .cache, .ipynb_checkpoints, .x.icloud.
# Then locks of Office, backups of editors, downloads that are not complete; folders' own files and waste.
_LEFT_BEHIND = re.compile(
    r"\..*|~\$.*|.*~|.*\.(part|partial|incomplete|crdownload|download|opdownload|aria2|tmp|temp|swp|bak)"
    r"|(eh)?thumbs\.db|desktop\.ini|icon\r|__macosx|__pycache__|@eadir|#recycle|\$recycle\.bin|lost\+found"
    r"|system volume information",
    re.IGNORECASE | re.DOTALL,
)


def is_left_behind(name: str) -> bool:
    """Whether a name is that of a file or folder which a program leaves beside those of people."""
    return _LEFT_BEHIND.fullmatch(name) is not None


def own_entries(folder: Path, suffix: str = "") -> list[Path]:
    """The files and folders with this suffix that people or we have put into a folder, by name. Raises OSError."""
    found = [path for path in folder.iterdir() if path.name.endswith(suffix) and not is_left_behind(path.name)]
    return sorted(found, key=lambda path: plain_name(path.name))


def plain_name(name: str) -> str:
    """A name in Unicode's composed form (NFC), as people type it; some file systems keep another one of "é"."""
    return unicodedata.normalize("NFC", name)


def expanded(path: Path) -> Path:
    """A path with the folder of a user in place of ~ or ~NAME at its beginning; as it is where there is none."""
    return Path(os.path.expanduser(path))


def user_folder(find: Callable[[], Path], fix: str) -> Path:
    """A folder of this user, of platformdirs. Raises ConfigError where the system knows no home folder."""
    try:
        return find()
    except RuntimeError:  # HOME is not set, and the user is not in the system's list, as in a container
        raise ConfigError("this user has no home folder: HOME is not set", fix=fix) from None
