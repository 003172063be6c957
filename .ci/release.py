"""The files of a release, in dist/, from the last commit. Without a step all of them, in this order.

build    source distribution and wheel, twice, compared byte by byte
check    twine check, check-wheel-contents, the version, the licence of every file
install  with every supported Python that is here or can be fetched: the wheel is built from the source distribution
         and compared, installed in an empty environment, and used (play.py)
sbom     what the wheel installs with its extra cpu, as CycloneDX, with licences
extras   every extra resolved for every supported Python, from an empty cache

Reports are in build/release/. `make release` runs it with the extra release.
"""

from __future__ import annotations

import argparse
import email
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST, REPORTS = ROOT / "dist", ROOT / "build" / "release"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
UV = (sys.executable, "-m", "uv")
# Its notices of others would have to go along.
NOTICE = re.compile(rb"copyright \(c\)|copyright \d|SPDX-License-Identifier|licen[cs]ed under", re.IGNORECASE)
# Licences under which a dependency may be installed beside TickRT; everything else is looked at by a person first.
LICENCES = re.compile(
    r"MIT|BSD|Apache|Python Software Foundation|PSF|ISC|MPL|Mozilla Public|LGPL|HPND|CNRI|Unlicense|0BSD|Zlib|CC0",
    re.IGNORECASE,
)
STEPS = ("build", "check", "install", "sbom", "extras")


def fail(what: str) -> SystemExit:
    """The end of the program, with what is wrong."""
    return SystemExit(f"error: {what}")


def run(*command: str | Path, **variables: str) -> str:
    """The standard output of a command. Ends the program where it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        raise fail(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def git(*arguments: str) -> str:
    """What git prints, without the line end."""
    return run("git", *arguments).strip()


def project() -> Mapping[str, Any]:
    """[project] of pyproject.toml."""
    table: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def dist_files() -> tuple[Path, Path]:
    """The source distribution and the wheel in dist/. Ends the program where they are not there."""
    files = [DIST / f"tickrt-{project()['version']}{end}" for end in (".tar.gz", "-py3-none-any.whl")]
    if missing := [file.name for file in files if not file.is_file()]:
        raise fail(f"{', '.join(missing)}: not in dist/; run the step build first")
    return files[0], files[1]


def build() -> None:
    """Both files of the last commit, in dist/."""
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise fail(f"files differ from the last commit, which is what is released: commit them first\n{changed}")
    epoch = int(git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as folder:
        first = build_once(Path(folder) / "first", epoch, TZ="UTC", LC_ALL="C")
        second = build_once(Path(folder) / "a-second-time", epoch, TZ="Pacific/Auckland", LC_ALL="C.UTF-8")
        for one, other in zip(first, second, strict=True):
            if one.read_bytes() != other.read_bytes():
                raise fail(f"two builds of {one.name} differ")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for file in first:
            shutil.copy(file, DIST)
    for file in dist_files():
        print(f"  {sha256(file)}  {file.name}  {file.stat().st_size / 1e6:.1f} MB, the same twice")


def build_once(folder: Path, epoch: int, **variables: str) -> tuple[Path, Path]:
    """Source distribution and wheel of the last commit; the wheel is built from the source distribution."""
    folder.mkdir()
    os.umask(0o022)  # the wheel has the modes of files
    run("git", "archive", "--format=tar", f"--output={folder / 'source.tar'}", "HEAD")
    with tarfile.open(folder / "source.tar") as archive:
        archive.extractall(folder / "source", filter="data")
    build = (sys.executable, "-m", "build", "--outdir", folder)
    run(*build, "--sdist", folder / "source", SOURCE_DATE_EPOCH=str(epoch), **variables)
    (sdist,) = folder.glob("*.tar.gz")
    repack(sdist, epoch)
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(*build, "--wheel", unpacked, SOURCE_DATE_EPOCH=str(epoch), **variables)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def repack(sdist: Path, epoch: int) -> None:
    """Write a source distribution anew, in which times, owners, modes and order are not those of this machine."""
    with tarfile.open(sdist) as archive:
        files = {member.name: (member, archive.extractfile(member)) for member in archive if member.isfile()}
        with (
            open(sdist.with_suffix(".new"), "wb") as out,
            gzip.GzipFile("", "wb", fileobj=out, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as anew,
        ):
            for name in sorted(files):
                member, data = files[name]
                plain = tarfile.TarInfo(name)
                plain.size, plain.mtime, plain.mode = member.size, epoch, 0o755 if member.mode & 0o100 else 0o644
                anew.addfile(plain, data)
    sdist.with_suffix(".new").replace(sdist)


def sha256(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check() -> None:
    """Ends the program where dist/ is not fit to be published."""
    files, version = dist_files(), project()["version"]
    print("  " + run(sys.executable, "-m", "twine", "check", "--strict", *files).strip().replace("\n", "\n  "))
    print("  " + run(sys.executable, "-m", "check_wheel_contents", files[1]).strip())
    if f"\n## {version}\n" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        raise fail(f"CHANGELOG.md has no section for {version}")
    with zipfile.ZipFile(files[1]) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    meta = email.message_from_bytes(contents[f"tickrt-{version}.dist-info/METADATA"])
    expected = (version, project()["license"])
    if (meta["Version"], meta["License-Expression"]) != expected:
        raise fail(f"the wheel says {meta['Version']}, {meta['License-Expression']}, expected {', '.join(expected)}")
    if contents[f"tickrt-{version}.dist-info/licenses/LICENSE"] != (ROOT / "LICENSE").read_bytes():
        raise fail("the wheel has another LICENSE")
    tracked = set(git("ls-files").splitlines())
    ours = {name: source_of(name) for name in contents if ".dist-info/" not in name}
    if foreign := [name for name, source in ours.items() if source not in tracked]:
        raise fail(f"the wheel has files that are not in the repository: {', '.join(foreign)}")
    if noticed := [name for name in ours if NOTICE.search(contents[name])]:
        raise fail(f"files in the wheel that name an owner or a licence of their own: {', '.join(noticed)}")
    print(f"  {len(ours)} files, all of the repository and under {meta['License-Expression']}")


def source_of(name: str) -> str:
    """The path in the repository of a file in the wheel."""
    for begin, folder in (("tickrt/configs/", "configs/"), ("tickrt/", "runtime/api/tickrt/")):
        if name.startswith(begin):
            return folder + name.removeprefix(begin)
    return name


def interpreters() -> Iterator[tuple[str, str | None]]:
    """Every supported version, and the interpreter of it: one that is here, else one that uv can fetch, else None."""
    for version in PYTHONS:
        find = [*UV, "python", "find", "--system", "--no-project", version]
        done = subprocess.run(find, capture_output=True, text=True)
        if done.returncode:
            subprocess.run([*UV, "python", "install", "--quiet", version], capture_output=True)
            done = subprocess.run(find, capture_output=True, text=True)
        yield version, done.stdout.strip() if done.returncode == 0 else None


def install() -> None:
    """Build, install and use both files with every Python."""
    (sdist, wheel), epoch, tried = dist_files(), git("log", "-1", "--format=%ct"), 0
    for version, python in interpreters():
        if python is None:
            print(f"  Python {version}: not here, and not to be fetched")
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = (*UV, "build", "--quiet", "--wheel", "--python", python, "--out-dir", folder, sdist)
            run(*command, SOURCE_DATE_EPOCH=epoch)
            (built,) = Path(folder).glob("*.whl")
            if built.read_bytes() != wheel.read_bytes():
                raise fail(f"Python {version} builds another wheel from the source distribution")
        said = run(python, ROOT / ".ci" / "play.py", wheel)
        print("  the same wheel, built by " + said.strip().replace("\n", "\n  "))
        tried += 1
    if not tried:
        raise fail(f"no Python of {', '.join(PYTHONS)} is here")


def sbom() -> None:
    """build/release/tickrt-VERSION.cdx.json, and the licences in it."""
    _, wheel = dist_files()
    REPORTS.mkdir(parents=True, exist_ok=True)
    bill = REPORTS / f"tickrt-{project()['version']}.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        run(*UV, "venv", "--quiet", "--python", sys.executable, folder)
        run(*UV, "pip", "install", "--quiet", "--python", folder, f"{wheel}[cpu]")
        run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON",
            "--pyproject", ROOT / "pyproject.toml", "-o", bill, folder)  # fmt: skip
        document = json.loads(bill.read_text("utf-8"))
        add_licences(document["components"], next(Path(folder).glob("[Ll]ib/**/site-packages")))
    bill.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    components = document["components"]
    licences = {f"{each['name']} {each['version']}": licence_of(each) for each in components}
    for licence in sorted(set(licences.values())):
        print(f"  {licence}: {', '.join(name for name in sorted(licences) if licences[name] == licence)}")
    if unknown := [name for name, licence in licences.items() if not is_accepted(licence)]:
        raise fail(f"dependencies whose licence is not one of {LICENCES.pattern}: {', '.join(unknown)}")
    print(f"  {bill.relative_to(ROOT)}: {len(components)} components")


def add_licences(components: list[dict[str, Any]], packages: Path) -> None:
    """Add licences that packages name in the way of before, which the tool does not read."""
    named = {each.name: each.metadata["License"] for each in metadata.distributions(path=[str(packages)])}
    for component in components:
        if not component.get("licenses") and (licence := named.get(component["name"])):
            component["licenses"] = [{"license": {"name": licence}}]


def licence_of(component: Mapping[str, Any]) -> str:
    """The licences of a component of a CycloneDX document, the shortest name of each that is not a text."""
    names = set()
    for item in component.get("licenses", []):
        licence = item.get("license", {})
        name = item.get("expression") or licence.get("id") or licence.get("name", "")
        names.add(name.rpartition(" :: ")[2])
    return ", ".join(sorted(name.splitlines()[0][:60] for name in names if name)) or "none"


def is_accepted(licence: str) -> bool:
    """Whether every licence that is named is one of LICENCES, and none is the GPL without a choice."""
    parts = re.split(r", | AND ", licence)
    return all(LICENCES.search(part) and not re.search(r"(?<!L)(?<!Lesser )GPL", part) for part in parts)


def extras() -> None:
    """build/release/extras.md: how many packages each extra installs on each Python, and whether all have wheels."""
    _, wheel = dist_files()
    rows = [["extra", *PYTHONS], ["---"] * (len(PYTHONS) + 1)]
    with tempfile.TemporaryDirectory() as cache:
        for extra in ("", *project()["optional-dependencies"]):
            cells = [resolved(wheel, extra, version, cache) for version in PYTHONS]
            rows.append([extra or "none", *cells])
            print("  " + " | ".join(rows[-1]), flush=True)
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / "extras.md").write_text("".join(f"| {' | '.join(row)} |\n" for row in rows), "utf-8")
    if any("cannot" in cell for row in rows for cell in row):
        raise fail("an extra cannot be resolved: see build/release/extras.md")


def resolved(wheel: Path, extra: str, version: str, cache: str) -> str:
    """How many packages the wheel with an extra installs on a Python, "+ source" where not all of them have wheels."""
    requirement = f"tickrt{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"
    command = [*UV, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--cache-dir", cache]
    for more in (["--only-binary", ":all:"], []):
        done = subprocess.run(
            [*command, *more, "--python-version", version], input=requirement, capture_output=True, text=True
        )
        if done.returncode == 0:
            return f"{len(done.stdout.splitlines())}{'' if more else ' + source'}"
    return f"cannot: {' '.join(done.stderr.split())[:300]}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"one of {', '.join(STEPS)}")
    steps = parser.parse_args().steps
    if unknown := set(steps) - set(STEPS):
        parser.error(f"unknown: {', '.join(unknown)}")
    for step in STEPS:
        if not steps or step in steps:
            print(f"{step}:", flush=True)
            {"build": build, "check": check, "install": install, "sbom": sbom, "extras": extras}[step]()


if __name__ == "__main__":
    main()
