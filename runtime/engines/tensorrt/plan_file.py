"""TensorRT plan files, read without TensorRT and without a GPU: whether one is whole, and which version made it.

A plan begins with the magic "ftrt", 32 bits that are zero, and has the version that made it in bytes 24 to 27 (as
trtexec's getPlanVersionOnly reads it).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.errors import EngineMismatchError, EngineNotBuiltError

MAGIC = b"ftrt"
VERSION_AT = 24
HEADER_BYTES = VERSION_AT + 4


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """What the first bytes of a plan say: `version` is major, minor, patch, build of the TensorRT that made it."""

    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as TensorRT writes it: "11.4.0.106"."""
        return ".".join(map(str, self.version))


def read_plan_header(path: Path, *, fix: str = "") -> PlanHeader:
    """The header of the plan at `path`. Raises EngineNotBuiltError (no file) or EngineMismatchError (no plan)."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except FileNotFoundError:
        raise EngineNotBuiltError(f"no plan at {path}", fix=fix) from None
    except OSError as error:
        raise EngineMismatchError(f"{path} cannot be read: {error.strerror}", fix=fix) from error
    return parse_plan_header(head, str(path), fix=fix)


def parse_plan_header(head: bytes, label: str, *, fix: str = "") -> PlanHeader:
    """The header from a plan's first bytes. Raises EngineMismatchError that says what is wrong with them."""
    if len(head) < HEADER_BYTES:
        raise EngineMismatchError(f"{label} has {len(head)} bytes, a plan has at least {HEADER_BYTES}", fix=fix)
    if head[:4] != MAGIC:
        raise EngineMismatchError(f"{label} is no TensorRT plan: it begins with {head[:4]!r}, not {MAGIC!r}", fix=fix)
    if head[4:8] != bytes(4):
        raise EngineMismatchError(f"{label} is a damaged plan: bytes 4 to 7 are {head[4:8].hex()}, not 0", fix=fix)
    return PlanHeader(tuple(head[VERSION_AT:HEADER_BYTES]))


def check_plan_version(
    header: PlanHeader, installed: str, label: str, *, version_compatible: bool = False, fix: str = ""
) -> None:
    """A plan loads on the version that made it; one built as version compatible on that one and later ones.

    Raises EngineMismatchError with both versions.
    """
    here = parse_version(installed)
    if header.version == here or (version_compatible and header.version < here):
        return
    kind = "or a later one" if version_compatible else "exactly"
    raise EngineMismatchError(
        f"{label} was made by TensorRT {header.version_text} and needs that {kind}, installed is {installed}", fix=fix
    )


def parse_version(text: str) -> tuple[int, ...]:
    """ "11.4.0.106" -> (11, 4, 0, 106); anything after the fourth number does not count."""
    return tuple(int(part) for part in text.split(".")[:4])
