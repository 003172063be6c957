"""A deployment's engines as a folder for another machine: with bundle, configuration, and what to install there."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from engine_build.config import RTX_CAPABILITIES, read_options
from engine_build.export.toml_text import table_text
from runtime.config.deployment import Deployment, load_deployment
from runtime.config.targets import Target
from runtime.engines.manifest import manifest_path, read_manifest
from runtime.errors import BuildError, ConfigError

FILE, BUNDLE, ENGINES, ADAPTERS = "deployment.toml", "bundle", "engines", "adapters"
TARGET: Target = "tensorrt-rtx"
# A table's lines, up to the next table.
DEPLOYMENT_TABLE = re.compile(r"^\[ *deployment *[].][^\n]*\n(?:(?!\[).*\n?)*", re.MULTILINE)

README = """# {name}

Engines of TickRT {tickrt} for RTX cards ({cards}), built by TensorRT-RTX {release}. They run on this release only.

The machine needs such a card, an NVIDIA driver for CUDA 13 (580 or newer), x86-64 and Python 3.11 to 3.14. Here:

    pip install -r requirements.txt
    tickrt-serve {file}

Where no package index has TickRT, the first line is `pip install 'CHECKOUT[tensorrt-rtx]' tensorrt-rtx=={release}`,
with the folder of TickRT's source in place of CHECKOUT.

`tickrt-build list {file}` says whether the engines run there. `tickrt-build {file}` compares them with their graphs on
that card, which no machine has done yet where the list shows no error, and builds none again that is up to date.
"""


def check_shippable(out: Path, target: Target) -> None:
    """Check that a deployment's engines can be shipped into the folder `out`. Raises ConfigError."""
    if target != TARGET:
        raise ConfigError(
            f"--out is for the target {TARGET}: engines of {target} run where they are built", fix=f"--target {TARGET}"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder", fix="name another one, or remove it")


def ship(deployment: Deployment, out: Path) -> None:
    """Write the folder `out`; it is complete, or it is not there. Raises ConfigError, BuildError, EngineError."""
    check_shippable(out, TARGET)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".partial", dir=out.parent))
        try:
            _fill(deployment, partial)
            partial.chmod(0o755)
            if out.exists():
                out.rmdir()
            partial.rename(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, shutil.Error) as error:
        fix = "free disk space there" if isinstance(error, OSError) and error.errno == errno.ENOSPC else ""
        raise BuildError(f"{out} cannot be written: {error}", fix=fix) from error


def _fill(deployment: Deployment, folder: Path) -> None:
    release = read_manifest(manifest_path(deployment.engine_folder(TARGET), "decoder")).tool_versions[TARGET]
    tickrt = metadata.version("tickrt")
    shutil.copytree(deployment.bundle, folder / BUNDLE, ignore=shutil.ignore_patterns("recipe"))
    shutil.copytree(deployment.engine_folder(TARGET), folder / ENGINES / TARGET)
    head: dict[str, Any] = {"bundle": BUNDLE, "engines": ENGINES, "target": TARGET}
    if deployment.adapters is not None:
        head["adapters"] = _adapters(deployment, deployment.adapters, folder)
    if deployment.merged_adapters:
        head["merged_adapters"] = dict(deployment.merged_adapters)
    _write_deployment(deployment, head, folder / FILE)
    (folder / "requirements.txt").write_text(f"tickrt[{TARGET}]=={tickrt}\n{TARGET}=={release}\n", encoding="utf-8")
    cards = ", ".join(read_options(deployment).capabilities or (*RTX_CAPABILITIES, "and later"))
    text = README.format(name=deployment.path.stem, tickrt=tickrt, cards=cards, release=release, file=FILE)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _adapters(deployment: Deployment, adapters: Path, folder: Path) -> str:
    """The folder of adapters, relative to the shipped one: in the bundle, or copied beside it."""
    if adapters.is_relative_to(deployment.bundle):
        return (Path(BUNDLE) / adapters.relative_to(deployment.bundle)).as_posix()
    shutil.copytree(adapters, folder / ADAPTERS)
    return ADAPTERS


def _write_deployment(deployment: Deployment, head: dict[str, Any], path: Path) -> None:
    """The deployment's file with another table [deployment]. Raises ConfigError where that is not all that changes."""
    text = deployment.path.read_text(encoding="utf-8")
    path.write_text(f"{table_text('deployment', head)}\n{DEPLOYMENT_TABLE.sub('', text)}", encoding="utf-8")
    same = ("shapes", "runtime", "merged_adapters", "tables")
    try:
        found = load_deployment(path)
        is_same = all(getattr(found, name) == getattr(deployment, name) for name in same)
    except ConfigError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"{deployment.path} cannot be written anew for another folder",
            fix="write [deployment] as a table of its own",
        )
