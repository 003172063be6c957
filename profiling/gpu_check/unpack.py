"""Restores a prepared check on another machine: `python unpack.py PARTS DEST`. It needs Python and numpy, and no other.

PARTS has some of the parts, DEST keeps those that came before. Once all are there and whole, files are joined, weights
are drawn again, packages are installed into DEST/site, and the command that begins the check is printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

MANIFEST, SITE, WHEELS, CODE, SOURCE = "parts.json", "site", "wheels", "code", "source"
REST = ".rest"
CHUNK = 1 << 20
# Of the sum of four numbers of 16 bits: the mean, and the standard deviation.
MEAN, DEVIATION = 131_070, ((65_536**2 - 1) / 3) ** 0.5


def drawn(seed: int, count: int, scale: float) -> Iterator[bytes]:
    """`count` float32 values around 0, little-endian; the same bytes on every machine and with every numpy.

    numpy keeps the numbers of its generators, not those of its distributions: each value is the sum of the four parts
    of 16 bits of one number, which float32 holds exactly, times `scale`.
    """
    import numpy as np

    numbers, pairs = np.random.PCG64(seed), np.uint64(0x0000FFFF0000FFFF)
    for begin in range(0, count, CHUNK):
        raw = numbers.random_raw(min(CHUNK, count - begin))
        both = (raw & pairs) + ((raw >> np.uint64(16)) & pairs)
        total = (both + (both >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        yield ((total.astype(np.int64) - MEAN).astype("<f4") * np.float32(scale)).astype("<f4").tobytes()


def write_whole(path: Path, pieces: Iterator[bytes], sha256: str = "") -> str:
    """Write a file under its name once it is complete and has this hash; returns it. Raises ValueError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, found = path.with_name(path.name + ".partial"), hashlib.sha256()
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                found.update(piece)
                file.write(piece)
        if sha256 and found.hexdigest() != sha256:
            raise ValueError(f"{path} has SHA-256 {found.hexdigest()[:12]}, expected {sha256[:12]}")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return found.hexdigest()


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file's bytes."""
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def sha256_of(path: Path) -> str:
    """A file's hash; "" where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_weights_drawn(rest: Path, weights: dict[str, Any]) -> Iterator[bytes]:
    """The bytes of a file with weights: what was carried of it, and what is drawn between."""
    done = 0
    with rest.open("rb") as file:
        for offset, count, seed, scale in [*weights["drawn"], [weights["bytes"], 0, 0, 0.0]]:
            left = offset - done
            while left:
                piece = file.read(min(left, CHUNK))
                if not piece:
                    raise ValueError(f"{rest} is too short")
                left -= len(piece)
                yield piece
            yield from drawn(seed, count, scale)
            done = offset + 4 * count


def here() -> dict[str, Any]:
    """This machine, as `prepare --machine` reads it: Python, C library, processor, installed packages."""
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "glibc": platform.libc_ver()[1],
        "machine": platform.machine(),
        "packages": {
            each.name.lower().replace("_", "-"): each.version for each in metadata.distributions() if each.name
        },
    }


def collect(parts: Path, dest: Path, manifest: dict[str, Any]) -> list[str]:
    """Keep the parts that came; returns what is missing or damaged, in words."""
    problems = []
    for part in manifest["parts"]:
        kept, came = dest / "parts" / part["name"], parts / part["name"]
        if kept.is_file() and kept.stat().st_size == part["bytes"]:
            continue
        if not came.is_file():
            problems.append(f"{part['name']} is missing")
            continue
        try:
            write_whole(kept, pieces_of(came), part["sha256"])
        except ValueError as error:
            problems.append(f"{part['name']} is damaged: {error}")
    return problems


def restore(dest: Path, manifest: dict[str, Any]) -> None:
    """Join the parts, and draw the weights. What is there and whole stays. Raises ValueError, OSError."""
    stream = (piece for part in manifest["parts"] for piece in pieces_of(dest / "parts" / part["name"]))
    waiting = b""
    for item in manifest["files"]:

        def pieces(left: int = item["bytes"]) -> Iterator[bytes]:
            nonlocal waiting
            while left:
                waiting = waiting or next(stream, b"")
                if not waiting:
                    raise ValueError("the parts are too short")
                piece, waiting = waiting[:left], waiting[left:]
                left -= len(piece)
                yield piece

        if sha256_of(dest / item["path"]) == item["sha256"]:
            for _ in pieces():
                pass
        else:
            write_whole(dest / item["path"], pieces(), item["sha256"])
    for item in manifest["weights"]:
        if sha256_of(dest / item["path"]) != item["sha256"]:
            print(f"drawing {item['path']} ({item['bytes'] / 1e9:.2f} GB)", flush=True)
            write_whole(dest / item["path"], with_weights_drawn(dest / (item["path"] + REST), item), item["sha256"])


def unfit(manifest: dict[str, Any]) -> list[str]:
    """Why wheels do not fit this interpreter, in words."""
    machine = {"python": ".".join(map(str, sys.version_info[:2])), "machine": platform.machine()}
    return [
        f"wheels are for {name} {wanted}, this is {machine[name]}"
        for name in machine
        if (wanted := manifest["machine"][name]) != machine[name] and manifest["wheels"]
    ]


def install(dest: Path, manifest: dict[str, Any]) -> str:
    """Install the wheels into DEST/site; returns what failed, in words."""
    wheels = [str(dest / WHEELS / name) for name in manifest["wheels"]]
    if not wheels:
        return ""
    words = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(dest / SITE))
    done = subprocess.run([sys.executable, "-m", "pip", *words, *wheels], capture_output=True, text=True, check=False)
    return f"packages cannot be installed: {done.stderr.strip()[-300:]}" if done.returncode else ""


def unpack(
    parts: Path, dest: Path, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> list[str]:
    """Everything that can be done with the parts that are there; returns the problems, in words. Raises OSError."""
    manifest = json.loads((parts / MANIFEST).read_bytes())
    needed = sum(each["bytes"] for kind in ("parts", "files", "weights") for each in manifest[kind])
    dest.mkdir(parents=True, exist_ok=True)
    if problems := collect(parts, dest, manifest):
        return problems
    if not (dest / SOURCE).exists() and (free := free_bytes(dest)) < needed:
        return [f"{needed / 1e9:.1f} GB are needed in {dest}, {free / 1e9:.1f} GB are free"]
    try:
        restore(dest, manifest)
    except ValueError as error:
        return [str(error)]
    problems = unfit(manifest) or [install(dest, manifest)]
    return [*filter(None, problems), *(f"not carried: {name}" for name in manifest["missing"])]


def main(words: Sequence[str]) -> int:
    """The exit status: 0 where everything is there, 1 where something is missing, 2 for other words than PARTS DEST."""
    if list(words) == ["describe"]:
        print(json.dumps(here(), indent=1))
        return 0
    if len(words) != 2:
        print("usage: python unpack.py PARTS DEST, or python unpack.py describe", file=sys.stderr)
        return 2
    parts, dest = (Path(word).resolve() for word in words)
    try:
        problems = unpack(parts, dest)
    except OSError as error:
        problems = [f"{error.filename or dest}: {error.strerror}"]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    path = os.pathsep.join(str(dest / name) for name in (SITE, CODE, f"{CODE}/runtime/api"))
    print(f"PYTHONPATH={path} {sys.executable} -m profiling.gpu_check --source {dest / SOURCE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
