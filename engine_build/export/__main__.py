"""python -m engine_build.export FAMILY: a bundle of a checkpoint, or of random weights; and a checkpoint's check."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engine_build.export.acestep.family import FAMILY as ACESTEP
from engine_build.export.bundle_export import GUIDE, ExportOptions, bundle_name, log_of, one_sentence, write_bundle
from engine_build.export.family import (
    COMMAND,
    Family,
    family_of_entry,
    family_of_file,
    plugged_in,
    say,
)
from engine_build.export.stable_audio_3.family import FAMILY as STABLE_AUDIO_3
from runtime.base.errors import ConfigError
from runtime.commands.command_line import CommandLine, DefaultCommandGroup, Group, need_packages
from runtime.commands.terminal import EXIT_OVER_LIMIT, print_line, shown_path
from runtime.config.deployment import Target

if TYPE_CHECKING:
    from engine_build.export.bundle_tables import FamilyFacts

NEEDED: Final = ("torch", "diffusers", "onnxscript", "onnxruntime")
OWN: Final = {"acestep": ACESTEP, "stable_audio_3": STABLE_AUDIO_3}
FAMILY_OPTION: Final = "--family"

# Options of every family.
Out = Annotated[Path, typer.Option(help="The bundle's folder; an existing bundle is replaced.")]
DeploymentPath = Annotated[
    Path | None, typer.Option(help="Path of the deployment file to write, unless it exists. Default: OUT.toml.")
]
DeploymentTarget = Annotated[Target, typer.Option("--target", help="Of the deployment file that is written.")]
Name = Annotated[str | None, typer.Option(help="The bundle's name. Default: the checkpoint's.")]
Description = Annotated[
    str | None, typer.Option(help="What the bundle is, in a sentence. Default: the family's, where it has one.")
]
CanvasSeconds = Annotated[
    float | None, typer.Option(min=0.1, help="Length of a full generation; shorter ones are served too.")
]
Force = Annotated[bool, typer.Option("--force", help="Start anew: use nothing of an interrupted export.")]
CheckOut = Annotated[
    Path | None,
    typer.Option(
        help="A folder for the bundle, its engines, report.md, report.json and sound.wav. Default: NAME-check."
    ),
]
CheckSeconds = Annotated[
    float, typer.Option(min=1.0, max=60.0, help="Length of what is generated: twice by each, in float32.")
]
CheckTarget = Annotated[Target, typer.Option(help="Where TickRT runs; what it is compared with runs on the CPU.")]
Calibrates = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Of a model of many steps also find those that can be left out, and name them in bundle.toml.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON, not as Markdown.")]


class Families(Group):
    """Families by name: ours; those of installed packages and of files, which are loaded when they are called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--family FILE` and `--family NAME` are a family's command, as NAME alone is."""
        first, equals, value = args[0].partition("=") if args else ("", "", "")
        if first == FAMILY_OPTION:
            args = [value, *args[1:]] if equals else args[1:]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names; a file has none."""
        return sorted({*super().list_commands(ctx), *plugged_in()})

    def get_command(self, ctx: Any, name: str) -> Any:
        """The family's command; None where there is no such family. Raises ConfigError where it cannot be loaded."""
        if (own := super().get_command(ctx, name)) is not None:
            return own
        entry = plugged_in().get(name)
        if entry is None and not (name.endswith(".py") or Path(name).is_file()):
            return None
        need_packages(*NEEDED)
        family = family_of_file(Path(name)) if entry is None else family_of_entry(entry)
        return typer.main.get_command(family_app(family))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Ours with their titles, others with the package that they are of: they are not loaded for it."""
        rows = [(name, str(self.commands[name].get_short_help_str(100))) for name in sorted(self.commands)]
        others = {name: entry for name, entry in sorted(plugged_in().items()) if name not in self.commands}
        rows += [(name, f"Of {entry.dist.name if entry.dist else entry.value}.") for name, entry in others.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = CommandLine(add_completion=False, cls=Families)


@app.callback()
def export_command(
    family: Annotated[
        Path | None, typer.Option(FAMILY_OPTION, metavar="FILE", help=f"In place of FAMILY: a file, as {GUIDE} has it.")
    ] = None,
) -> None:
    """Model checkpoints as bundles: ONNX graphs and bundle.toml. Needs pip install 'tickrt[export]'."""


def family_app(family: Family) -> CommandLine:
    """A family's commands, with its own options and those of every family."""
    title = family.title or family.name
    is_checked = family.check is not None
    own = CommandLine(
        add_completion=False,
        cls=DefaultCommandGroup,
        help=f"{title}: a bundle (the word `export` may be left out)"
        + (", or a check of a checkpoint on this machine." if is_checked else "."),
    )
    own.callback()(lambda: None)
    own.command("export", help=inspect.getdoc(family.export))(_command(export_bundle, family, family.export))
    if family.check is not None:
        own.command("check", help=inspect.getdoc(family.check))(_command(check_bundle, family, family.check, given=1))
    return own


def export_bundle(
    family: Family,
    own: Mapping[str, Any],
    *,
    out: Out,
    deployment: DeploymentPath = None,
    target: DeploymentTarget = "cpu",
    name: Name = None,
    description: Description = None,
    canvas_seconds: CanvasSeconds = None,
    force: Force = False,
) -> None:
    """Export a family's bundle and write a first deployment. own: the family's options. Raises TickError."""
    need_packages(*NEEDED)
    with one_sentence(family.name, log_of(out)):
        export = family.export(**own)
    described = description or export.source.description
    if not described:
        raise ConfigError("the bundle has no description, a sentence on what it is", fix='--description "..."')
    options = ExportOptions(
        bundle_name(name or export.source.name, family.name),
        _canvas_s(family, canvas_seconds),
        description=described,
        force=force,
    )
    facts = write_bundle(export, out, options, say)
    with one_sentence("deployment", log_of(out)):
        path = _write_deployment(deployment, out, lambda path: facts.deployment_text(out, path, target))
    _conclude(out, path, facts)


def check_bundle(
    family: Family,
    own: Mapping[str, Any],
    *,
    out: CheckOut = None,
    seconds: CheckSeconds = 10.0,
    target: CheckTarget = "cpu",
    calibrate: Calibrates = False,
    as_json: AsJson = False,
) -> None:
    """Make a report, write it into `out`, and print it. Raises typer.Exit where a check failed."""
    need_packages(*NEEDED, "transformers")
    from engine_build.export.parity import CheckOptions

    assert family.check is not None
    folder = out or Path(f"{family.name}-check")
    report = family.check(CheckOptions(folder, seconds, target, calibrates=calibrate), **own)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"report.md": report.markdown(), "report.json": json.dumps(report.as_json(), indent=1) + "\n"}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for line in texts["report.json" if as_json else "report.md"].splitlines():
        print_line(line)
    say(f"{shown_path(folder / 'report.md')} can be sent; {shown_path(folder / 'sound.wav')} is for you")
    if report.count("fail"):
        raise typer.Exit(EXIT_OVER_LIMIT)


def main() -> None:
    """python -m engine_build.export."""
    app(prog_name=COMMAND)


def _command(
    run: Callable[..., None], family: Family, function: Callable[..., object], given: int = 0
) -> Callable[..., None]:
    """A function for Typer with a family's parameters, but the `given` first ones, and the keyword-only ones of `run`.

    Raises ConfigError where both have one of a name.
    """
    own = [_resolved(each, function) for each in [*inspect.signature(function).parameters.values()][given:]]
    every = inspect.signature(run).parameters.values()
    first, *others = (_resolved(each, run) for each in every if each.kind is each.KEYWORD_ONLY)
    if both := [each.name for each in own if each.name in {first.name, *(other.name for other in others)}]:
        raise ConfigError(f"{family.name} has options that every family has: {', '.join(both)}", fix="rename them")

    def command(**values: Any) -> None:
        run(family, {each.name: values.pop(each.name) for each in own}, **values)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (first, *own, *others)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _resolved(parameter: inspect.Parameter, function: Callable[..., object]) -> inspect.Parameter:
    """With its annotation as an object: that of what a function returns may be for type checkers alone."""
    if not isinstance(parameter.annotation, str):
        return parameter
    return parameter.replace(annotation=eval(parameter.annotation, getattr(function, "__globals__", {})))


def _canvas_s(family: Family, asked: float | None) -> float:
    if asked is not None and asked > family.most_canvas_s:
        raise ConfigError(f"--canvas-seconds is {asked:g}", fix=f"at most {family.most_canvas_s:g}")
    return asked or family.canvas_s


def _write_deployment(path: Path | None, out: Path, text: Callable[[Path], str]) -> Path:
    """Write the deployment file unless it exists; returns its path. text: path -> content."""
    path = path or out.with_name(f"{out.name}.toml")
    content = text(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(content)
    return path


def _conclude(out: Path, path: Path, facts: FamilyFacts) -> None:
    size_gb = sum(file.stat().st_size for file in out.iterdir()) / 1e9
    print_line(f"{shown_path(out)}: {size_gb:.2f} GB, decoder off by {facts.figures.get('decoder_max_error', 0):.1e}")
    if "condition" in facts.inputs and facts.text_encoder is None:
        or_null = "; those without one get the null condition" if facts.has_null_condition else ""
        print_line(f"No text encoder: requests bring their condition, float32 [L, D]{or_null}")
    print_line(f"tickrt-build {shown_path(path)}")
    print_line(f"tickrt-bench {shown_path(path)}")


for _name, _family in OWN.items():
    app.add_typer(family_app(_family), name=_name)


if __name__ == "__main__":
    main()
