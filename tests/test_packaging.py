"""What is installed: extras, commands, packages, and the Makefile that sets the environment up."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from helpers.paths import ROOT

from engine_build.shipping import bundle_files
from runtime.config.deployment import load_deployment
from runtime.engines.adapter_files import adapter_files

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
PACKAGES = ("engine_build", "profiling", "runtime", "server")
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    """Distribution names, without versions."""
    return {re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in requirements}


def test_the_extras_are_the_documented_ones() -> None:
    engines, more = {"cpu", "openvino", "cuda", "tensorrt", "tensorrt-rtx"}, {"osc", "mcp", "midi", "redis", "scale"}
    assert set(EXTRAS) == engines | more | {
        "export",
        "recipe",
        "peers",
        "plots",
        "docs",
        "page",
        "clients",
        "release",
        "test",
    }


def test_the_top_level_is_the_packages_and_what_a_repository_needs() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".gitignore"}
    assert {line.partition("/")[0] for line in listed.splitlines()} == files | {
        *PACKAGES, "tests", "configs", ".ci", ".github",
    }  # fmt: skip


@pytest.mark.parametrize("extra", ["cpu", "openvino", "cuda", "tensorrt", "tensorrt-rtx", "export"])
def test_an_environment_has_one_onnxruntime(extra: str) -> None:
    assert len(names(EXTRAS[extra]) & {"onnxruntime", "onnxruntime-gpu"}) == 1
    assert not names(PROJECT["dependencies"]) & {"onnxruntime", "onnxruntime-gpu"}


def test_the_builder_of_tests_is_that_of_the_extra() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("BUILDER := ")]
    assert line.removeprefix("BUILDER := ") in EXTRAS["tensorrt-rtx"]


def test_serving_needs_no_torch() -> None:
    needed = names(PROJECT["dependencies"]) | names(EXTRAS["cpu"]) | names(EXTRAS["test"])
    assert not needed & {"torch", "diffusers", "onnxscript", "transformers"}


def test_every_imported_distribution_is_declared() -> None:
    """Of the packages that are installed here; the standard library and our own packages have no distribution."""
    extras = ("cpu", "tensorrt-rtx", "export", "recipe", "peers", "osc", "mcp", "midi", "redis", "scale")
    declared = names([*PROJECT["dependencies"], *(item for extra in extras for item in EXTRAS[extra])])
    distributions = {
        root: {name.replace("_", "-").removesuffix("-cu13") for name in found}  # that tensorrt-rtx brings
        for root, found in packages_distributions().items()
    }
    ours = {*PACKAGES, "tickrt"}
    roots = {
        name.split(".")[0]
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for name in imported_modules(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert "starlette" in roots
    undeclared = {root for root in roots - ours if root in distributions and not declared & distributions[root]}
    assert not undeclared


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """The dotted names of all modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_every_package_is_listed() -> None:
    folders = [file.parent.relative_to(ROOT) for name in PACKAGES for file in (ROOT / name).rglob("__init__.py")]
    found = {".".join(folder.parts) for folder in folders} - {"profiling.bench.cluster", "profiling.bench.peers"}
    assert set(SETUPTOOLS["packages"]) == {
        "tickrt.configs", "tickrt.configs.demo", *(name.removeprefix("runtime.api.") for name in found)
    }  # fmt: skip


def test_every_file_that_the_demo_names_is_in_the_wheel() -> None:
    text = (ROOT / "configs" / "demo" / "bundle.toml").read_text(encoding="utf-8")
    files = {*re.findall(r'"([^"\s]+\.(?:onnx|json|npy))"', text), "bundle.toml", "meaning.json"}
    patterns = SETUPTOOLS["package-data"]["tickrt.configs.demo"]
    assert "tokenizer.json" in files
    assert not {file for file in files if not any(fnmatch(file, pattern) for pattern in patterns)}


def test_every_file_beside_the_code_is_in_the_wheel() -> None:
    """But READMEs, and the clients to copy, which are read in the repository."""
    patterns = [(ROOT / name.replace(".", "/"), found) for name, found in SETUPTOOLS["package-data"].items()]
    shipped = {file for folder, found in patterns for pattern in found for file in folder.glob(pattern)}
    found = {file for name in PACKAGES for file in (ROOT / name).rglob("*.*") if file.suffix not in (".py", ".pyc")}
    assert ROOT / "server/asgi/examples.json" in shipped
    assert ROOT / "server/protocols/acestep/bodies.json" in shipped
    assert ROOT / "server/protocols/mcp/texts.json" in shipped
    left = {file for file in found - shipped if file.name not in ("README.md", "py.typed")}
    assert [file for file in left if not file.is_relative_to(ROOT / "server/clients")] == []


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_every_command_is_a_function(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert command.partition("-")[0] == "tickrt"
    assert callable(getattr(import_module(module), function))


def test_license_and_changelog_go_with_the_version() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_says_what_was_added_changed_fixed_or_removed() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [release.split("\n")[0] for release in releases[:2]] == ["Unreleased", PROJECT["version"]]
    headings = re.findall(r"^### (.+)$", releases[0], re.MULTILINE)
    assert headings == [name for name in ("Added", "Changed", "Fixed", "Removed") if name in headings]
    entries = re.findall(r"^- ((?:.+\n)(?:  .+\n)*)", releases[0], re.MULTILINE)
    assert len(entries) == releases[0].count("\n- ")
    assert [entry for entry in entries if len(entry) > LONGEST_ENTRY or not entry.endswith((".\n", ".)\n"))] == []


LONGEST_ENTRY = 300
MORE_TESTS = ("shipped", "clients", "recipe", "docs", "builder", "page", "export")


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = re.findall("^ *(?:make |clients=)(.*)", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"lint|test\S*", " ".join(lines)) == ["lint", "test", *(f"test-{name}" for name in MORE_TESTS)]


STAMPS = (".venv/bin/python", ".venv/.installed", ".venv/.installed-test", ".venv/.contract")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and what it depends on, nothing installed."""
    for name in ("Makefile", "pyproject.toml", "tests/contract/install.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make without what an outer make hands down."""
    ours = ("MAKE", "PYTHON", "PORT")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    command = ["make", "-C", str(folder), "--no-print-directory", *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)


def fake_python(path: Path, version: str, is_fit: bool = True) -> str:
    """An interpreter that only says its version, and whether it is fit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"""#!/bin/sh
case "$1" in
-VV | --version) echo "Python {version}" ;;
-c) exit {int(not is_fit)} ;;
*) exit 3 ;;
esac
""",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return str(path)


def test_an_unfit_python_is_refused_by_name(checkout: Path) -> None:
    result = make(checkout, f"PYTHON={fake_python(checkout / 'old-python', '3.10.12', is_fit=False)}", "demo")
    assert result.returncode != 0
    assert "needs Python 3.11, 3.12, 3.13 or 3.14" in result.stderr
    assert "Python 3.10.12" in result.stderr
    assert "fix:" in result.stderr
    assert not (checkout / ".venv").exists()


def test_an_absent_python_is_refused_by_name(checkout: Path) -> None:
    result = make(checkout, "PYTHON=no-such-python", "test")
    assert result.returncode != 0
    assert "no-such-python is missing" in result.stderr


@pytest.mark.parametrize("given", [[], ["PYTHON=asked/python"]], ids=["no PYTHON", "the same"])
def test_an_environment_is_kept(checkout: Path, given: list[str]) -> None:
    fake_python(checkout / ".venv/bin/python", "3.12.1")
    fake_python(checkout / "asked/python", "3.12.1")
    result = make(checkout, *given, ".venv/bin/python")
    assert (result.returncode, result.stderr) == (0, "")


def test_an_environment_of_another_python_is_refused(checkout: Path) -> None:
    own = Path(fake_python(checkout / ".venv/bin/python", "3.12.1"))
    text = own.read_text(encoding="utf-8")
    asked = fake_python(checkout / "asked/python", "3.13.0")
    for stamp in STAMPS:
        (checkout / stamp).touch()
    result = make(checkout, f"PYTHON={asked}", "test")
    assert result.returncode != 0
    assert f".venv was made by another Python: it has Python 3.12.1, {asked} is Python 3.13.0." in result.stderr
    assert "fix:" in result.stderr
    assert "rm -rf .venv" in result.stderr
    assert "pytest" not in result.stdout
    assert own.read_text(encoding="utf-8") == text


def test_an_environment_whose_python_is_gone_is_refused(checkout: Path) -> None:
    for stamp in STAMPS[1:]:
        (checkout / stamp).parent.mkdir(parents=True, exist_ok=True)
        (checkout / stamp).touch()
    (checkout / ".venv/bin").mkdir()
    (checkout / ".venv/bin/python").symlink_to(checkout / "gone")
    result = make(checkout, "test")
    assert result.returncode != 0
    assert "it has no interpreter that runs" in result.stderr
    assert "rm -rf .venv" in result.stderr


@pytest.mark.parametrize("python", ["~/bin/python", "asked/python", "python"])
def test_a_python_is_named_as_the_shell_names_it(checkout: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("bin", "asked"):
        fake_python(checkout / folder / "python", "3.13.0")
    fake_python(checkout / ".venv/bin/python", "3.13.0")
    monkeypatch.setenv("HOME", str(checkout))
    monkeypatch.setenv("PATH", f"{checkout / 'bin'}:{os.environ['PATH']}")
    assert make(checkout, f"PYTHON={python}", ".venv/bin/python").returncode == 0


def test_the_demo_takes_a_port(checkout: Path) -> None:
    assert "tickrt-serve configs/demo.toml --port 8001" in make(checkout, "--dry-run", "demo", "PORT=8001").stdout
    assert "--port" not in make(checkout, "--dry-run", "demo").stdout


def test_a_second_make_installs_nothing(checkout: Path) -> None:
    targets = ("--dry-run", "test", ".venv/.contract")
    before = make(checkout, *targets).stdout
    assert "pip install" in before
    assert "contract/install.py" in before
    for stamp in STAMPS:
        (checkout / stamp).parent.mkdir(parents=True, exist_ok=True)
        (checkout / stamp).touch()
    after = make(checkout, *targets).stdout
    assert "pip install" not in after
    assert "contract/install.py" not in after
    assert "pytest" in after


def test_what_ci_needs_in_venv_is_resolved_once(checkout: Path) -> None:
    fake_python(checkout / ".venv/bin/python", "3.12.1")
    script = make(checkout, "--dry-run", ".venv/.installed-all").stdout
    assert script.count("pip install") == 1
    (touch,) = [line for line in script.splitlines() if line.startswith("touch")]
    subprocess.run(touch, shell=True, cwd=checkout, check=True)
    steps = ["lint", "test", *(f"test-{name}" for name in MORE_TESTS if name not in ("builder", "export"))]
    assert "pip install" not in make(checkout, "--dry-run", *steps, ".venv/.installed-builder").stdout


def test_a_changed_project_installs_again(checkout: Path) -> None:
    for stamp in STAMPS:
        (checkout / stamp).parent.mkdir(parents=True, exist_ok=True)
        (checkout / stamp).touch()
    later = (checkout / ".venv/.installed-test").stat().st_mtime + 10
    os.utime(checkout / "pyproject.toml", (later, later))
    assert "pip install" in make(checkout, "--dry-run", "test").stdout


def test_help_lists_every_target(checkout: Path) -> None:
    text = make(checkout, "help").stdout
    for target in (
        "demo",
        "test",
        "test-shipped",
        "test-page",
        "test-builder",
        "test-clients",
        "test-export",
        "test-slow",
        "lint",
        "bench",
        "gpu-check",
        "gpu-check-parts",
        "soak",
        "release",
        "clean",
    ):
        assert re.search(rf"^  {target} +\w", text, re.MULTILINE), target


def test_the_wheel_has_what_the_demo_deployment_names_and_nothing_else() -> None:
    deployment = load_deployment(ROOT / "configs/demo.toml")
    assert deployment.adapters is not None
    named = {*bundle_files(deployment.bundle), *adapter_files(deployment.adapters)}
    patterns = SETUPTOOLS["package-data"]["tickrt.configs.demo"]
    assert {file for pattern in patterns for file in deployment.bundle.glob(pattern)} == named
