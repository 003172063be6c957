"""python -m engine_build.export: its families, ours and others', what it refuses, and what its commands write."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from helpers.export_command import export
from helpers.tiny_exports import TinyExports
from typer.testing import CliRunner, Result

from engine_build.export.__main__ import COMMAND, OWN, Families, app, family_app
from engine_build.export.check_report import CheckReport, measured
from engine_build.export.family import Family, family_of_entry, family_of_file, of_family, plugged_in
from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment

HAS_TORCH = all(importlib.util.find_spec(name) is not None for name in ("torch", "diffusers", "onnxscript"))
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")


def run(*arguments: str) -> Result:
    """In this process."""
    return CliRunner().invoke(app, [*arguments], prog_name=COMMAND, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], ["acestep", "stable_audio_3"]),
        (["acestep", "--help"], ["export", "check"]),
        (["stable_audio_3", "--help"], ["export", "check"]),
        (["acestep", "export", "--help"], ["--checkpoint", "--random", "--out", "--layers", "--planner", "--draft"]),
        (["acestep", "export", "--help"], ["--canvas-seconds", "--deployment"]),
        (["stable_audio_3", "export", "--help"], ["small|medium", "--text-encoder", "Stability AI Community"]),
        (["acestep", "check", "--help"], ["--checkpoint", "--out", "--seconds", "--target", "--json"]),
        (["stable_audio_3", "check", "--help"], ["--audio", "Nothing leaves this machine"]),
    ],
)
def test_help_says_what_there_is(arguments: list[str], says: list[str]) -> None:
    text = " ".join(run(*arguments).stdout.split())
    assert [word for word in says if word not in text] == []
    assert ("--audio" in text) == ("--audio" in says)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
@pytest.mark.parametrize("arguments", [("--random",), ("check", "--checkpoint", ".")])
def test_without_torch_the_error_has_the_install_command(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = export("acestep", *arguments, "--out", "x", cwd=tmp_path)
    assert result.returncode == 3
    assert "needs torch" in result.stderr
    assert "pip install 'tickrt[export]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
@needs_torch
@pytest.mark.parametrize(
    ("family", "arguments", "says"),
    [
        ("acestep", "", "either --checkpoint FOLDER or --random"),
        ("acestep", "--random --checkpoint .", "either --checkpoint FOLDER or --random"),
        ("acestep", "--checkpoint none", "there is no folder none"),
        ("acestep", "--checkpoint . --layers 2", "sizes belong to --random"),
        ("acestep", "--checkpoint . --xl", "sizes belong to --random"),
        ("acestep", "--checkpoint .", "is not a checkpoint of ACE-Step"),
        ("acestep", "--random --planner 8b", "a language model of 8b with --random: expected 0.6b, 1.7b, 4b"),
        ("acestep", "--random --draft 0.6b", "--draft drafts for a planner"),
        ("stable_audio_3", "", "either --checkpoint FOLDER or --random SIZE"),
        ("stable_audio_3", "--random small --checkpoint .", "either --checkpoint FOLDER or --random SIZE"),
        ("stable_audio_3", "--checkpoint . --layers 2", "sizes belong to --random"),
        ("stable_audio_3", "--random small --text-encoder .", "--text-encoder belongs to --checkpoint"),
        ("stable_audio_3", "--checkpoint .", "is not a checkpoint of Stable Audio 3"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, arguments: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(family, "--out", "x", *arguments.split())
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
@needs_torch
def test_a_checkpoint_becomes_a_bundle_with_a_deployment(tiny: TinyExports, tmp_path: Path) -> None:
    arguments = ("acestep", "--checkpoint", str(tiny.acestep()), "--no-text", "--out", "out/b", "--canvas-seconds", "2")
    result = export(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["tickrt-build out/b.toml", "tickrt-bench out/b.toml"]
    assert "No text encoder: requests bring their condition, float32 [L, D]; those without one get" in result.stdout
    assert load_bundle(tmp_path / "out" / "b").name == "tiny-base"
    assert load_deployment(tmp_path / "out" / "b.toml").bundle == tmp_path / "out" / "b"


@pytest.mark.export
@needs_torch
def test_a_deployment_that_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_build.export.bundle_export import BundleExport, ExportStep, Parts

    facts = {"channels": 4, "frame_rate_hz": 25.0, "inputs": {"latents": "latents", "time": "time"}}
    steps = [ExportStep("nothing", (), lambda *_: facts)]
    family = Family(name="none", export=lambda: BundleExport(Parts({}, "1", "None", "Nothing."), steps))
    monkeypatch.chdir(tmp_path)
    for name, kept in (("first", "[deployment]"), ("second", "# mine")):
        done = CliRunner().invoke(family_app(family), ["--out", "b", "--name", name])
        assert done.exit_code == 0, done.output
        assert load_bundle(tmp_path / "b").name == name
        assert kept in (tmp_path / "b.toml").read_text()
        (tmp_path / "b.toml").write_text("# mine")


@pytest.mark.export
@needs_torch
def test_a_check_writes_its_report_and_fails_where_a_check_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def check(options: Any, checkpoint: Annotated[str, typer.Option()]) -> CheckReport:
        figure = 2.0 if checkpoint == "bad" else 1.0
        checks = [measured(f"of {options.seconds:g} s", figure, at_most=1.0)]
        return CheckReport("Tones", {"kind": options.target}, {}, {}, checks, [])

    family = Family(name="tones", export=lambda: None, check=check)  # type: ignore[arg-type, return-value]
    done = CliRunner().invoke(family_app(family), ["check", "--checkpoint", "good", "--seconds", "3", "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert (content["family"], content["counts"]["fail"], content["model"]) == ("Tones", 0, {"kind": "cpu"})
    assert json.loads((tmp_path / "tones-check" / "report.json").read_text()) == content
    failed = CliRunner().invoke(family_app(family), ["check", "--checkpoint", "bad", "--out", "found"])
    assert failed.exit_code == 1
    assert failed.stdout == (tmp_path / "found" / "report.md").read_text()
    assert "| of 10 s | 2 | at most 1 | fail |  |" in failed.stdout


@pytest.mark.export
@needs_torch
@pytest.mark.parametrize("command", ["check", "export"])
def test_a_checkpoint_of_the_other_family_names_its_command(
    tiny: TinyExports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for family, other, folder in (
        ("acestep", "stable_audio_3", tiny.stable_audio("small")),
        ("stable_audio_3", "acestep", tiny.acestep()),
    ):
        found = run(family, command, "--checkpoint", str(folder), "--out", "x")
        assert found.exit_code == 2
        assert f"fix: it is another family's: python -m engine_build.export {other}" in found.stderr
    assert not (tmp_path / "x").exists()


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
