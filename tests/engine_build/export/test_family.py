"""Families that are not ours: a file, an entry point, what is said where one is wrong. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from engine_build.export.__main__ import COMMAND, OWN, Families, app, family_app
from engine_build.export.family import Family, family_of_entry, family_of_file, of_family, plugged_in
from runtime.base.errors import ConfigError

FILE = '''
from typing import Annotated
import typer
from engine_build.export.family import Family

def export(layers: Annotated[int, typer.Option(help="Layers.")] = 2):
    """A family of nothing."""

FAMILY = Family(name="tones", title="Tones", export=export, canvas_s=4.0)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tones.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def installed(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The metadata of a wheel that has the file, on the path."""
    info = file.with_name("someones_tones-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-tones\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tickrt.families]\ntones = tones:FAMILY\nbroken = tones:NONE\n")
    monkeypatch.syspath_prepend(str(file.parent))
    return "someones-tones"


def options_of(family: Family, name: str = "export") -> dict[str, Any]:
    """Option -> its parameter."""
    group: Any = typer.main.get_command(family_app(family))
    return {option: each for each in group.commands[name].params for option in each.opts}


def test_a_file_is_a_family_with_the_options_of_every_family(file: Path) -> None:
    found = options_of(family_of_file(file))
    shared = set.intersection(*(set(options_of(family)) for family in OWN.values()))
    assert {"--out", "--name", "--description", "--deployment", "--target", "--canvas-seconds", "--force"} <= shared
    own = {"--checkpoint", "--random", "--all-parts", "--no-text", "--seed", "--layers"}
    assert set(found) - {"--layers"} == {*shared} - own
    assert found["--layers"].default == 2


def test_an_installed_family_is_a_command_and_is_not_loaded_for_help(installed: str) -> None:
    entries = plugged_in()
    assert family_of_entry(entries["tones"]).canvas_s == 4.0
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name=COMMAND)
    assert {"tones", "broken", *OWN} <= {*group.list_commands(context)}
    assert f"Of {installed}." in group.get_help(context)
    with pytest.raises(ConfigError, match=r"the family broken .* cannot be loaded: AttributeError"):
        family_of_entry(entries["broken"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--family", "a.py", "--out", "b"], ["a.py", "--out", "b"]),
        (["--family=a.py", "--out", "b"], ["a.py", "--out", "b"]),
        (["acestep", "--family", "a.py"], ["acestep", "--family", "a.py"]),
    ],
)
def test_the_option_family_stands_for_the_command(arguments: list[str], expected: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    assert isinstance(group, Families)
    context = group.make_context(COMMAND, arguments, ignore_unknown_options=True)
    assert [*context._protected_args, *context.args] == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def export(:", "cannot be loaded: SyntaxError"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("raise SystemError", "cannot be loaded: SystemError"),
        ("", "has no FAMILY of class Family"),
        ("FAMILY = 3", "is a int, expected FAMILY = Family"),
    ],
)
def test_a_file_that_is_no_family_is_refused_with_the_guide(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as found:
        family_of_file(file)
    assert says in found.value.what
    assert str(file) in found.value.what
    assert "A family of your own" in found.value.fix


def test_a_file_that_is_not_there_or_no_python_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file none\.py"):
        family_of_file(Path("none.py"))
    (tmp_path / "family.txt").write_text("FAMILY = 1")
    with pytest.raises(ConfigError, match="is no Python file"):
        family_of_file(tmp_path / "family.txt")


def test_an_option_that_every_family_has_cannot_be_a_familys_own(file: Path) -> None:
    file.write_text(FILE.replace("layers:", "target:"))
    with pytest.raises(ConfigError, match="tones has options that every family has: target"):
        family_app(family_of_file(file))


def test_a_checkpoint_of_another_family_names_its_command() -> None:
    def refuse() -> None:
        raise ConfigError("not of this family", fix="download it again")

    with pytest.raises(ConfigError, match="not of this family") as found:
        of_family(refuse, {"a": refuse, "b": lambda: None, "c": lambda: None})
    assert found.value.fix == f"it is another family's: {COMMAND} b"
    with pytest.raises(ConfigError) as found:
        of_family(refuse, {"a": refuse})
    assert found.value.fix == "download it again"
