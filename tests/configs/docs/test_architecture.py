"""The map of the source: what it names is there, and its arrows are those that tests/test_arrows.py allows."""

from __future__ import annotations

import re
from functools import cache

import pytest
from helpers.paths import ROOT
from test_arrows import MAY_IMPORT

TEXT = (ROOT / "configs/docs/pages/architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
# Steps, and rows of a table: each names files and what is in them.
ITEMS = [item for item in re.split(r"\n(?=\d\. |\| |\n)", TEXT) if ".py`" in item]
# Packages of packages, each of which has arrows of its own.
OUTER = ("runtime", "server")


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[:40])
def test_what_is_named_stands_in_the_file_before_it(item: str) -> None:
    for path, name in re.findall(r"`([\w/]+\.py)`: `(\w+(?:\.\w+)?)`", item):
        for part in name.split("."):
            assert re.search(rf"^\s*(?:(?:async )?def |class )?{part}\b", source(path), re.MULTILINE), (path, name)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[:40])
def test_what_is_named_of_a_file_stands_in_it(item: str) -> None:
    for name, path in re.findall(r"`(\w+(?:\.\w+)?)`(?: \w+){0,3}\s+of\s+`([\w/]+\.py)`", item):
        for part in name.split("."):
            assert re.search(rf"(?:def |class ){part}\b", source(path)), (path, name)


@pytest.mark.parametrize("text", [TEXT, CONTRIBUTING], ids=["architecture", "CONTRIBUTING"])
def test_every_path_exists(text: str) -> None:
    paths = re.findall(r"`((?:\w[\w-]*/)+[\w.-]*|\.ci/\w+)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_links_of_contributing_lead_somewhere() -> None:
    assert all((ROOT / ".github" / link).is_file() for link in re.findall(r"\]\(([^)]+)\)", CONTRIBUTING))


def test_the_arrows_are_those_that_are_allowed() -> None:
    drawn = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert drawn is not None
    assert drawn[1].splitlines() == list(arrows())


def arrows() -> list[str]:
    """The fewest arrows from which all allowed ones follow, between packages."""
    names = [name for name in MAY_IMPORT if name not in OUTER and is_folder(name)]
    below = {
        name: {
            other for other in names if other != name and any(lies_in(other, allowed) for allowed in MAY_IMPORT[name])
        }
        for name in names
    }
    return [
        f"{name} -> {', '.join(sorted(nearest(others, below))) or 'no other package'}" for name, others in below.items()
    ]


def nearest(others: set[str], below: dict[str, set[str]]) -> set[str]:
    """Those that none of the others may import or holds."""
    return {
        name
        for name in others
        if not any(name in below[other] or lies_in(name, other) for other in others if other != name)
    }


def lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_folder(name: str) -> bool:
    return (ROOT / "runtime/api" / name).is_dir() or (ROOT / name.replace(".", "/")).is_dir()
