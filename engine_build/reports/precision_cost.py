"""python -m engine_build.reports.precision_cost: the error of a precision recipe on a deployment's decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from engine_build.graphs.graph_file import decoder_graph
from engine_build.precision.error import RecipeError, recipe_error
from engine_build.precision.node_rules import NODE_RULES
from engine_build.precision.quantization import Quantization
from engine_build.precision.recipe import RecipeName, without_kernel
from engine_build.precision.sample_states import decoder_sample_states
from engine_build.precision.sensitivity import BUDGET, quantization_for
from engine_build.reports.end_to_end import EndToEndComparison, compare_end_to_end
from runtime.commands.command_line import CommandLine, Config
from runtime.commands.progress import TaskProgress
from runtime.commands.terminal import Terminal, cells
from runtime.config.bundle import Bundle
from runtime.config.deployment import Target, load_deployment

PROMPTS = ("pads and arpeggios in E minor at 90 bpm", "techno drums, bass and lead", "slow piano in C major")

END_TO_END = "end to end: difference of mel spectra, and of latents over their standard deviation"

app = CommandLine(add_completion=False)


class RecipeOption(StrEnum):
    """The values of --recipe."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"


@app.command()
def precision(
    config: Config,
    recipe: Annotated[list[RecipeOption], typer.Option(help="The recipe; may be given twice to compare.")] = [  # noqa: B006
        RecipeOption.BF16
    ],
    target: Annotated[
        Target, typer.Option(help="Its missing kernels stay in fp32; int8 is another one on cpu.")
    ] = "tensorrt",
    nodes: Annotated[bool, typer.Option("--nodes", help="Also list every node with its rule.")] = False,
    end_to_end: Annotated[
        int, typer.Option("--end-to-end", "--play", min=0, help="Also compare this many whole generations.")
    ] = 0,
) -> None:
    """Show which nodes of a deployment's decoder run in which precision and why, and measure the error.

    Errors are against the float32 graph, over the states of a generation; what the CPU lacks is emulated on it.
    """
    console = Terminal(width=None if Terminal().is_terminal else 160)
    deployment = load_deployment(config)
    reports: list[list[Table | str]] = []
    with TaskProgress([1.0] * len(recipe) * (2 if end_to_end else 1)) as progress:
        for name in (option.value for option in recipe):
            with progress.task(name):
                bundle = deployment.loaded_bundle
                decided = quantization_for(target, name, bundle, decoder_graph(bundle))
                reports.append(_measure(bundle, name, target, nodes, decided))
            if end_to_end:
                with progress.task(f"{name}, whole generations"):
                    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(end_to_end)]
                    compared = compare_end_to_end(deployment, name, prompts, target=target, quantization=decided)
                    heads = ("prompt", "audio", "latents")
                    reports.append([_table(heads, end_to_end_rows(prompts, compared), END_TO_END)])
    for line in (line for report in reports for line in report):
        console.print(line)


def _measure(
    bundle: Bundle, recipe: RecipeName, target: str, every_node: bool, decided: Quantization | None
) -> list[Table | str]:
    graph = decoder_graph(bundle)
    feeds = list(decoder_sample_states(bundle, graph))
    found = recipe_error(graph, recipe, feeds, without=without_kernel(target, recipe), quantization=decided)
    lines: list[Table | str] = []
    if every_node:
        heads = ("node", "operator", "precision", "rule")
        rows = [(node.name, node.op_type, node.precision, node.rule) for node in found.nodes]
        lines.append(_table(heads, rows, f"{graph.label}: {recipe}"))
    lines.append(_table(("rule", "precision", "nodes", "work", "reason"), rule_rows(found), f"{recipe} on {target}"))
    if decided is not None:
        lines.append(_table(("not in 8 bits", "rms error alone", "work"), kept_rows(decided), "decided by sensitivity"))
        lines.append(
            f"{len(decided.products)} products in 8 bits, {decided.predicted:.2%} of {BUDGET:.0%} rms predicted"
        )
    times = [float(feed[bundle.decoder.inputs.time][0]) for feed in feeds]
    lines.append(_table(("t", "max error", "rms error"), error_rows(times, found), "against float32, step by step"))
    low = f"{found.low_work:.2%} of the work in {recipe}"
    lines.append(f"{low}; worst error {max(found.max_rel):.2e} of the largest output, {max(found.rms_rel):.2e} rms")
    return lines


def rule_rows(found: RecipeError) -> list[tuple[str, ...]]:
    """One row per rule that has nodes: precision, number of nodes, share of the work, reason."""
    work, count, precisions = Counter[str](), Counter[str](), dict[str, str]()
    for node in found.nodes:
        count[node.rule] += 1
        precisions[node.rule] = node.precision
        work[node.rule] += found.flops.get(node.name, 0)
    total = max(work.total(), 1)
    return [
        (name, precisions[name], str(count[name]), f"{work[name] / total:.2%}" if work[name] else "", rule.reason)
        for name, rule in NODE_RULES.items()
        if name in count
    ]


def kept_rows(decided: Quantization) -> list[tuple[str, ...]]:
    """One row per product with weights that is not in 8 bits: its error if it alone were, its share of their work."""
    return [(name, f"{error:.2e}", f"{decided.work[name]:.2%}") for name, error in decided.kept.items()]


def error_rows(times: Iterable[float], found: RecipeError) -> list[tuple[str, ...]]:
    """One row per flow time: largest error over the largest output, and the ratio of their root mean squares."""
    figures = zip(times, found.max_rel, found.rms_rel, strict=True)
    return [(f"{t:.3f}", f"{largest:.2e}", f"{rms:.2e}") for t, largest, rms in figures]


def end_to_end_rows(prompts: Sequence[str], found: EndToEndComparison) -> list[tuple[str, ...]]:
    """One row per generation: prompt, difference of mel spectra ("" without audio) and of latents."""
    sound = [f"{distance:.2f} dB" for distance in found.mel_db] or [""] * len(prompts)
    return [(*row, f"{error:.2e}") for *row, error in zip(prompts, sound, found.rms_rel, strict=True)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> Table:
    table = Table(*heads, title=title, title_justify="left", header_style="bold", box=None)
    for row in rows:
        table.add_row(*cells(*row))
    return table


if __name__ == "__main__":
    app(prog_name="python -m engine_build.reports.precision_cost")
