"""The report of a checkpoint's check: figures with their limits, as Markdown and as JSON, to be sent to others.

It names no folder, file or user of the machine that it comes from, and holds no audio.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from runtime.base.errors import TickError
from runtime.base.files import expanded
from runtime.commands.terminal import markdown_table, markdown_text
from runtime.config.deployment import Target
from runtime.devices.machine import machine_of, num_cores
from runtime.engines.loading import tool_versions

Result = Literal["pass", "fail", "skipped"]

PACKAGES: Final = ("tickrt", "torch", "diffusers", "transformers", "onnxscript", "numpy")
# An absolute path, or a relative one of several parts, up to where a text goes on.
_PATH: Final = re.compile(r"""(?<![^\s'"(),:;])[^\s'"(),:;]*[\\/][^\s'"(),:;]+""")


@dataclass(frozen=True)
class Check:
    """A question, and the figure that answers it. detail: what the figure is of, or why there is none."""

    name: str
    result: Result
    figure: float | None = None
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def limit(self) -> str:
        """The limits in words; "" where there are none."""
        ends = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{word} {number(end, self.unit)}" for word, end in ends if end is not None)


@dataclass(frozen=True)
class CheckFigure:
    """A figure that has no limit, such as a time."""

    name: str
    figure: float
    unit: str = ""


@dataclass(frozen=True)
class CheckReport:
    """What was checked. model, machine, versions: what it was checked on, by name."""

    family: str
    model: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    checks: Sequence[Check]
    figures: Sequence[CheckFigure]

    def count(self, result: Result) -> int:
        """How many checks ended so."""
        return sum(check.result == result for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON has it; a figure that is not finite is null."""
        content = asdict(self)
        for each in (*content["checks"], *content["figures"]):
            if each["figure"] is not None and not math.isfinite(each["figure"]):
                each["figure"] = None
        counts = {result: self.count(result) for result in ("pass", "fail", "skipped")}
        return {"report": "tickrt-check", "schema_version": 1, **content, "counts": counts}

    def markdown(self) -> str:
        """The report as Markdown."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        counts = f"{self.count('pass')} passed, {self.count('fail')} failed, {self.count('skipped')} skipped"
        yield f"# TickRT: a check of {markdown_text(self.family)}"
        yield f"\n{len(self.checks)} checks: {counts}.\n"
        rows = [
            (each.name, number(each.figure, each.unit), each.limit, each.result, each.detail) for each in self.checks
        ]
        yield from markdown_table(("check", "figure", "limit", "result", ""), rows, 5)
        yield ""
        yield from markdown_table(
            ("figure", ""), [(each.name, number(each.figure, each.unit)) for each in self.figures], 2
        )
        yield ""
        facts = {**self.model, **self.machine, **self.versions}
        yield from markdown_table(("", ""), facts.items(), 2)


def measured(
    name: str,
    figure: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    unit: str = "",
    detail: str = "",
) -> Check:
    """A check that passes within its limits; a figure that is not finite fails."""
    is_within = (at_least is None or figure >= at_least) and (at_most is None or figure <= at_most)
    result: Result = "pass" if math.isfinite(figure) and is_within else "fail"
    return Check(name, result, float(figure), unit, at_least, at_most, detail)


def skipped(name: str, reason: str) -> Check:
    """A check that could not be made."""
    return Check(name, "skipped", detail=reason)


def answered(name: str, ask: Callable[[], Check], folders: Iterable[Path]) -> Check:
    """What `ask` answers; where it fails, the check does, and the others go on. folders: no part of the report."""
    try:
        return ask()
    except (TickError, RuntimeError, ValueError) as error:
        text = str(error).partition("\n")[0]
        return Check(name, "fail", detail=f"it did not run: {without_paths(text, folders)}")


def without_paths(text: str, folders: Iterable[Path] = ()) -> str:
    """A text with "..." in place of everything that looks like a path. folders: names with spaces, known as a whole."""
    known = {str(path) for folder in (*folders, expanded(Path("~"))) for path in (folder, folder.absolute())}
    for path in sorted(known - {".", "/"}, key=len, reverse=True):
        text = text.replace(path, "...")
    return _PATH.sub("...", text)


def this_machine(target: Target) -> dict[str, str]:
    """Processor, cores, system, and the GPU where the target uses one."""
    system = f"{platform.system()} {platform.machine()}"
    names = {"cpu": "processor", "gpu": "GPU", "compute_capability": "compute capability"}
    found = {names[key]: value for key, value in machine_of(target).items() if key in names}
    return {**found, "cores": str(num_cores()), "system": system, "target": target}


def versions_of(target: Target) -> dict[str, str]:
    """Python's version, and those of the packages that figures depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {**found, **tool_versions(target)}


def number(value: float | None, unit: str = "") -> str:
    """Three digits and the unit; "" for none."""
    return "" if value is None else f"{value:.3g} {unit}".rstrip()
