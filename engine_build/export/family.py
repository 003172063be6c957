"""A family of models: the options of its command, and how its checkpoints become bundles. Needs no torch.

TickRT's own families are instances of it (`acestep/family.py`). Others are a Python file that the command is given, or
an entry point of the group `tickrt.families`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from engine_build.export.bundle_export import GUIDE, BundleExport
from runtime.base.errors import ConfigError, TickError
from runtime.commands.terminal import Terminal, print_line

if TYPE_CHECKING:
    from engine_build.export.check_report import CheckReport

T = TypeVar("T")

GROUP: Final = "tickrt.families"
VARIABLE: Final = "FAMILY"
COMMAND: Final = "python -m engine_build.export"
PLACE: Final = "FOLDER|ID"
ON_THE_HUB: Final = "or an id on the hub, ORG/NAME[/FOLDER][@REVISION]"

# Options that several families have.
NoText = Annotated[bool, typer.Option("--no-text", help="Leave the text encoder out.")]
AllParts = Annotated[
    bool, typer.Option("--all-parts", help="With --random: also the text encoder and what belongs to it, at full size.")
]
Seed = Annotated[int, typer.Option(min=0, help="With --random: the weights' seed.")]
Checked = Annotated[str, typer.Option(metavar=PLACE, help=f"A folder as published, in either layout, {ON_THE_HUB}.")]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the command `export` has to know of a family.

    name: of bundles whose source has none. title: in the command's help. export: its parameters are the command's
    options, as Typer reads them from a function, its docstring is their help; it returns what is exported. check: the
    same for a check of a checkpoint, with the `CheckOptions` as its first argument. canvas_s: the default length of a
    full generation, and most_canvas_s its limit.
    """

    name: str
    export: Callable[..., BundleExport[Any]]
    title: str = ""
    check: Callable[..., CheckReport] | None = None
    canvas_s: float = 60.0
    most_canvas_s: float = 600.0


def plugged_in() -> dict[str, metadata.EntryPoint]:
    """The families of installed packages by name; none of them is imported."""
    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


def family_of_file(path: Path) -> Family:
    """The family that a Python file describes: its `FAMILY`. Raises ConfigError."""

    def load() -> Any:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} is no Python file", fix="--family ./NAME.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # as dataclasses and pickles of the file want it
        spec.loader.exec_module(module)
        return getattr(module, VARIABLE, None)

    if not path.is_file():
        raise ConfigError(f"there is no file {path}", fix="--family ./NAME.py, or the name of an installed family")
    return _family(load, str(path))


def family_of_entry(entry: metadata.EntryPoint) -> Family:
    """The family of an installed package. Raises ConfigError."""
    return _family(entry.load, f"the family {entry.name} ({entry.value})")


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    print_line(text, Terminal(stderr=True))


def of_family(read: Callable[[], T], others: Mapping[str, Callable[[], object]]) -> T:
    """A checkpoint. Raises ConfigError; where one of the other families can read it, with that one's command."""
    try:
        return read()
    except ConfigError as error:
        for name, read_as_other in others.items():
            try:
                read_as_other()
            except ConfigError:
                continue
            raise ConfigError(error.what, fix=f"it is another family's: {COMMAND} {name}") from None
        raise


def _family(load: Callable[[], Any], where: str) -> Family:
    try:
        found = load()
    except TickError:
        raise
    except Exception as error:  # of any kind: the code is not ours
        raise ConfigError(f"{where} cannot be loaded: {type(error).__name__}: {error}", fix=f"see {GUIDE}") from error
    if not isinstance(found, Family):
        what = f"{where} has no {VARIABLE} of class Family" if found is None else f"{where} is a {type(found).__name__}"
        raise ConfigError(f"{what}, expected {VARIABLE} = Family(...)", fix=f"see {GUIDE}")
    return found
