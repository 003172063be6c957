"""python -m profiling.gpu_check: what only a GPU can show, in ten minutes, in one folder; `make gpu-check`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from profiling.gpu_check.figures import (
    TABLES,
    Summary,
    put_tables,
    read_json,
    read_summary,
    show_times,
    step_figures,
    wide_terminal,
)
from profiling.gpu_check.prepare import (
    EXPORT_PACKAGES,
    LAYERS,
    PART_BYTES,
    PREPARED,
    export_all,
    is_exported,
    pack,
    read_machine,
)
from profiling.gpu_check.running import ROOT, CheckOutcome, run_steps
from profiling.gpu_check.steps import check_steps, write_deployments
from profiling.output import write_json
from profiling.provenance import this_commit
from runtime.base.errors import ConfigError, EngineError, TickError
from runtime.commands.command_line import CommandLine, DefaultCommandGroup, need_packages
from runtime.commands.terminal import EXIT_OVER_LIMIT, Terminal, print_error, print_line, shown_path
from runtime.devices.cuda_calls import Gpu, probe

MINUTES = 10.0
DOCUMENTS = (ROOT / "README.md", ROOT / "profiling" / "README.md")
RESULTS, SOURCE = Path("build/gpu-check"), Path("build/gpu-check-source")

app = CommandLine(cls=DefaultCommandGroup)


@app.callback()
def gpu_check() -> None:
    """What only a GPU can show, in ten minutes. Before, without one: prepare. Behind it: table."""


@app.command("run")
def run_check(
    out: Annotated[Path, typer.Option(help="The folder of results.")] = RESULTS,
    source: Annotated[Path, typer.Option(help="The folder with what was prepared.")] = SOURCE,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Steps end after this time; with more than ten each has more.")
    ] = MINUTES,
    only: Annotated[str, typer.Option(help="Names of steps, with commas between them. Default: all.")] = "",
) -> None:
    """Print the minutes of all steps, run them; print the figures against their limits.

    A step ends at its limit, later by what those before it have left. summary.json and summary.txt are complete after
    each.
    """
    folder, console = out.resolve(), wide_terminal()
    folder.mkdir(parents=True, exist_ok=True)
    write_deployments(folder, source.resolve())
    every = check_steps(folder, source.resolve(), _gpu())
    wanted = {name for name in only.split(",") if name}
    if unknown := sorted(wanted - {step.name for step in every}):
        raise ConfigError(f"there is no step {unknown[0]}", fix=", ".join(step.name for step in every))
    slower = max(1.0, minutes / MINUTES)
    steps = [replace(each, limit_s=each.limit_s * slower) for each in every if not wanted or each.name in wanted]
    show_times(steps, console)
    summary = Summary({"commit": _commit(source), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}, [], [])
    by_name, is_saved = {step.name: step for step in steps}, True
    for outcome in run_steps(steps, folder, minutes):
        step = by_name[outcome.name]
        if outcome.status == "done":
            try:
                summary.figures += step_figures(step)
                if step.kind == "card":
                    summary.about["card"] = read_json(step.result)
            except TickError as error:
                outcome = CheckOutcome(outcome.name, "failed", outcome.seconds, error.what)
        summary.outcomes.append(outcome)
        note = f": {outcome.note}" if outcome.status != "done" else ""
        print_line(f"{outcome.name}: {outcome.status}, {outcome.seconds:.0f} s of {step.limit_s:.0f}{note}", console)
        is_saved = _save(summary, folder)
    summary.show(console)
    if not summary.is_good or not is_saved:
        raise typer.Exit(EXIT_OVER_LIMIT)


@app.command("prepare")
def prepare_check(
    source: Annotated[Path, typer.Option(help="The folder to fill.")] = SOURCE,
    out: Annotated[
        Path | None, typer.Option(help="Put all that a machine without a network needs into parts in this folder.")
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(help="What `python unpack.py describe` prints there. Default: Python 3.12 on x86-64, no package."),
    ] = None,
    part_mb: Annotated[float, typer.Option(min=0.1, help="With --out: megabytes of a part.")] = PART_BYTES / 1e6,
    wheels: Annotated[bool, typer.Option(help="With --out: with the packages that the machine lacks.")] = True,
    layers: Annotated[int, typer.Option(min=1, max=LAYERS, help="Of the whole decoder; fewer for a trial.")] = LAYERS,
) -> None:
    """Export what the steps build, with random weights. Needs no GPU; needs pip install 'tickrt[export]'.

    Interrupted, the same command goes on. With --out, weights are not carried but drawn again by unpack.py.
    """
    found = read_machine(machine)
    if not is_exported(source):
        need_packages(*EXPORT_PACKAGES, extra="export")
    export_all(source.resolve(), layers)
    write_json(source / PREPARED, {"commit": this_commit()})
    if out is None:
        print_line(f"{shown_path(source)} is complete: python -m profiling.gpu_check --source {shown_path(source)}")
        return
    part_bytes = round(1e6 * part_mb)
    for missing in pack(
        source.resolve(), out.resolve(), found, this_commit(), has_wheels=wheels, part_bytes=part_bytes
    ):
        print_line(f"not in the parts: {missing}")
    print_line(f"{shown_path(out)} is complete. There: python unpack.py PARTS DEST")


@app.command()
def table(
    summary: Annotated[Path, typer.Argument(help="A summary.json.")] = RESULTS / "summary.json",
    document: Annotated[
        list[Path] | None,
        typer.Option(help="A document with marks where a table belongs. Default: both that have some.", metavar="PATH"),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print them, and leave the documents as they are.")] = False,
) -> None:
    """Put the figures of a summary into documents, as Markdown, with card, versions, commit and date.

    Between the marks `brief` is what one asks first, between the marks `figures` all of it.
    """
    found = read_summary(summary)
    for path in () if show else document or DOCUMENTS:
        put_tables(path, found)
        print_line(f"{path} has the figures of {summary}")
    for make in TABLES.values() if show else ():
        Terminal().out(make(found), highlight=False)


def _save(summary: Summary, folder: Path) -> bool:
    try:
        summary.save(folder)
    except OSError as error:
        print_error(f"the summary cannot be written: {error}", "free disk space there; steps go on, and are printed")
        return False
    return True


def _gpu() -> Gpu | None:
    try:
        return probe()
    except EngineError:
        return None


def _commit(source: Path) -> Any:
    """The commit of the code; where there is no repository, that which was prepared."""
    path = source / PREPARED
    return this_commit() or (read_json(path)["commit"] if path.is_file() else None)


def main() -> None:
    """Entry point of python -m profiling.gpu_check."""
    app(prog_name="python -m profiling.gpu_check")


if __name__ == "__main__":
    main()
