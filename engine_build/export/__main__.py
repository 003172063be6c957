"""python -m engine_build.export FAMILY: a bundle of a checkpoint, or of random weights; and a checkpoint's check."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from runtime.command_line import CommandLine, DefaultCommandGroup, need_packages
from runtime.config.targets import Target
from runtime.errors import ConfigError
from runtime.terminal import EXIT_OVER_LIMIT, Terminal, print_line, shown_path

if TYPE_CHECKING:
    from engine_build.export.acestep.sources import Checkpoint as AceStepCheckpoint
    from engine_build.export.bundle_export import CheckpointSource, ExportOptions
    from engine_build.export.check_report import CheckReport
    from engine_build.export.parity import CheckOptions
    from engine_build.export.stable_audio_3.sources import Checkpoint as StableAudioCheckpoint

T = TypeVar("T")

NEEDED = ("torch", "diffusers", "onnxscript", "onnxruntime")
COMMAND = "python -m engine_build.export"
PLACE = "FOLDER|ID"
ON_THE_HUB = "or an id on the hub, ORG/NAME[/FOLDER][@REVISION]"

app = CommandLine(add_completion=False)
acestep = CommandLine(add_completion=False, cls=DefaultCommandGroup)
stable_audio_3 = CommandLine(add_completion=False, cls=DefaultCommandGroup)
app.add_typer(acestep, name="acestep")
app.add_typer(stable_audio_3, name="stable_audio_3")


# Options of every family.
Out = Annotated[Path, typer.Option(help="The bundle's folder; an existing bundle is replaced.")]
DeploymentPath = Annotated[
    Path | None, typer.Option(help="Path of the deployment file to write, unless it exists. Default: OUT.toml.")
]
DeploymentTarget = Annotated[Target, typer.Option("--target", help="Of the deployment file that is written.")]
Name = Annotated[str | None, typer.Option(help="The bundle's name. Default: the checkpoint's folder.")]
Force = Annotated[bool, typer.Option("--force", help="Start anew: use nothing of an interrupted export.")]
NoText = Annotated[bool, typer.Option("--no-text", help="Leave the text encoder out.")]
Seed = Annotated[int, typer.Option(min=0, help="With --random: the weights' seed.")]
TextEncoderFolder = Annotated[
    str | None,
    typer.Option(
        "--text-encoder",
        metavar=PLACE,
        help="T5Gemma's folder (t5gemma-b-b-ul2), or its id, where it is not in the checkpoint's.",
    ),
]
# Options of every check.
Checked = Annotated[
    str, typer.Option("--checkpoint", metavar=PLACE, help=f"A folder as published, in either layout, {ON_THE_HUB}.")
]
CheckSeconds = Annotated[
    float, typer.Option(min=1.0, max=60.0, help="Length of what is generated: twice by each, in float32.")
]
CheckTarget = Annotated[Target, typer.Option(help="Where TickRT runs; what it is compared with runs on the CPU.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON, not as Markdown.")]
CHECK_OUT = "A folder for the bundle, its engines, report.md, report.json and sound.wav."


class RandomSize(StrEnum):
    """The published sizes of Stable Audio 3."""

    SMALL = "small"
    MEDIUM = "medium"


@app.callback()
def export() -> None:
    """Model checkpoints as bundles: ONNX graphs and bundle.toml. Needs pip install 'tickrt[export]'."""


@acestep.callback()
def _acestep() -> None:
    """ACE-Step v1.5: a bundle (the word `export` may be left out), or a check of a checkpoint on this machine."""


@acestep.command("export")
def export_acestep(
    out: Out,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A folder as published: in diffusers' layout (transformer/, vae/, ...) or ACE-Step's own; "
            f"{ON_THE_HUB}.",
        ),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Seeded random weights at ACE-Step v1.5's published sizes, for benchmarks.")
    ] = False,
    planner: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A folder with the 5 Hz language model (acestep-5Hz-lm-0.6B), or its id; "
            "with --random: 0.6b, 1.7b or 4b.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A smaller one with the same tokens, that drafts what the planner verifies; the plans stay.",
        ),
    ] = None,
    deployment: DeploymentPath = None,
    target: DeploymentTarget = "cpu",
    name: Name = None,
    canvas_seconds: Annotated[
        float, typer.Option(min=1.0, max=600.0, help="Length of a full generation. 240 serves 60, 120 and 240 s too.")
    ] = 60.0,
    force: Force = False,
    no_text: NoText = False,
    seed: Seed = 0,
    xl: Annotated[bool, typer.Option("--xl", help="With --random: the sizes of XL.")] = False,
    layers: Annotated[int | None, typer.Option(min=1, max=64, help="With --random: layers, of 24.")] = None,
    hidden: Annotated[int | None, typer.Option(min=8, help="With --random: hidden size, of 2048.")] = None,
    intermediate: Annotated[int | None, typer.Option(min=8, help="With --random: the MLP's size, of 6144.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="With --random: attention heads, of 16.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="With --random: key and value heads, of 8.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=8, help="With --random: a head's width, of 128.")] = None,
    condition: Annotated[int | None, typer.Option(min=8, help="With --random: condition width, of 2048.")] = None,
) -> None:
    """Export ACE-Step v1.5: decoder, codec and, where the checkpoint has one, text encoder.

    Every graph is compared with its module. Afterwards: tickrt-build DEPLOYMENT, tickrt-bench DEPLOYMENT.
    """
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "encoder_hidden_size": condition,
    }
    need_packages(*NEEDED)
    from engine_build.export.bundle_export import ExportOptions, bundle_name

    source = _source(checkpoint, random, seed, _given(sizes), planner, draft, xl)
    options = ExportOptions(
        bundle_name(name or source.name, "acestep"),
        canvas_seconds,
        with_text=not no_text,
        description=source.description,
        force=force,
    )
    _export(source, out, deployment, target, options)


@acestep.command("check")
def check_acestep(
    checkpoint: Checked,
    out: Annotated[Path, typer.Option(help=CHECK_OUT)] = Path("acestep-check"),
    seconds: CheckSeconds = 10.0,
    target: CheckTarget = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compare a checkpoint's bundle with diffusers' pipeline on this machine: latents, audio, times, and a WAV file.

    The report can be sent to us: it has figures, no paths, no names, no audio. Nothing leaves this machine by itself.
    """
    need_packages(*NEEDED, "transformers")
    from engine_build.export.acestep.check import check_checkpoint
    from engine_build.export.parity import CheckOptions

    source = _acestep_checkpoint(checkpoint)
    _check(CheckOptions(out, seconds, target), as_json, lambda options: check_checkpoint(source, options, _say))


@stable_audio_3.callback()
def _stable_audio_3() -> None:
    """Stable Audio 3: a bundle (the word `export` may be left out), or a check of a checkpoint on this machine."""


@stable_audio_3.command("export")
def export_stable_audio_3(
    out: Out,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar=PLACE,
            help="A folder as published (model_config.json, model.safetensors), or in diffusers' layout; "
            f"{ON_THE_HUB}.",
        ),
    ] = None,
    random: Annotated[
        RandomSize | None,
        typer.Option(help="Seeded random weights at the published sizes of small or medium, for benchmarks."),
    ] = None,
    text_encoder: TextEncoderFolder = None,
    deployment: DeploymentPath = None,
    target: DeploymentTarget = "cpu",
    name: Name = None,
    canvas_seconds: Annotated[
        float, typer.Option(min=1.0, max=380.0, help="Length of a full generation; shorter ones are served too.")
    ] = 120.0,
    force: Force = False,
    no_text: NoText = False,
    seed: Seed = 0,
    layers: Annotated[
        int | None, typer.Option(min=1, max=64, help="With --random: layers of the decoder and of the codec's halves.")
    ] = None,
) -> None:
    """Export Stable Audio 3: decoder, codec and, where the checkpoint has one, text encoder.

    The weights are under the Stability AI Community License, the text encoder is under the Gemma terms: read them.
    """
    need_packages(*NEEDED)
    from engine_build.export.bundle_export import ExportOptions, bundle_name
    from engine_build.export.stable_audio_3.bundle_text import deployment_text
    from engine_build.export.stable_audio_3.export import export_bundle
    from engine_build.export.stable_audio_3.sources import RandomWeights, StableAudioSource

    if (random is None) == (checkpoint is None):
        raise ConfigError(
            "expected either --checkpoint FOLDER or --random SIZE", fix="--random small --layers 2 for a quick look"
        )
    source: StableAudioSource
    if random is not None:
        if text_encoder is not None:
            raise ConfigError("--text-encoder belongs to --checkpoint", fix="leave it out")
        source = RandomWeights.of_layers(random.value, seed, layers)
    else:
        if layers is not None:
            raise ConfigError("sizes belong to --random: a checkpoint has its own", fix="leave them out")
        assert checkpoint is not None
        source = _stable_audio_checkpoint(checkpoint, text_encoder)
    options = ExportOptions(
        bundle_name(name or source.name, "stable-audio-3"),
        canvas_seconds,
        with_text=not no_text,
        description=source.description,
        force=force,
    )
    facts = export_bundle(source, out, options, _say)
    path = _write_deployment(deployment, out, lambda path: deployment_text(facts, out, path, target))
    _conclude(out, path, facts.figures, None if facts.text_encoder else facts.has_null_condition)


@stable_audio_3.command("check")
def check_stable_audio_3(
    checkpoint: Checked,
    text_encoder: TextEncoderFolder = None,
    out: Annotated[Path, typer.Option(help=CHECK_OUT)] = Path("stable-audio-3-check"),
    seconds: CheckSeconds = 10.0,
    audio: Annotated[
        Path | None,
        typer.Option(help="A file of music, for checks 1, 5 and 7; it stays here. Default: a clip of ours."),
    ] = None,
    target: CheckTarget = "cpu",
    as_json: AsJson = False,
) -> None:
    """Answer by a checkpoint's weights where published implementations contradict each other, and compare its bundle.

    The report can be sent to us: it has figures, no paths, no names, no audio. Nothing leaves this machine by itself.
    """
    need_packages(*NEEDED, "transformers")
    from engine_build.export.parity import CheckOptions
    from engine_build.export.stable_audio_3.check import check_checkpoint

    source = _stable_audio_checkpoint(checkpoint, text_encoder)
    options = CheckOptions(out, seconds, target, audio)
    _check(options, as_json, lambda options: check_checkpoint(source, options, _say))


def main() -> None:
    """python -m engine_build.export."""
    app(prog_name=COMMAND)


def _source(
    checkpoint: str | None,
    random: bool,
    seed: int,
    sizes: dict[str, int],
    planner: str | None,
    draft: str | None,
    xl: bool,
) -> CheckpointSource:
    from engine_build.export.acestep.sources import XL_CONFIG, RandomWeights

    if random == (checkpoint is not None):
        raise ConfigError("expected either --checkpoint FOLDER or --random", fix="--random --layers 2 for a quick look")
    if draft is not None and planner is None:
        raise ConfigError("--draft drafts for a planner", fix="--planner acestep-5Hz-lm-4B --draft acestep-5Hz-lm-0.6B")
    if checkpoint is not None:
        if sizes or xl:
            raise ConfigError("sizes belong to --random: a checkpoint has its own", fix="leave them out")
        return _acestep_checkpoint(checkpoint, planner, draft)
    if xl:
        name, sizes = "acestep-xl-random", {**XL_CONFIG, **sizes}
        return RandomWeights(seed, planner=planner, draft=draft, transformer_changes=sizes, name=name)
    return RandomWeights(seed, planner=planner, draft=draft, transformer_changes=sizes)


def _export(
    source: CheckpointSource, out: Path, deployment: Path | None, target: Target, options: ExportOptions
) -> None:
    from engine_build.export.acestep.bundle_text import deployment_text
    from engine_build.export.acestep.export import export_bundle

    facts = export_bundle(source, out, options, _say)
    path = _write_deployment(deployment, out, lambda path: deployment_text(facts, out, path, target))
    _conclude(out, path, facts.figures, None if facts.text_encoder else facts.has_null_condition)


def _acestep_checkpoint(checkpoint: str, planner: str | None = None, draft: str | None = None) -> AceStepCheckpoint:
    from engine_build.export.acestep.sources import Checkpoint
    from engine_build.export.hub import acestep_files, model_files, place_of
    from engine_build.export.stable_audio_3.layouts import checkpoint_of

    place = place_of(checkpoint, acestep_files, _say)
    models = [None if each is None else place_of(each, model_files, _say) for each in (planner, draft)]
    planner_folder, draft_folder = (None if each is None else each.folder for each in models)
    origins = [place.origin, *(each.origin for each in models if each)]
    return _of_family(
        lambda: Checkpoint(place.folder, planner_folder, draft_folder, origins),
        lambda: checkpoint_of(place.folder),
        "stable_audio_3",
    )


def _stable_audio_checkpoint(checkpoint: str, text_encoder: str | None) -> StableAudioCheckpoint:
    from engine_build.export.acestep.layouts import parts_of
    from engine_build.export.hub import model_files, place_of, stable_audio_3_files
    from engine_build.export.stable_audio_3.sources import Checkpoint

    place = place_of(checkpoint, stable_audio_3_files, _say)
    text = None if text_encoder is None else place_of(text_encoder, model_files, _say)
    folder, origins = (None, [place.origin]) if text is None else (text.folder, [place.origin, text.origin])
    return _of_family(lambda: Checkpoint(place.folder, folder, origins), lambda: parts_of(place.folder), "acestep")


def _of_family(read: Callable[[], T], read_as_other: Callable[[], object], other: str) -> T:
    """A checkpoint. Raises ConfigError; where it is one of the other family, with that one's command."""
    try:
        return read()
    except ConfigError as error:
        try:
            read_as_other()
        except ConfigError:
            raise error from None
        raise ConfigError(error.what, fix=f"it is another family's: {COMMAND} {other}") from None


def _say(text: str) -> None:
    print_line(text, Terminal(stderr=True))


def _check(options: CheckOptions, as_json: bool, check: Callable[[CheckOptions], CheckReport]) -> None:
    """Make a report, write it into `options.out`, and print it. Raises typer.Exit where a check failed."""
    options.out.mkdir(parents=True, exist_ok=True)
    report = check(options)
    texts = {"report.md": report.markdown(), "report.json": json.dumps(report.as_json(), indent=1) + "\n"}
    for name, text in texts.items():
        (options.out / name).write_text(text, encoding="utf-8")
    for line in texts["report.json" if as_json else "report.md"].splitlines():
        print_line(line)
    _say(f"{shown_path(options.out / 'report.md')} can be sent; {shown_path(options.out / 'sound.wav')} is for you")
    if report.count("fail"):
        raise typer.Exit(EXIT_OVER_LIMIT)


def _write_deployment(path: Path | None, out: Path, text: Callable[[Path], str]) -> Path:
    """Write the deployment file unless it exists; returns its path. text: path -> content."""
    path = path or out.with_name(f"{out.name}.toml")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(path), encoding="utf-8")
    return path


def _conclude(out: Path, path: Path, figures: Mapping[str, Any], null_without_text: bool | None) -> None:
    """null_without_text: without a text encoder, whether there is a null condition; None with one."""
    size_gb = sum(file.stat().st_size for file in out.iterdir()) / 1e9
    print_line(f"{shown_path(out)}: {size_gb:.2f} GB, decoder off by {figures['decoder_max_error']:.1e}")
    if null_without_text is not None:
        print_line("No text encoder: " + ("null condition only" if null_without_text else "condition tokens only"))
    print_line(f"tickrt-build {shown_path(path)}")
    print_line(f"tickrt-bench {shown_path(path)}")


def _given(values: dict[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


if __name__ == "__main__":
    main()
