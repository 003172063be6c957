"""tickrt pull: a published model, downloaded, exported and built for this machine."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from engine_build.cli import build_with_progress
from engine_build.compile.environment import probe_environment
from engine_build.config import BuildConfig
from engine_build.export.__main__ import NEEDED, OWN, export_bundle
from engine_build.request import load_request
from runtime.base.errors import ConfigError, TickError, did_you_mean
from runtime.commands.command_line import CommandLine, Version, need_packages
from runtime.commands.terminal import Terminal, exit_on_error, print_line, shown_path
from runtime.config.bundle import BUNDLE_FILE, load_bundle
from runtime.config.deployment import HOST_TARGETS, Target

if TYPE_CHECKING:
    from engine_build.export.hub import Selection

# Of a weight: float32 in a bundle, 16 bits as published.
GROWTH: Final = 2
# Of an export, measured: GB beside the largest part, and its share in float32 (engine_build/README.md).
MEMORY_BASE_GB, MEMORY_SHARE = 0.9, 0.95
# Wall time per GB of the bundle, measured on two cores with ACE-Step's 24 layers: 165 and 57 s for 6.6 GB.
EXPORT_S_PER_GB, BUILD_S_PER_GB = 25.0, 9.0
NETWORK_MBIT: Final = 100.0

app = CommandLine()


@dataclass(frozen=True)
class Published:
    """A published model: its family's exporter, and its id on the hub."""

    family: str
    id: str


MODELS: Final = {
    "acestep": Published("acestep", "ACE-Step/Ace-Step1.5/acestep-v15-turbo"),
    "acestep-xl": Published("acestep", "ACE-Step/acestep-v15-xl-turbo-diffusers"),
    "stable-audio-3-small": Published("stable_audio_3", "stabilityai/stable-audio-3-small-music"),
    "stable-audio-3-sfx": Published("stable_audio_3", "stabilityai/stable-audio-3-small-sfx"),
    "stable-audio-3-medium": Published("stable_audio_3", "stabilityai/stable-audio-3-medium"),
}


@app.command()
def tickrt_pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"One of {', '.join(MODELS)}.")],
    out: Annotated[
        Path | None, typer.Option(help="The bundle's folder; the deployment is OUT.toml. Default: MODEL, here.")
    ] = None,
    target: Annotated[
        Target | None, typer.Option(help="Where it will run. Default: this machine's GPU, or its processor.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="A branch, a tag or a commit on the hub. Default: the newest commit.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    version: Version = False,
) -> None:
    """Download a published model, export it, and build it for this machine; needs pip install 'tickrt[export]'.

    It says first what that takes, and asks. The same command goes on after an interruption: complete steps are kept.
    """
    if model not in MODELS:
        raise ConfigError(f"there is no model {model!r}", fix=did_you_mean(model, MODELS) or ", ".join(MODELS))
    need_packages(*NEEDED, "transformers", "huggingface_hub")
    with exit_on_error("interrupted; the same command goes on"):
        _pull(MODELS[model], out or Path(model), target or target_here(), revision, yes)


def target_here() -> Target:
    """The target of this machine: of its GPU, where one with its packages can build and run, else cpu."""
    for target in ("tensorrt", "tensorrt-rtx", "cuda"):
        environment = probe_environment(target, BuildConfig())
        if environment.missing is None and not environment.cannot_run:
            return target
    return "cpu"


def _pull(model: Published, out: Path, target: Target, revision: str | None, yes: bool) -> None:
    from engine_build.export import hub

    deployment = out.with_name(f"{out.name}.toml")
    origin = _exported_from(out, model.id)
    chosen = _selection(model, revision, origin, deployment)
    is_exported = deployment.is_file() and (chosen is None or chosen.origin == origin)
    if chosen is not None:
        _say(chosen.report())
        for line in cost_lines(chosen, out, target, is_exported=is_exported):
            _say(line)
        if origin not in ("", chosen.origin):
            _say(f"{shown_path(out)} is of another revision, {origin.partition('@')[2]}: it is exported anew")
    if chosen is not None and not (is_exported or yes):
        if not sys.stdin.isatty():
            raise ConfigError("without a terminal it cannot be asked whether to go on", fix="--yes")
        typer.confirm("go on?", abort=True, err=True)
    if chosen is None or is_exported:
        _say(f"1 and 2 of 3, download and export: {shown_path(out)} is complete since an earlier run")
    else:
        _say("1 of 3, download: complete since an earlier run" if not chosen.missing else "1 of 3, download")
        hub.download(chosen, _say)
        _say("2 of 3, export")
        own = {"checkpoint": chosen.origin}
        export_bundle(OWN[model.family], own, out=out, deployment=deployment, target=target)
    _say(f"3 of 3, engines for the target {target}")
    request = load_request(deployment)
    build_with_progress(request, target)
    # A deployment file that was there before may have another target.
    other = "" if request.deployment.target == target else f" --target {target}"
    print_line(f"tickrt serve {shown_path(deployment)}{other}")


def cost_lines(chosen: Selection, out: Path, target: Target, *, is_exported: bool) -> list[str]:
    """What a pull takes in disk, memory and minutes, at most, as sentences."""
    gb, missing_gb = chosen.size_bytes / 1e9, chosen.missing_bytes / 1e9
    bundle_gb = GROWTH * gb
    engines_gb = bundle_gb if target in HOST_TARGETS else gb
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    free_gb = shutil.disk_usage(place).free / 1e9
    new_gb = 0.0 if is_exported else missing_gb + bundle_gb
    parts = "" if is_exported else f"{missing_gb:.1f} GB to download, up to {bundle_gb:.1f} GB for the bundle, "
    lines = [
        f"disk: up to {new_gb + engines_gb:.1f} GB ({parts}up to {engines_gb:.1f} GB for engines); "
        f"{free_gb:.1f} GB are free" + ("" if free_gb > new_gb + engines_gb else ", which may not be enough")
    ]
    if is_exported:
        return [*lines, f"time: {_minutes(BUILD_S_PER_GB * bundle_gb)} to build, less where engines are there"]
    largest_gb = GROWTH * max(chosen.sizes.values()) / 1e9
    memory_gb = MEMORY_BASE_GB + MEMORY_SHARE * largest_gb
    download = f"{_minutes(8e3 * missing_gb / NETWORK_MBIT)} to download at {NETWORK_MBIT:.0f} Mbit/s, "
    export = f"{_minutes(EXPORT_S_PER_GB * bundle_gb)} to export, {_minutes(BUILD_S_PER_GB * bundle_gb)} to build"
    return [
        *lines,
        f"memory: up to {memory_gb:.1f} GB for the export, one part at a time in float32",
        f"time: {download if missing_gb else ''}{export}, as measured on two cores",
    ]


def _selection(model: Published, revision: str | None, origin: str, deployment: Path) -> Selection | None:
    """None where a bundle is complete, and neither hub nor cache can be asked for a newer commit."""
    from engine_build.export import hub

    reads = {"acestep": hub.acestep_files, "stable_audio_3": hub.stable_audio_3_files}[model.family]
    try:
        return hub.select(f"{model.id}@{revision}" if revision else model.id, reads)
    except TickError as error:
        is_enough = deployment.is_file() and revision in (None, origin.partition("@")[2])
        if not origin or not is_enough:
            raise
        _say(f"{error.what}; {origin} is exported")
        return None


def _exported_from(out: Path, id: str) -> str:
    """The id and commit that a bundle was exported from; "" where there is none. Raises ConfigError for another one."""
    if not (out / BUNDLE_FILE).is_file():
        return ""
    found = [word.rstrip(".") for word in load_bundle(out).description.split() if word.startswith(f"{id}@")]
    if not found:
        raise ConfigError(f"{out} is another model's bundle: it is not replaced", fix="--out another folder")
    return found[0]


def _minutes(seconds: float) -> str:
    minutes = round(seconds / 60)
    return "less than a minute" if minutes < 1 else f"{minutes} minute{'s' * (minutes > 1)}"


def _say(text: str) -> None:
    print_line(text, Terminal(stderr=True))
