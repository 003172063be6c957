"""Headers of TensorRT plan files, read without TensorRT and without a GPU.

A plan begins with a magic, "ftrt" (TensorRT) or "vtrt" (TensorRT-RTX), and four zero bytes; bytes 24 to 27 are the
version that built it (as trtexec's getPlanVersionOnly reads it).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.base.errors import EngineMismatchError, EngineNotBuiltError
from runtime.base.files import reading

MAGICS = {b"ftrt": "TensorRT", b"vtrt": "TensorRT-RTX"}
VERSION_AT = 24
# Of the files beside a folder of engines that keep what TensorRT-RTX compiled for them.
KERNELS_SUFFIX = ".kernels"
HEADER_BYTES = VERSION_AT + 4


@dataclass(frozen=True, slots=True)
class EngineHeader:
    """A plan's header: the library that built it, TensorRT or TensorRT-RTX, and its version, in four parts."""

    library: str
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as TensorRT writes it: "11.4.0.106"."""
        return ".".join(map(str, self.version))


def read_engine_header(path: Path, *, fix: str = "") -> EngineHeader:
    """The header of the plan at `path`.

    Raises EngineNotBuiltError (no file), EngineMismatchError (not a plan), StoreUnavailableError.
    """
    try:
        with reading(path), path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except FileNotFoundError:
        raise EngineNotBuiltError(f"no plan at {path}", fix=fix) from None
    return parse_engine_header(head, str(path), fix=fix)


def parse_engine_header(head: bytes, label: str, *, fix: str = "") -> EngineHeader:
    """The header from a plan's first bytes. Raises EngineMismatchError that says what is wrong."""
    if len(head) < HEADER_BYTES:
        raise EngineMismatchError(f"{label} has {len(head)} bytes, a plan has at least {HEADER_BYTES}", fix=fix)
    library = MAGICS.get(head[:4])
    if library is None:
        raise EngineMismatchError(f"{label} is not a TensorRT plan: it begins with {head[:4]!r}", fix=fix)
    if head[4:8] != bytes(4):
        raise EngineMismatchError(f"{label} is a damaged plan: bytes 4 to 7 are {head[4:8].hex()}, not 0", fix=fix)
    return EngineHeader(library, tuple(head[VERSION_AT:HEADER_BYTES]))


def check_engine_version(
    header: EngineHeader, library: str, installed: str, label: str, *, version_compatible: bool = False, fix: str = ""
) -> None:
    """Check that the installed version of a library ("TensorRT" or "TensorRT-RTX") loads a plan.

    It is the version that built the plan, or a later one if it is version compatible. Raises EngineMismatchError.
    """
    version = parse_version(installed)
    is_later = version_compatible and header.version < version
    if header.library == library and (header.version == version or is_later):
        return
    kind = "or a later one" if version_compatible else "exactly"
    raise EngineMismatchError(
        f"{label} was built by {header.library} {header.version_text} and needs that {kind}, "
        f"installed is {library} {installed}",
        fix=fix,
    )


def parse_version(text: str) -> tuple[int, ...]:
    """ "11.4.0.106" -> (11, 4, 0, 106); parts after the fourth are ignored."""
    return tuple(int(part) for part in text.split(".")[:4])
