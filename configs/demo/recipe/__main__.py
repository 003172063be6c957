"""python -m configs.demo.recipe train | train-encoder | train-adapter | distill | export | evaluate | plot | ..."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from configs.demo.recipe.planner.commands import planner
from runtime.base.errors import ConfigError
from runtime.commands.command_line import CommandLine, need_packages
from runtime.commands.terminal import print_line

app = CommandLine(add_completion=False, help="Train, export, evaluate and plot the demo bundle.")
app.add_typer(planner, name="planner")

TRAINING = ("torch", "diffusers", "onnxscript")
DEFAULT_FOLDER = Path("configs/demo")
DEFAULT_CHECKPOINT = Path("build/demo/checkpoint.pt")
DEFAULT_STUDENT = Path("build/demo/student.pt")
# Figures that are measured together -> their module in `evaluation`.
GROUPS = {
    "held-out": "evaluate",
    "typed": "typed",
    "plans": "plans",
    "sustained": "sustained",
    "tonic": "tonic",
    "blends": "blends",
    "steps": "steps",
    "notes": "notes",
    "echo": "echo",
    "ends": "ends",
    "moves": "moves",
    "breathes": "breathes",
    "beat": "beat",
    "wraps": "wraps",
}
DEFAULT_GROUP = "held-out"
WITHOUT_LIBROSA = frozenset({DEFAULT_GROUP, "beat", "breathes", "ends", "moves"})

Folder = Annotated[Path, typer.Option(help="The bundle's folder.")]
Checkpoint = Annotated[Path, typer.Option(help="Where training keeps its state; an existing one is resumed.")]


@app.command()
def train(
    folder: Folder = DEFAULT_FOLDER,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the corpus.")] = 1,
) -> None:
    """Make the whole bundle from nothing, and measure it: three and a half hours. Needs pip install 'tickrt[export]'.

    Encoder, decoder, planner and adapters keep their state beside the checkpoint; interrupted, it goes on there.
    """
    need_packages(*TRAINING)
    from configs.demo.recipe import train
    from configs.demo.recipe.adapter import STYLES
    from configs.demo.recipe.bundle_text import ENCODER_FILE
    from configs.demo.recipe.planner import commands

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if not checkpoint.with_name(ENCODER_FILE).exists():
        train_encoder(checkpoint, seed=seed)
    train.train(train.TrainConfig(seed=seed), checkpoint)
    export(folder, checkpoint)
    commands.train(folder, checkpoint.with_name("planner.pt"), seed)
    commands.export(folder, checkpoint.with_name("planner.pt"))
    (folder / "adapters").mkdir(exist_ok=True)
    for style in STYLES:
        if not (adapter := checkpoint.with_name(_adapter_file(style))).exists():
            train_adapter(style, checkpoint=checkpoint)
        shutil.copy(adapter, folder / "adapters" / adapter.name)
    evaluate(folder=folder, write=True)
    commands.evaluate(folder, write=True)


@app.command("train-encoder")
def train_encoder(
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    minutes: Annotated[float, typer.Option(help="Longest time to train, after the songs are played.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the songs.")] = 1,
) -> None:
    """Train the codec's encoder on the corpus; its weights lie beside the checkpoint. Needs torch."""
    need_packages("torch")
    from configs.demo.recipe.bundle_text import ENCODER_FILE
    from configs.demo.recipe.codec import encoder_training

    config = encoder_training.EncoderConfig(minutes=minutes, seed=seed)
    encoder_training.train_encoder(config, checkpoint.with_name(ENCODER_FILE))


@app.command()
def distill(
    folder: Folder = DEFAULT_FOLDER,
    checkpoint: Annotated[
        Path, typer.Option(help="Where it keeps its state; an existing one is resumed.")
    ] = DEFAULT_STUDENT,
    steps: Annotated[int, typer.Option(help="How long to train.", min=1)] = 6_000,
) -> None:
    """Distil the bundle's decoder into one that jumps, and put that in its place. Needs pip install 'tickrt[export]'.

    Two hours. A decoder that jumps already is its own teacher, by its velocities.
    """
    need_packages(*TRAINING)
    from configs.demo.recipe.bundle import export_student
    from configs.demo.recipe.distill import DistillConfig, distill

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    distill(DistillConfig(steps=steps), folder, checkpoint)
    export_student(checkpoint, folder)


@app.command("fit")
def fit_steps(
    steps: Annotated[list[int], typer.Argument(help="Numbers of steps, such as 7.", min=2)],
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Fit few steps to where many end, for [sampler] fitted in bundle.toml. Needs pip install 'tickrt[export]'.

    Eight minutes for each number.
    """
    need_packages(*TRAINING)
    from configs.demo.recipe.fit import fit

    fit(folder, steps, say=print_line)


@app.command("train-adapter")
def train_adapter(
    style: Annotated[str, typer.Argument(help="music box, or aggressive.")],
    file: Annotated[Path | None, typer.Option(help="The .safetensors file; by default beside the checkpoint.")] = None,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    steps: Annotated[int, typer.Option(help="How long to train.")] = 400,
) -> None:
    """Train a LoRA adapter of the decoder for songs in one style. Needs pip install 'tickrt[export]'."""
    need_packages(*TRAINING)
    from configs.demo.recipe import adapter

    if style not in adapter.STYLES:
        raise ConfigError(f"there is no style {style!r}", fix=f"one of {', '.join(adapter.STYLES)}")
    out = file or checkpoint.with_name(_adapter_file(style))
    adapter.train_style(style, checkpoint, out, adapter.AdapterConfig(steps=steps))


def _adapter_file(style: str) -> str:
    return f"{style.replace(' ', '-')}.safetensors"


@app.command()
def export(folder: Folder = DEFAULT_FOLDER, checkpoint: Checkpoint = DEFAULT_CHECKPOINT) -> None:
    """Export a checkpoint's averaged weights as the bundle. Needs pip install 'tickrt[export]'."""
    need_packages(*TRAINING)
    from configs.demo.recipe.bundle import export_bundle

    export_bundle(checkpoint, folder)


@app.command()
def evaluate(
    groups: Annotated[
        list[str] | None,
        typer.Argument(help=f"Any of {', '.join(GROUPS)}, or all. Default: {DEFAULT_GROUP}; most others need librosa."),
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    write: Annotated[bool, typer.Option(help="Write the figures into bundle.toml.")] = False,
    tables: Annotated[
        Path | None, typer.Option(help="A Markdown file for the figures and what is behind them.")
    ] = None,
) -> None:
    """Measure the bundle through the real tick loop, also on what people type. Needs no torch."""
    wanted = list(GROUPS) if groups == ["all"] else groups or [DEFAULT_GROUP]
    if unknown := sorted(set(wanted) - set(GROUPS)):
        raise ConfigError(f"there are no figures {', '.join(unknown)}", fix=f"any of {', '.join(GROUPS)}, or all")
    if set(wanted) - WITHOUT_LIBROSA:
        need_packages("librosa", "pretty_midi", extra="recipe")
    from configs.demo.recipe.bundle_text import rewrite_bundle_file
    from configs.demo.recipe.evaluation.player import open_player
    from configs.demo.recipe.evaluation.report import markdown

    with open_player(folder) as player:
        found = {
            group: import_module(f"configs.demo.recipe.evaluation.{GROUPS[group]}").measure(player) for group in wanted
        }
    figures = {name: value for measured in found.values() for name, value in measured.figures.items()}
    print_line(json.dumps(figures))
    if tables is not None:
        tables.write_text(markdown(found), encoding="utf-8")
    if write:
        rewrite_bundle_file(folder, evaluation=figures)


@app.command()
def schedules(
    steps: Annotated[list[int] | None, typer.Argument(help="First find times for these numbers of steps.")] = None,
    folder: Folder = DEFAULT_FOLDER,
    interval_end: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Where guidance ends in the compared interval, as 1 - t.")
    ] = 0.5,
    search_only: Annotated[bool, typer.Option(help="Find times, and compare nothing.")] = False,
) -> None:
    """Compare solvers, steps and guidance intervals with the converged solution: distances and onsets."""
    need_packages("librosa", extra="recipe")
    from configs.demo.recipe.evaluation import schedules
    from configs.demo.recipe.evaluation.player import open_player
    from configs.demo.recipe.evaluation.report import table

    with open_player(folder) as player:
        found = {}
        if steps:
            judge = schedules.Judge.of(player, schedules.SEARCH_SEEDS)
            for number in steps:
                asked = {"steps": number, "solver": "ab2", "cfg_interval_end": interval_end, "shift": judge.shift}
                found[number] = schedules.search(judge, asked, print_line)
                print_line(f"{number} = {found[number]}")
        if not search_only:
            judge = schedules.Judge.of(player, schedules.HELD_OUT_SEEDS)
            print_line(table(list(schedules.compared(judge, found, interval_end))))


@app.command()
def plot(
    folder: Folder = DEFAULT_FOLDER,
    out: Annotated[Path | None, typer.Option(help="The PNG; samples.png in the bundle's folder by default.")] = None,
    pieces: Annotated[
        Path | None, typer.Option(help="Instead: a folder for pictures of ten prompts, a song and 15 minutes live.")
    ] = None,
) -> None:
    """Draw spectrograms and piano rolls of prompts. Needs matplotlib."""
    need_packages("matplotlib", extra="recipe")
    from configs.demo.recipe.evaluation.player import open_player
    from configs.demo.recipe.evaluation.plot import plot, plot_pieces

    with open_player(folder) as player:
        if pieces is not None:
            for file in plot_pieces(player, pieces):
                print_line(str(file))
        else:
            plot(player, out or folder / "samples.png")


if __name__ == "__main__":
    app()
