"""python -m engine_build.demo_model planner train | evaluate."""

import json
from pathlib import Path
from typing import Annotated

import typer

from runtime.command_line import CommandLine, need_packages
from runtime.terminal import print_line

planner = CommandLine(help="Train and measure the planner on the codes of a bundle's structure graphs. Needs torch.")

Folder = Annotated[Path, typer.Option(help="The bundle's folder.")]
Checkpoint = Annotated[Path, typer.Option(help="Where training keeps its state; an existing one is resumed.")]
DEFAULT_FOLDER = Path("configs/demo")
DEFAULT_CHECKPOINT = Path("build/demo_model/planner.pt")


@planner.command()
def train(
    folder: Folder = DEFAULT_FOLDER,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    minutes: Annotated[float, typer.Option(help="Time to train; the learning rate decays to fit.")] = 90.0,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the songs.")] = 1,
) -> None:
    """Train the planner on songs with form."""
    need_packages("torch")
    from engine_build.demo_model.planner import train

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    train.train(train.PlannerConfig(minutes=minutes, seed=seed), folder, checkpoint)


@planner.command()
def evaluate(folder: Folder = DEFAULT_FOLDER, checkpoint: Checkpoint = DEFAULT_CHECKPOINT) -> None:
    """Measure plans and codes of held-out prompts, with the corpus as ceiling and shuffled plans as control."""
    need_packages("torch")
    from engine_build.demo_model.planner.evaluate import evaluate
    from engine_build.demo_model.planner.pages import StructureCodes
    from engine_build.demo_model.planner.train import PlannerConfig, PlannerTrainer

    trainer = PlannerTrainer(PlannerConfig())
    trainer.load(checkpoint)
    figures = evaluate(trainer.model.eval(), StructureCodes(folder))
    print_line(json.dumps({name: round(value, 4) for name, value in figures.items()}))
