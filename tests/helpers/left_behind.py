"""What file managers, editors, Git, notebooks and downloads leave in folders of people."""

from __future__ import annotations

import os
from pathlib import Path

# Files with any content; {name}: that of a file that is there.
FILES = (
    *(".DS_Store", "._{name}", "Icon\r", ".localized", "Thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini"),
    *("~${name}", "{name}~", ".{name}.swp", "#recycle", ".gitignore", ".gitattributes", ".gitkeep", ".sync.ffs_db"),
    *("{name}.part", "{name}.incomplete", "{name}.crdownload", "{name}.download", "{name}.tmp", "{name}.partial"),
    *(".{name}.icloud", ".~lock.{name}#", "{name}.aria2"),
)
FOLDERS = (
    *(".git", ".cache", ".ipynb_checkpoints", ".vscode", "__pycache__", "__MACOSX", "$RECYCLE.BIN", "lost+found"),
    *("System Volume Information", "@eaDir", ".Trash-1000", ".Spotlight-V100"),
)


def leave_behind(folder: Path, name: str) -> list[str]:
    """Put all of it beside `folder / name`, with that file in the folders; returns the names."""
    names = [each.format(name=name) for each in FILES]
    for each in names:
        (folder / each).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        ")
    for each in FOLDERS:
        (folder / each).mkdir()
        (folder / each / Path(name).name).write_bytes(b"\0")
    (folder / ".broken").symlink_to("gone")
    return [*names, *FOLDERS, ".broken"]


def without_rights(path: Path) -> bool:
    """Take the right to read a path; False where this user may read everything."""
    path.chmod(0)
    return not os.access(path, os.R_OK)
