"""Exports a bundle step by step: every graph is compared with its module, one module in memory at a time.

Complete steps stay for the next run, in a folder of their own; the bundle appears at the end.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import os
import re
import shutil
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import filelock
import typer
from pydantic_core import from_json

import engine_build.export
from engine_build.export.bundle_tables import FamilyFacts
from runtime.base.errors import BuildError, ConfigError, TickError
from runtime.base.files import is_left_behind, read_stored, reading
from runtime.commands.terminal import shown_path
from runtime.config.bundle import BUNDLE_FILE, load_bundle
from runtime.engines.manifest import file_sha256, write_atomically

FactsType = TypeVar("FactsType", bound=FamilyFacts)

ERROR_LIMIT: Final = 1e-3
GUIDE: Final = 'engine_build/README.md, "A family of your own"'
RECORD_SUFFIX: Final = ".step.json"
REMEDIES: Final = 'engine_build/README.md, "Where torch cannot export a module"'

Facts = dict[str, Any]
OnProgress = Callable[[str], None]


class CheckpointSource(Protocol):
    """The parts of an export, by name."""

    @property
    def name(self) -> str:
        """The default name of the bundle."""

    @property
    def description(self) -> str:
        """The bundle's description."""

    def has(self, part: str) -> bool:
        """Whether `load(part)` has something to load."""

    def load(self, part: str) -> Any:
        """A new module in float32, in eval mode; for `tokenizer` the fast tokenizer."""

    def report(self) -> Iterator[str]:
        """Lines about what there is, without loading it."""

    def fingerprint(self) -> str:
        """A hash of everything that is loaded."""


@dataclass(frozen=True)
class Parts:
    """A source whose parts are made by functions. key: changes with what the functions make.

    name: of the bundle, and its description in a sentence, where the command is not given others.
    """

    make: Mapping[str, Callable[[], Any]]
    key: str
    name: str = ""
    description: str = ""

    def has(self, part: str) -> bool:
        """Whether there is a function for it."""
        return part in self.make

    def load(self, part: str) -> Any:
        """What its function makes, a module in eval mode and float32."""
        found = self.make[part]()
        return found.float().eval() if hasattr(found, "eval") else found

    def report(self) -> Iterator[str]:
        """The names of the parts."""
        yield f"{self.name or 'parts'}: {', '.join(self.make)}"

    def fingerprint(self) -> str:
        """The key."""
        return self.key


@dataclass(frozen=True)
class ExportOptions:
    """Options beside the source.

    `canvas_s`: length of a full generation; `force`: start anew.
    """

    name: str
    canvas_s: float = 60.0
    description: str = ""
    force: bool = False


class ExportStep(NamedTuple):
    """One part of a bundle; skipped where the source lacks a part that it `needs`.

    `export(source, folder, facts)` writes files into the folder. It gets the facts that the steps before it returned,
    and returns more of them, as JSON has them.
    """

    name: str
    needs: tuple[str, ...]
    export: Callable[[CheckpointSource, Path, Facts], Facts]


@dataclass(frozen=True)
class BundleExport(Generic[FactsType]):
    """What is exported, and how it is described.

    The steps run in their order; those whose parts the source lacks are left out. facts: a class, made of what the
    steps returned: it writes bundle.toml and a first deployment. without: parts that are left out.
    """

    source: CheckpointSource
    steps: Sequence[ExportStep]
    facts: Callable[..., FactsType] = FamilyFacts  # type: ignore[assignment]
    without: Collection[str] = ()

    def present_steps(self) -> list[ExportStep]:
        """The steps whose parts the source has, and that need none of the parts `without`."""
        has = {part: self.source.has(part) and part not in self.without for step in self.steps for part in step.needs}
        return [step for step in self.steps if all(has[part] for part in step.needs)]

    def facts_of(self, found: Facts) -> FactsType:
        """Raises ConfigError where the steps returned too few facts, or others."""
        wanted = inspect.signature(self.facts).parameters
        missing = [name for name, each in wanted.items() if each.default is each.empty and name not in found]
        unknown = [name for name in found if name not in wanted]
        if missing or unknown:
            words = [f"no {', '.join(missing)}"] * bool(missing) + [f"{', '.join(unknown)}, unknown"] * bool(unknown)
            what = f"the family's steps return {' and '.join(words)}"
            raise ConfigError(what, fix=f"facts are {', '.join(wanted)}: see {GUIDE}")
        return self.facts(**found)


def write_bundle(
    export: BundleExport[FactsType], folder: Path, options: ExportOptions, on_progress: OnProgress = print
) -> FactsType:
    """Write a bundle into a temporary folder and rename it when it is complete; an older bundle is replaced.

    Returns what bundle.toml says. Raises BuildError where a graph differs from its module or a step fails, ConfigError
    where the source lacks a part or the folder is not a bundle.
    """
    _check_replaceable(folder)
    source, log = export.source, log_of(folder)
    log.unlink(missing_ok=True)
    found: Facts = {"canvas_s": options.canvas_s}
    with one_sentence("source", log):
        steps = export.present_steps()
        for line in source.report():
            on_progress(line)
        key = f"{source.fingerprint()} {exporter_version(steps)} {found}"
    with working_folder(folder, force=options.force) as working:
        runs = Steps(working, key)
        try:
            for step in steps:
                on_progress(f"{step.name} ...")
                with one_sentence(step.name, log):
                    result, is_new = runs.run(step.name, partial(step.export, source, working, dict(found)))
                if not is_new:
                    on_progress(f"{step.name}: complete since an earlier run")
                found |= result
                gc.collect()
            with one_sentence(BUNDLE_FILE, log):
                facts = export.facts_of({"name": options.name, "description": options.description, **found})
                (working / BUNDLE_FILE).write_text(facts.bundle_text(), encoding="utf-8")
                load_bundle(working)  # what is wrong in it is told here, and replaces nothing
        except (KeyboardInterrupt, BuildError, ConfigError):
            if runs.complete:
                on_progress(f"kept for the next run: {', '.join(runs.complete)}")
            raise
        runs.close(BUNDLE_FILE)
    return facts


class ModuleError(BuildError):
    """A module of a family fails where it is run or traced; the cause is what torch or the module raised."""


def log_of(folder: Path) -> Path:
    """Where the tracebacks of a bundle's export are."""
    return folder.with_name(f"{folder.name}.export.log")


@contextmanager
def one_sentence(step: str, log: Path) -> Iterator[None]:
    """Turn what a family's code, torch or diffusers raise into a BuildError; the traceback goes into the log."""
    try:
        yield
    except Exception as error:  # of any kind: the code is not ours
        is_told = isinstance(error, TickError | typer.TyperException) or getattr(error, "strerror", None) is not None
        if is_told and not isinstance(error, ModuleError):
            raise
        log.write_text(traceback.format_exc(), encoding="utf-8")
        what, fix = (error.what, f"{error.fix}; ") if isinstance(error, ModuleError) else (first_line(error), "")
        raise BuildError(f"{step}: {what}", fix=f"{fix}the traceback is in {shown_path(log)}") from error


def first_line(error: BaseException) -> str:
    """The class and the first line of an error's innermost cause, without colours; after a heading also the next."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    said = " ".join(line.strip() for line in lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {said}"


def folder_key(folder: Path) -> str:
    """A hash of all files of a checkpoint's folder and of the folders in it, for `Parts`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not _is_left_behind(file, folder))
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


def _is_left_behind(file: Path, folder: Path) -> bool:
    return any(map(is_left_behind, file.relative_to(folder).parts))


def exporter_version(steps: Sequence[ExportStep] = ()) -> str:
    """Changes with what a graph depends on beside its weights.

    That is the source of this package and of the steps' files, and the packages that trace.
    """
    own = Path(engine_build.export.__file__).parent.rglob("*.py")
    functions = (inspect.unwrap(getattr(step.export, "func", step.export)) for step in steps)
    codes = (getattr(function, "__code__", None) for function in functions)
    sources = sorted({*own, *(Path(code.co_filename) for code in codes if code is not None)})
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "diffusers", "onnxscript")]
    return hashlib.sha256("".join([*versions, *(path.read_text("utf-8") for path in sources)]).encode()).hexdigest()


def bundle_name(name: str, otherwise: str) -> str:
    """A name reduced to the characters that bundle names may have; `otherwise` where none is left."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or otherwise


def checked(name: str, error: float) -> float:
    """The error, if it is small. Raises BuildError."""
    if not error <= ERROR_LIMIT:
        what = f"{name} differs from its module by {error:.1e}, expected at most {ERROR_LIMIT:.0e}"
        raise BuildError(what, fix=f"see {REMEDIES}")
    return error


def _check_replaceable(folder: Path) -> None:
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / BUNDLE_FILE).is_file():
        raise ConfigError(f"{folder} exists and is not a bundle: it is not replaced", fix="--out another folder")


@contextmanager
def working_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """A locked folder beside `folder`, renamed to it at the end; an older `folder` is replaced.

    After a failure it stays where it has a complete step; `force` removes it first. Raises BuildError where another
    export works in it.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "old"))
    try:
        with filelock.FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0):
            _put_back(folder, old)
            if force:
                shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(exist_ok=True)
            try:
                yield partial
                _replace(folder, partial, old)
            finally:
                with suppress(OSError):  # what cannot be listed stays
                    if not any(name.endswith(RECORD_SUFFIX) for name in os.listdir(partial)):
                        shutil.rmtree(partial, ignore_errors=True)
    except filelock.Timeout:
        raise BuildError(f"another export is writing {folder}", fix="wait until it is done") from None


class Steps:
    """Runs the steps of an export in their order; those that an earlier run completed with the same key are not run.

    A step's key is a hash of the export's key and of all results before it. From the first step on that has to run,
    everything in the folder is made anew.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._key = key
        self._files: set[str] = set()
        self.complete: list[str] = []

    def run(self, name: str, export: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The step's result, plain JSON values, and whether it was run; its files are in the folder.

        Raises StoreUnavailableError where it cannot be told whether an earlier run has completed it.
        """
        record_file = self._folder / f"{name.replace(' ', '_')}{RECORD_SUFFIX}"
        self._key = _digest(self._key, name)
        record = self._complete_record(record_file)
        is_new = record is None
        if record is None:
            self._remove_others()
            result = export()
            sizes = {file.name: file.stat().st_size for file in self._others()}
            record = {"key": self._key, "files": sizes, "result": result}
            write_atomically(record_file, json.dumps(record).encode())
        self._files |= {record_file.name, *record["files"]}
        self._key = _digest(self._key, json.dumps(record["result"], sort_keys=True))
        self.complete.append(name)
        result = json.loads(json.dumps(record["result"]))
        return result, is_new

    def close(self, *kept: str) -> None:
        """Remove the records, and what no step of this run has written; files `kept` stay."""
        self._files = {name for name in self._files if not name.endswith(RECORD_SUFFIX)} | set(kept)
        self._remove_others()

    def _complete_record(self, file: Path) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = from_json(read_stored(file) or b"")
            with reading(file):
                sizes = {name: (self._folder / name).stat().st_size for name in record["files"]}
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return record if record["key"] == self._key and record["files"] == sizes else None

    def _others(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.name not in self._files]

    def _remove_others(self) -> None:
        for file in self._others():
            file.unlink()


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _replace(folder: Path, partial: Path, old: Path) -> None:
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        partial.rename(folder)
    except BaseException:
        _put_back(folder, old)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _put_back(folder: Path, old: Path) -> None:
    """Undo an interrupted _replace."""
    if not folder.exists():
        with suppress(FileNotFoundError):
            old.rename(folder)
