"""python -m configs.demo.recipe planner train | evaluate | export | picture."""

import json
from pathlib import Path
from typing import Annotated

import typer

from runtime.commands.command_line import CommandLine, need_packages
from runtime.commands.terminal import print_line

planner = CommandLine(
    help="Train, measure and export the planner of a bundle's structure codes. Training and export need torch."
)

Folder = Annotated[Path, typer.Option(help="The bundle's folder.")]
Checkpoint = Annotated[Path, typer.Option(help="Where training keeps its state; an existing one is resumed.")]
DEFAULT_FOLDER = Path("configs/demo")
DEFAULT_CHECKPOINT = Path("build/demo/planner.pt")


@planner.command()
def train(
    folder: Folder = DEFAULT_FOLDER,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the songs.")] = 1,
) -> None:
    """Train the planner on songs with form."""
    need_packages("torch")
    from configs.demo.recipe.planner import train

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    train.train(train.PlannerConfig(seed=seed), folder, checkpoint)


@planner.command()
def evaluate(
    folder: Folder = DEFAULT_FOLDER,
    write: Annotated[bool, typer.Option(help="Write the figures into bundle.toml.")] = False,
) -> None:
    """Measure songs of held-out prompts, with plans and without, through the real tick loop. Needs no torch."""
    from configs.demo.recipe.bundle_text import rewrite_bundle_file
    from configs.demo.recipe.evaluation.player import open_player
    from configs.demo.recipe.planner.evaluate import evaluate
    from configs.demo.recipe.planner.pages import StructureCodes

    with open_player(folder) as player:
        found = evaluate(player, StructureCodes(folder))
    figures = {f"plan_{name}": round(value, 4) for name, value in found.items()}
    print_line(json.dumps(figures))
    if write:
        rewrite_bundle_file(folder, evaluation=figures)


@planner.command()
def export(folder: Folder = DEFAULT_FOLDER, checkpoint: Checkpoint = DEFAULT_CHECKPOINT) -> None:
    """Write a checkpoint's graph and the prompts' tokenizer into the bundle, and [planner] into bundle.toml."""
    need_packages("torch")
    from configs.demo.recipe.planner.export import export_planner

    error = export_planner(checkpoint, folder)
    print_line(f"largest difference of a logit from torch: {error:.1e}")


@planner.command()
def picture(
    song: Annotated[Path, typer.Argument(help="A file that tickrt-generate wrote with --plan.")],
    out: Annotated[Path | None, typer.Option(help="The picture. Default: the file's name with .png.")] = None,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Draw a song's sections, the notes of its codes, and how alike its bars are. Needs matplotlib."""
    need_packages("matplotlib")
    from configs.demo.recipe.planner.pages import StructureCodes
    from configs.demo.recipe.planner.picture import draw_picture
    from runtime.audio.metadata import read_metadata

    made, file = read_metadata(song), out or song.with_suffix(".png")
    draw_picture(made.plan, StructureCodes(folder), file, str(made.options.get("prompt", "")))
    print_line(str(file))
