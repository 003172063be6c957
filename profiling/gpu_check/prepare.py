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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata, util
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from profiling.gpu_check import unpack
from profiling.gpu_check.running import ROOT
from profiling.gpu_check.steps import DEPLOYMENTS, write_deployments
from profiling.gpu_check.unpack import DEVIATION, REST, with_weights_drawn, write_whole
from runtime.base.errors import BuildError, ConfigError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8
from runtime.commands.progress import waiting
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
Call = Callable[..., str]
# Smaller tensors are carried: tables and the like may be among them.
LEAST_ELEMENTS = 1 << 18
SAMPLE = 1 << 14
# Neighbours in a table depend on each other; among so many random numbers this is above ten standard deviations.
MOST_CORRELATION = 0.1
NO_WHEEL = "No matching distribution found for "


def call(what: str, *words: str) -> str:
    """Run Python with `words`; what it prints, which is shown where it fails. Raises BuildError."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in lines if line.lower().startswith("error: ")] or lines[-1:]
        fixes = [line.removeprefix("fix: ") for line in lines if line.startswith("fix: ")]
        raise BuildError(f"{what} failed: {errors[-1][-600:]}", fix=fixes[0] if fixes else "the same command goes on")
    return done.stdout


def export_all(source: Path, layers: int = LAYERS, call: Call = call) -> None:
    """Export the bundles that `source` lacks; an export that was interrupted goes on. Raises BuildError, OSError.

    layers: of the decoder that is measured as the whole model. call: what runs Python.
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


def pack(
    source: Path,
    out: Path,
    machine: Mapping[str, Any],
    commit: str | None,
    *,
    has_wheels: bool,
    part_bytes: int = PART_BYTES,
    code: Sequence[str] = CODE,
    least_elements: int = LEAST_ELEMENTS,
) -> list[str]:
    """Fill `out` with parts, their manifest and unpack.py; returns what is not in them, in words.

    code: files and folders of the repository. least_elements: smaller weights are carried.

    Raises BuildError, ConfigError, OSError.
    """
    for folder in (out, source / WORK):
        folder.mkdir(parents=True, exist_ok=True)
    weights = []
    for name in EXPORTS:
        with waiting(f"drawing the weights of {name}"):
            weights += draw_weights(source / name, least_elements)
    missing = _build_rtx(source)
    wheels = wheels_for(source, machine, missing) if has_wheels else {}
    carried = {f"{unpack.CODE}/{path.relative_to(ROOT).as_posix()}": path for path in _code_files(code)}
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
        write_parts(out, carried, manifest, part_bytes)
    return missing


def write_parts(
    out: Path, carried: Mapping[str, Path], manifest: Mapping[str, Any], part_bytes: int = PART_BYTES
) -> None:
    """The files one after the other, cut into parts. Parts that are there and whole are not written again."""
    files = [
        {"path": place, "bytes": path.stat().st_size, "sha256": unpack.sha256_of(path)}
        for place, path in carried.items()
    ]
    parts, pieces = [], (piece for path in carried.values() for piece in unpack.pieces_of(path))
    for number, data in enumerate(_cut(pieces, part_bytes)):
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


def _cut(pieces: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """Parts of so many bytes, and the rest."""
    taken, size = list[bytes](), 0
    for piece in pieces:
        while size + len(piece) >= part_bytes:
            left = part_bytes - size
            yield b"".join([*taken, piece[:left]])
            taken, size, piece = [], 0, piece[left:]
        taken.append(piece)
        size += len(piece)
    if size:
        yield b"".join(taken)


def _code_files(code: Sequence[str]) -> Iterator[Path]:
    for name in code:
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
            DEPLOYMENTS["rtx"].target,
        )
    shutil.copytree(place / "engines" / "rtx", source / "engines" / "rtx", dirs_exist_ok=True)
    return []


def wheels_for(source: Path, machine: Mapping[str, Any], missing: list[str], call: Call = call) -> dict[str, Path]:
    """Wheels of what the machine lacks, by file name, downloaded once; `missing` gets what no wheel was found for."""
    folder = source / WORK / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in machine["packages"].items()), "utf-8")
    tags = _tags(machine)
    words = ["--target", str(folder / "none"), "--constraint", str(constraints), *tags]
    with waiting("finding packages"):
        resolved = _resolved(words, _requirements(machine), missing, call)
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


def _resolved(words: list[str], requirements: list[str], missing: list[str], call: Call) -> list[dict[str, Any]]:
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


def draw_weights(bundle: Path, least_elements: int = LEAST_ELEMENTS) -> list[dict[str, Any]]:
    """Draw the weights of a bundle's graphs that lie in files beside them, in place, and keep the rest apart.

    Returns, by file: path relative to the bundle's parent, bytes, SHA-256, and [offset, elements, seed, scale] of what
    is drawn. It is kept in the bundle, and done once. Raises OSError.
    """
    done = bundle / "weights.json"
    if done.is_file():
        return list(json.loads(plain_utf8(done.read_bytes())))
    found = [_draw_file(bundle, name, tensors) for name, tensors in sorted(_tensors(bundle, least_elements).items())]
    write_whole(done, iter([json.dumps(found, indent=1).encode()]))
    return found


def _tensors(bundle: Path, least_elements: int) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """File -> offset and shape of the large float32 tensors in it."""
    found: dict[str, set[tuple[int, tuple[int, ...]]]] = {}
    for path in sorted(bundle.glob("*.onnx")):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            about = {each.key: each.value for each in tensor.external_data}
            large = found.setdefault(about["location"], set())
            is_float = tensor.data_type == onnx.TensorProto.FLOAT
            if is_float and len(tensor.dims) > 1 and np.prod(tensor.dims) >= least_elements:
                large.add((int(about.get("offset", 0)), tuple(tensor.dims)))
    return {name: sorted(each) for name, each in found.items()}


def _draw_file(bundle: Path, name: str, tensors: list[tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
    path = bundle / name
    values = np.memmap(path, np.uint8, "r")
    drawn, stop = list[list[Any]](), 0
    for offset, shape in tensors:
        if offset < stop:  # the same numbers in another shape
            continue
        stop = offset + 4 * int(np.prod(shape))
        tensor = values[offset:stop].view("<f4").reshape(shape)
        if _is_random(tensor):
            seed = int.from_bytes(hashlib.sha256(f"{bundle.name}/{name} {offset}".encode()).digest()[:6], "big")
            drawn.append([offset, tensor.size, seed, float(np.float32(tensor.std(dtype=np.float64) / DEVIATION))])
    rest = path.with_name(name + REST)
    write_whole(rest, _without(values, drawn))
    about = {"path": f"{bundle.name}/{name}", "bytes": len(values), "drawn": drawn}
    del values
    return {**about, "sha256": write_whole(path, with_weights_drawn(rest, about))}


def _is_random(tensor: NDArray[np.float32]) -> bool:
    """Whether neighbours on the first and the last axis of a part have nothing to do with each other."""
    part = tensor.reshape(-1)[:SAMPLE].astype(np.float64)
    rows = tensor.reshape(len(tensor), -1)[:, :1024][: SAMPLE // 8].astype(np.float64)
    pairs = [(part[:-1], part[1:])] + ([(rows[:-1].ravel(), rows[1:].ravel())] if len(rows) > 1 else [])
    return all(
        min(one.std(), two.std()) > 0 and abs(np.corrcoef(one, two)[0, 1]) < MOST_CORRELATION for one, two in pairs
    )


def _without(values: NDArray[np.uint8], drawn: list[list[Any]]) -> Iterator[bytes]:
    """What lies between the drawn tensors."""
    edges = [0, *(edge for offset, count, *_ in drawn for edge in (offset, offset + 4 * count)), len(values)]
    for begin, end in list(pairwise(edges))[::2]:
        yield values[begin:end].tobytes()
