"""The command behind `python -m engine_build.reports.precision_cost`: what a recipe does to a deployment's decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from engine_build.graphs.graph_file import read_graph
from engine_build.precision.error import RecipeError, recipe_error
from engine_build.precision.node_rules import PARTS
from engine_build.precision.recipe import RecipeName, without_kernel
from engine_build.precision.sample_states import decoder_feeds
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.terminal import EXIT_STATUS_HELP, exit_on_error

PLAYED_PROMPTS = ("pads and arpeggios in E minor at 90 bpm", "techno drums, bass and lead", "slow piano in C major")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Choice(StrEnum):
    """The choices of --recipe."""

    FP16 = "fp16"
    BF16 = "bf16"


class TargetChoice(StrEnum):
    """The choices of --target."""

    CUDA = "cuda"
    TENSORRT = "tensorrt"


@app.command(epilog=EXIT_STATUS_HELP)
def precision(
    config: Annotated[Path, typer.Argument(help="The deployment file, such as configs/demo.toml.")],
    recipe: Annotated[list[Choice], typer.Option(help="The recipe; give it twice to compare.")] = [Choice.BF16],  # noqa: B006
    target: Annotated[TargetChoice, typer.Option(help="Whose missing kernels stay in fp32.")] = TargetChoice.TENSORRT,
    nodes: Annotated[bool, typer.Option("--nodes", help="Every node, with its reason.")] = False,
    play: Annotated[int, typer.Option(min=0, help="Generate this many whole pieces in both precisions, too.")] = 0,
) -> None:
    """Say which parts of a deployment's decoder run in which precision and why, and measure what it costs.

    Errors are against the float32 graph, along a generation that the decoder makes itself; 16-bit arithmetic is
    emulated on the CPU.
    """
    console = Console(width=None if Console().is_terminal else 160)
    with exit_on_error():
        deployment = load_deployment(config)
        for choice in recipe:
            _report(console, deployment, choice.value, target.value, nodes)
            if play:
                _play(console, deployment, choice.value, play)


def _report(console: Console, deployment: Deployment, recipe: RecipeName, target: str, every_node: bool) -> None:
    bundle = load_bundle(deployment.bundle)
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    feeds = list(decoder_feeds(bundle, graph))
    found = recipe_error(graph, recipe, feeds, without=without_kernel(target, recipe))
    if every_node:
        heads = ("node", "operator", "precision", "part")
        rows = [(node.name, node.op_type, node.precision, node.part) for node in found.nodes]
        console.print(_table(heads, rows, f"{graph.label}: {recipe}"))
    console.print(_table(("part", "precision", "nodes", "work", "why"), part_rows(found), f"{recipe} on {target}"))
    times = [float(feed[bundle.decoder.inputs.time][0]) for feed in feeds]
    console.print(_table(("t", "max error", "rms error"), error_rows(times, found), "against float32, step by step"))
    low = f"{found.low_work:.2%} of the work in {recipe}"
    console.print(f"{low}; worst error {max(found.max_rel):.2e} of the largest output, {max(found.rms_rel):.2e} rms")


def part_rows(found: RecipeError) -> list[tuple[str, ...]]:
    """One row per part that has nodes: its precision, nodes, share of the work, and the reason."""
    work, count, precisions = Counter[str](), Counter[str](), dict[str, str]()
    for node in found.nodes:
        count[node.part] += 1
        precisions[node.part] = node.precision
        work[node.part] += found.flops.get(node.name, 0)
    total = max(work.total(), 1)
    return [
        (part, precisions[part], str(count[part]), f"{work[part] / total:.2%}" if work[part] else "", why)
        for part, (_, why) in PARTS.items()
        if part in count
    ]


def error_rows(times: Iterable[float], found: RecipeError) -> list[tuple[str, ...]]:
    """One row per flow time: largest error over the largest output, and the same of root mean squares."""
    figures = zip(times, found.max_rel, found.rms_rel, strict=True)
    return [(f"{t:.3f}", f"{largest:.2e}", f"{rms:.2e}") for t, largest, rms in figures]


def _play(console: Console, deployment: Deployment, recipe: RecipeName, count: int) -> None:
    from engine_build.reports.end_to_end import play_both

    prompts = [PLAYED_PROMPTS[index % len(PLAYED_PROMPTS)] for index in range(count)]
    played = play_both(deployment, recipe, prompts)
    rows = [(prompt, f"{error:.2e}") for prompt, error in zip(prompts, played.rms_rel, strict=True)]
    console.print(_table(("prompt", "rms difference"), rows, "whole generations, over the latents' own variation"))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> Table:
    table = Table(*heads, title=title, title_justify="left", header_style="bold", box=None)
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    app(prog_name="python -m engine_build.reports.precision_cost")
