"""What needs no GPU, before a check: bundles with random weights at published sizes, and all that travels, in parts.

Everything is kept as soon as it is done: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from profiling.gpu_check import unpack
from profiling.gpu_check.running import ROOT
from profiling.gpu_check.steps import PLANS, write_deployments
from profiling.gpu_check.weights import draw_weights
from runtime.base.errors import BuildError, ConfigError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8
from runtime.commands.task_progress import waiting
from runtime.config.bundle import BUNDLE_FILE

EXPORT = "engine_build.export"
EXPORT_PACKAGES = ("torch", "diffusers", "transformers", "onnxscript")
SECONDS = "60"
# A decoder of nearly nothing, beside a part that is measured alone.
NO_DECODER = (
    "--layers", "1", "--hidden", "64", "--intermediate", "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "32",
    "--condition", "64",
)  # fmt: skip
# Bundle -> the exporter's words; of "full" without the number of layers.
EXPORTS: Mapping[str, tuple[str, ...]] = {
    "codec": ("acestep", "--random", *NO_DECODER),
    "planner": ("acestep", "--random", "--planner", "0.6b", *NO_DECODER),
    "two-layers": ("acestep", "--random", "--layers", "2"),
    "full": ("acestep", "--random", "--layers"),
}
LAYERS = 24
PREPARED = "prepared.json"
# What does not travel as it is.
WORK = "work"
# What a check runs on, in a checkout.
CODE = ("runtime", "engine_build", "server", "profiling", "configs/demo", "configs/demo.toml")
EXTRAS = ("tensorrt", "tensorrt-rtx")
PART_BYTES = 60_000_000
# Where --machine names none: a data centre's usual Linux.
MACHINE = {"python": "3.12", "glibc": "2.35", "machine": "x86_64", "packages": {}}
OLDEST_GLIBC = 17
NO_WHEEL = "No matching distribution found for "


def export_all(source: Path, layers: int = LAYERS) -> None:
    """Export the bundles that `source` lacks; an export that was interrupted goes on. Raises BuildError, OSError.

    layers: of the decoder that is measured as the whole model.
    """
    source.mkdir(parents=True, exist_ok=True)
    for name, words in EXPORTS.items():
        if is_exported(source, name):
            continue
        more = (str(layers),) if name == "full" else ()
        where = ("--canvas-seconds", SECONDS, "--out", str(source / name), "--deployment", str(source / f"{name}.toml"))
        with waiting(f"exporting {name}"):
            call(f"the export of {name}", "-m", EXPORT, *words, *more, *where)


def is_exported(source: Path, *names: str) -> bool:
    """Whether these bundles, or all, are there."""
    return all(
        (source / name / BUNDLE_FILE).is_file() and (source / f"{name}.toml").is_file() for name in names or EXPORTS
    )


def call(what: str, *words: str) -> str:
    """Run Python with `words`; what it prints, which is shown where it fails. Raises BuildError."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in lines if line.lower().startswith("error: ")] or lines[-1:]
        fixes = [line.removeprefix("fix: ") for line in lines if line.startswith("fix: ")]
        raise BuildError(f"{what} failed: {errors[-1][-600:]}", fix=fixes[0] if fixes else "the same command goes on")
    return done.stdout


def read_machine(path: Path | None) -> dict[str, Any]:
    """What `python unpack.py describe` has printed on the machine with the card. Raises ConfigError, FileError."""
    if path is None:
        return dict(MACHINE)
    try:
        found = json.loads(plain_utf8(read_file(path, MAX_JSON_BYTES)))
        if found["machine"] and re.fullmatch(r"3\.\d+", found["python"]) and re.fullmatch(r"2\.\d+", found["glibc"]):
            return {**found, "packages": dict(found["packages"])}
    except (ValueError, TypeError, LookupError):
        pass
    raise ConfigError(f"{path} describes no machine with Linux", fix="python unpack.py describe > FILE, there")


def pack(source: Path, out: Path, machine: Mapping[str, Any], commit: str | None, *, has_wheels: bool) -> list[str]:
    """Fill `out` with parts, their manifest and unpack.py; returns what is not in them, in words.

    Raises BuildError, ConfigError, OSError.
    """
    for folder in (out, source / WORK):
        folder.mkdir(parents=True, exist_ok=True)
    weights = []
    for name in EXPORTS:
        with waiting(f"drawing the weights of {name}"):
            weights += draw_weights(source / name)
    missing = _build_rtx(source)
    wheels = _wheels(source, machine, missing) if has_wheels else {}
    carried = {f"{unpack.CODE}/{path.relative_to(ROOT).as_posix()}": path for path in _code_files()}
    carried |= {f"{unpack.WHEELS}/{name}": path for name, path in wheels.items()}
    drawn = {source / each["path"] for each in weights}
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        if path.is_file() and path not in drawn and place.parts[0] != WORK and path.suffix != ".log":
            carried[f"{unpack.SOURCE}/{place.as_posix()}"] = path
    about = source / WORK / "METADATA"  # by which the code that travels knows its version
    about.write_text(metadata.distribution("tickrt").read_text("METADATA") or "", encoding="utf-8")
    carried[f"{unpack.CODE}/tickrt-{metadata.version('tickrt')}.dist-info/METADATA"] = about
    manifest = {
        "commit": commit,
        "machine": {name: machine[name] for name in ("python", "glibc", "machine")},
        "wheels": sorted(wheels),
        "missing": missing,
        "weights": [{**each, "path": f"{unpack.SOURCE}/{each['path']}"} for each in weights],
    }
    with waiting("writing parts"):
        _write_parts(out, carried, manifest)
    return missing


def _write_parts(out: Path, carried: Mapping[str, Path], manifest: Mapping[str, Any]) -> None:
    """The files one after the other, cut into parts. Parts that are there and whole are not written again."""
    files = [
        {"path": place, "bytes": path.stat().st_size, "sha256": unpack.sha256_of(path)}
        for place, path in carried.items()
    ]
    parts = []
    for number, data in enumerate(_cut(piece for path in carried.values() for piece in unpack.pieces_of(path))):
        name, sha256 = f"part.{number:03}", hashlib.sha256(data).hexdigest()
        if unpack.sha256_of(out / name) != sha256:
            unpack.write_whole(out / name, iter([data]), sha256)
        parts.append({"name": name, "bytes": len(data), "sha256": sha256})
    for path in out.glob("part.*"):
        if path.name not in {part["name"] for part in parts}:
            path.unlink()
    shutil.copyfile(Path(unpack.__file__), out / "unpack.py")
    text = json.dumps({**manifest, "parts": parts, "files": files}, indent=1)
    unpack.write_whole(out / unpack.MANIFEST, iter([text.encode()]))


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Parts of PART_BYTES, and the rest."""
    taken, size = list[bytes](), 0
    for piece in pieces:
        while size + len(piece) >= PART_BYTES:
            left = PART_BYTES - size
            yield b"".join([*taken, piece[:left]])
            taken, size, piece = [], 0, piece[left:]
        taken.append(piece)
        size += len(piece)
    if size:
        yield b"".join(taken)


def _code_files() -> Iterator[Path]:
    for name in CODE:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and not {"__pycache__", "recipe"} & set(path.relative_to(ROOT).parts):
                yield path


def _build_rtx(source: Path) -> list[str]:
    """Build TensorRT-RTX's engines of the small bundle, as the check has them; returns what is not built, in words."""
    if util.find_spec("tensorrt_rtx") is None:
        return ["engines of TensorRT-RTX (pip install 'tickrt[tensorrt-rtx]' here): a card builds them itself"]
    place = source / WORK / "rtx"
    place.mkdir(exist_ok=True)
    write_deployments(place, source, only=("rtx",))
    with waiting("building engines of TensorRT-RTX"):
        call(
            "the build for TensorRT-RTX",
            "-m",
            "engine_build.cli",
            str(place / "rtx.toml"),
            "--target",
            PLANS["rtx"].target,
        )
    shutil.copytree(place / "engines" / "rtx", source / "engines" / "rtx", dirs_exist_ok=True)
    return []


def _wheels(source: Path, machine: Mapping[str, Any], missing: list[str]) -> dict[str, Path]:
    """Wheels of what the machine lacks, by file name, downloaded once; `missing` gets what no wheel was found for."""
    folder = source / WORK / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in machine["packages"].items()), "utf-8")
    tags = _tags(machine)
    words = ["--target", str(folder / "none"), "--constraint", str(constraints), *tags]
    with waiting("finding packages"):
        resolved = _resolved(words, _requirements(machine), missing)
    found = {}
    for each in resolved:
        name, version = canonical(each["metadata"]["name"]), each["metadata"]["version"]
        if machine["packages"].get(name) == version:
            continue
        url = each["download_info"]["url"].partition("#")[0]
        wheel = folder / url.rpartition("/")[2].replace("%2B", "+")
        if not wheel.is_file():
            with waiting(f"downloading {wheel.name}"):
                download = ("download", "--quiet", "--no-deps", "--dest", str(folder), *tags, f"{name}=={version}")
                call(f"the download of {name}", "-m", "pip", *download)
        if wheel.is_file():
            found[wheel.name] = wheel
        else:
            missing.append(f"the package {name} {version}")
    return found


def _resolved(words: list[str], requirements: list[str], missing: list[str]) -> list[dict[str, Any]]:
    """What pip would install; `missing` gets each requirement that has no wheel. Raises BuildError."""
    pip = ("-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-")
    while True:
        try:
            report = call("finding packages", *pip, *words, *requirements)
            return list(json.loads(report)["install"])
        except BuildError as error:
            name = canonical(error.what.partition(NO_WHEEL)[2])
            left = [each for each in requirements if canonical(each) != name]
            if not name or len(left) == len(requirements):
                raise
            requirements = left
            missing.append(f"the package {name}: pip finds no wheel ($PIP_EXTRA_INDEX_URL names an index that has one)")


def canonical(requirement: str) -> str:
    """The name of a package in a requirement, as indexes write it."""
    end = next((at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end].lower().replace("_", "-").replace(".", "-")


def _tags(machine: Mapping[str, Any]) -> list[str]:
    """Of wheels that the machine takes, as pip's options."""
    newest = int(machine["glibc"].partition(".")[2])
    platforms = [f"manylinux_2_{minor}_{machine['machine']}" for minor in range(newest, OLDEST_GLIBC - 1, -1)]
    platforms += [f"{name}_{machine['machine']}" for name in ("manylinux2014", "manylinux1", "linux")]
    words = [word for each in platforms for word in ("--platform", each)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", machine["python"], *words]


def _requirements(machine: Mapping[str, Any]) -> list[str]:
    """What the project and its GPU extras ask for, without those of the extras that the machine has: images bring
    builds of TensorRT that no index has."""
    project = tomllib.loads(plain_utf8((ROOT / "pyproject.toml").read_bytes()).decode())["project"]
    extras = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    extras = [each for each in extras if canonical(each) not in machine["packages"]]
    return list(dict.fromkeys([*project["dependencies"], *extras]))
