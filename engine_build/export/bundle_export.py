"""Exports a bundle step by step: every graph is compared with its module, one module in memory at a time."""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import engine_build.export
from engine_build.export.resume import Steps, working_folder
from runtime.config.bundle import BUNDLE_FILE
from runtime.errors import BuildError, ConfigError

ERROR_LIMIT: Final = 1e-3

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
class ExportOptions:
    """Options beside the source.

    `canvas_s`: length of a full generation; `with_text`: export the text encoder; `force`: start anew.
    """

    name: str
    canvas_s: float = 60.0
    with_text: bool = True
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


def write_bundle(
    source: CheckpointSource,
    folder: Path,
    options: ExportOptions,
    steps: Sequence[ExportStep],
    bundle_text: Callable[[Mapping[str, Any]], str],
    on_progress: OnProgress,
) -> None:
    """Write a bundle into a temporary folder and rename it when it is complete; an older bundle is replaced.

    bundle_text: facts -> bundle.toml. Raises BuildError where a graph differs from its module, ConfigError where the
    source lacks a part or the folder is not a bundle.
    """
    _check_replaceable(folder)
    for line in source.report():
        on_progress(line)
    found: Facts = {"canvas_s": options.canvas_s}
    with working_folder(folder, force=options.force) as working:
        runs = Steps(working, f"{source.fingerprint()} {exporter_version()} {found}")
        try:
            for step in steps:
                on_progress(f"{step.name} ...")
                result, is_new = runs.run(step.name, partial(step.export, source, working, dict(found)))
                if not is_new:
                    on_progress(f"{step.name}: complete since an earlier run")
                found |= result
                gc.collect()
        except (KeyboardInterrupt, BuildError, ConfigError):
            if runs.complete:
                on_progress(f"kept for the next run: {', '.join(runs.complete)}")
            raise
        runs.close()
        text = bundle_text({"name": options.name, "description": options.description, **found})
        (working / BUNDLE_FILE).write_text(text, encoding="utf-8")


def steps_with(source: CheckpointSource, steps: Sequence[ExportStep], without: frozenset[str]) -> list[ExportStep]:
    """The steps whose parts the source has, and that need none of the parts `without`."""
    return [step for step in steps if all(source.has(part) and part not in without for part in step.needs)]


def need_parts(source: CheckpointSource, folder: Path, parts: Sequence[str], fix: str = "") -> None:
    """Raises ConfigError where the source, a checkpoint's folder, lacks a part. Default of fix: to copy it."""
    missing = [part for part in parts if not source.has(part)]
    if missing:
        what = f"{folder} has no {', '.join(missing)}, which a check needs: it compares music that is made from a text"
        raise ConfigError(what, fix=fix or "copy or download the whole checkpoint")


def exporter_version() -> str:
    """Changes with what a graph depends on beside its weights: this package's source and the packages that trace."""
    sources = sorted(Path(engine_build.export.__file__).parent.rglob("*.py"))
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "diffusers", "onnxscript")]
    return hashlib.sha256("".join([*versions, *(path.read_text("utf-8") for path in sources)]).encode()).hexdigest()


def bundle_name(name: str, otherwise: str) -> str:
    """A name reduced to the characters that bundle names may have; `otherwise` where none is left."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or otherwise


def checked(name: str, error: float) -> float:
    """The error, if it is small. Raises BuildError."""
    if not error <= ERROR_LIMIT:
        raise BuildError(f"{name} differs from its module by {error:.1e}, expected at most {ERROR_LIMIT:.0e}")
    return error


def _check_replaceable(folder: Path) -> None:
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / BUNDLE_FILE).is_file():
        raise ConfigError(f"{folder} exists and is not a bundle: it is not replaced", fix="--out another folder")
