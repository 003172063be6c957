"""A deployment's engines as a folder for another machine: with bundle, configuration, and what to install there.

What the deployment names goes along, wherever it lies; no other file does.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from engine_build.config import RTX_CAPABILITIES
from engine_build.export.bundle_tables import table_text
from engine_build.graphs.graph_file import data_files, read_graph
from engine_build.request import read_options
from runtime.base.errors import BuildError, ConfigError
from runtime.base.files import own_entries
from runtime.config.bundle import BUNDLE_FILE, load_bundle
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.engines.adapter_files import adapter_files
from runtime.engines.manifest import MANIFEST_SUFFIX, manifest_path, measurement_path, read_manifest

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


def check_shippable(deployment: Deployment, out: Path, target: Target) -> None:
    """Check that a deployment's engines can be shipped into the folder `out`. Raises ConfigError."""
    if target != TARGET:
        raise ConfigError(
            f"--out is for the target {TARGET}: engines of {target} run where they are built", fix=f"--target {TARGET}"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder", fix="name another one, or remove it")
    for folder in (deployment.engines, deployment.adapters):
        if folder is not None and out.resolve().is_relative_to(folder):
            raise ConfigError(
                f"{out} is in {folder}, where the deployment finds its own files", fix="name a folder outside of it"
            )


def ship(deployment: Deployment, out: Path) -> None:
    """Write the folder `out`; it is complete, or it is not there. Raises ConfigError, BuildError, EngineError."""
    check_shippable(deployment, out, TARGET)
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
    bundle = copy_bundle(deployment.bundle, folder / BUNDLE)
    _copy(engine_files(deployment.engine_folder(TARGET)), deployment.engines, folder / ENGINES)
    head: dict[str, Any] = {"bundle": bundle.relative_to(folder).as_posix(), "engines": ENGINES, "target": TARGET}
    if deployment.adapters is not None:
        _copy(adapter_files(deployment.adapters), deployment.adapters, folder / ADAPTERS)
        (folder / ADAPTERS).mkdir(exist_ok=True)
        head["adapters"] = ADAPTERS
    if deployment.merged_adapters:
        head["merged_adapters"] = dict(deployment.merged_adapters)
    _write_deployment(deployment, head, folder / FILE)
    (folder / "requirements.txt").write_text(f"tickrt[{TARGET}]=={tickrt}\n{TARGET}=={release}\n", encoding="utf-8")
    cards = ", ".join(read_options(deployment).capabilities or (*RTX_CAPABILITIES, "and later"))
    text = README.format(name=deployment.path.stem, tickrt=tickrt, cards=cards, release=release, file=FILE)
    (folder / "README.md").write_text(text, encoding="utf-8")


def copy_bundle(bundle: Path, folder: Path) -> Path:
    """Copy bundle.toml and the files that it names into `folder`; returns the place of the bundle there.

    That is `folder` itself, unless a file lies outside of the bundle. Raises ConfigError, BuildError, OSError.
    """
    files = bundle_files(bundle)
    base = Path(os.path.commonpath([bundle, *(file.parent for file in files)]))
    _copy(files, base, folder)
    return folder / bundle.relative_to(base)


def bundle_files(folder: Path) -> list[Path]:
    """bundle.toml and the files that it names, with the external data of graphs. Raises ConfigError, BuildError."""
    files = [folder / BUNDLE_FILE]
    for key, name in load_bundle(folder).file_names():
        if Path(name).is_absolute():
            raise ConfigError(f"{folder / BUNDLE_FILE} names {name}", fix=f"name it relative to {folder}")
        path = Path(os.path.normpath(folder / name))
        files += [path, *(data_files(read_graph(path)) if key == "graph" else ())]
    return files


def engine_files(folder: Path) -> list[Path]:
    """The engines in a folder, with their data, manifests and measurements. Raises EngineError."""
    files: list[Path] = []
    for path in own_entries(folder, MANIFEST_SUFFIX):
        manifest = read_manifest(path)
        measured = measurement_path(folder, manifest.name)
        files += [path, *(folder / name for name in (manifest.engine_file, *manifest.data_files))]
        files += [measured] if measured.is_file() else []
    return files


def _copy(files: Iterable[Path], base: Path, folder: Path) -> None:
    for file in files:
        place = folder / file.relative_to(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def _write_deployment(deployment: Deployment, head: dict[str, Any], path: Path) -> None:
    """The deployment's file with another table [deployment]. Raises ConfigError where that is not all that changes."""
    text = deployment.path.read_text(encoding="utf-8-sig")
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
