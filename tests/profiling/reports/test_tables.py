"""Tables: sums, folded rows, and names without markup."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.recorded_profiles import FOREIGN_NODE, recorded
from rich.console import Console

from profiling.layers.roofline import EXCEEDED, Ceilings, Work
from profiling.layers.timings import LayerTiming, Profile, Wall
from profiling.reports.tables import MODULE_ROWS, contents_text, grids, markdown, show
from runtime.commands.tables import markdown_text


def shown(profile: Profile, width: int = 120, top: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(profile, top, 2, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def many(count: int) -> Profile:
    layers = [LayerTiming(f"l{i}", "Add", "pointwise", (1.0,), 1 / count, f"net.part{i}") for i in range(count)]
    return Profile("e", 1, tuple(layers), Wall((1.0,)))


@pytest.mark.parametrize("count", [3, MODULE_ROWS, MODULE_ROWS + 7])
def test_shown_and_folded_rows_add_up_to_the_sum(count: int) -> None:
    grid = next(grid for grid in grids(many(count), 5, 2) if grid.title == "by module")
    *rows, whole = grid.rows
    assert whole == ("sum", f"{count:.3f}", "100.0%", str(count))
    assert sum(int(row[3]) for row in rows) == count
    assert len(rows) <= MODULE_ROWS + 1


def test_names_are_text_not_markup(tmp_path: Path) -> None:
    profile = recorded("11", tmp_path)
    text = shown(profile, width=250)
    assert "_gemm_mha_v2 [profile 1]_myl11_6" in text
    assert f"{FOREIGN_NODE}: ForeignNode of Div, MatMul, Pow, ReduceMean, Sqrt" in text
    loud = replace(profile.layers[0], name="[red]a[/red] | b")
    assert "[red]a[/red] | b" in shown(replace(profile, layers=(loud,)), width=250)
    assert f"| {markdown_text(loud.name)}: Reformat |" in markdown(replace(profile, layers=(loud,)), 5, 2)


def test_numbers_stay_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path, Ceilings(1e12, 1e11, "given"))
    text = shown(profile, width=80)
    for layer in profile.layers:
        assert f"{layer.median_ms:.3f}" in text
        assert f"{layer.share:.1%}" in text


def test_long_names_are_cut_in_the_middle_and_rows_are_single_lines(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path, Ceilings(1e12, 1e11, "given"))
    named = replace(
        profile.layers[0], name="decoder.layers.3.attention.q_proj.matrix_multiply", runs_ms=(90.0,) * profile.runs
    )
    lines = shown(replace(profile, layers=(named, *profile.layers[1:])), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = (line for line in lines if line.startswith("decoder.") and "…" in line)
    assert "90.000" in row


def test_rows_rank_by_their_medians() -> None:
    slow_once = LayerTiming("slow once", "Add", "pointwise", (1.0, 1.0, 90.0), 0.25, "net.a")
    steady = LayerTiming("steady", "Add", "norm", (3.0, 3.0, 3.0), 0.75, "net.b")
    profile = Profile("e", 3, (slow_once, steady), Wall((1.0,)))
    tables = {grid.columns[0]: [row[0] for row in grid.rows] for grid in grids(profile, 5, 2)}
    assert tables["layer"] == ["steady: Add", "slow once: Add"]
    assert tables["kind"] == ["norm", "pointwise", "sum"]
    assert tables["module"] == ["b", "a", "sum"]


def test_shares_of_a_roof_above_one_are_explained(tmp_path: Path) -> None:
    slow, fast = (recorded("10", tmp_path, Ceilings(*peaks, "given")) for peaks in ((1e15, 1e15), (1e3, 1e3)))
    assert EXCEEDED not in markdown(slow, 100, 2)
    assert EXCEEDED in markdown(fast, 100, 2)


def test_markdown_has_the_same_rows(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    text = markdown(profile, 100, 2)
    assert all(f"| {markdown_text(f'{layer.name}: {layer.op_type}')}" in text for layer in profile.layers)
    assert "### blocks of decoder.layers, ms" in text
    heads = [line for line in text.splitlines() if line.startswith("| ---")]
    assert len(heads) == len(list(grids(profile, 100, 2)))


def test_contents_are_counted() -> None:
    layer = LayerTiming("a", "kgen", "norm", (1.0,), 1.0, contents=("Mul", "Div", "Mul"))
    assert contents_text(layer) == "Div, Mul 2"
    assert contents_text(replace(layer, contents=("Mul",))) == ""
    assert contents_text(replace(layer, contents=tuple("ABCDEFGHIJ"))).endswith(", ...")


def small() -> Profile:
    """Three layers: a product at 80 % of its roof in its fastest execute, a copy, and one whose work is not known."""
    layers = (
        LayerTiming("up", "MatMul", "gemm", (2.0, 4.0, 3.0), 0.6, "net.a", work=Work(3_200_000_000, 20_000_000)),
        LayerTiming(
            "turn", "kgen", "reformat", (1.0,) * 3, 0.2, "net.b", work=Work(0, 60_000), contents=("A", "B", "A")
        ),
        LayerTiming("odd", "Quux", "other", (1.0,) * 3, 0.2),
    )
    notes = ("a note",)
    return Profile("decoder", 3, layers, Wall((5.0, 6.0, 8.0)), ceilings=Ceilings(2e12, 6e10, "given"), notes=notes)


def test_a_report_has_these_cells() -> None:
    wall, kinds, _, slowest = grids(small(), 2, 2)
    assert (wall.title, [row[1] for row in wall.rows]) == (
        "decoder: 3 executes", ["6.000", "7.800", "5.000", "5.000", "1.000"]
    )  # fmt: skip
    assert wall.note.splitlines()[1:] == ["a note"]
    assert kinds.rows == (
        ("gemm", "3.000", "60.0%", "1"), ("reformat", "1.000", "20.0%", "1"), ("other", "1.000", "20.0%", "1"),
        ("sum", "5.000", "100.0%", "3"),
    )  # fmt: skip
    assert (slowest.title, slowest.num_text) == ("slowest 2 of 3 layers, medians; speeds of the fastest execute", 2)
    assert slowest.rows == (
        ("up: MatMul", "gemm", "3.000", "60.0%", "1600.0", "10.0", "compute", "80%"),
        ("turn: kgen of A 2, B", "reformat", "1.000", "20.0%", "0.0", "0.06", "memory", "0%"),
    )
    assert slowest.note == "roof: 2000.0 GFLOP/s, 60.0 GB/s (given)"
    without = list(grids(replace(small(), ceilings=None), 3, 2))[-1]
    assert without.columns == ("layer", "kind", "ms", "share", "GFLOP/s", "GB/s")
    assert (without.rows[2], without.note) == (("odd: Quux", "other", "1.000", "20.0%", "", ""), "")


def test_few_operators_are_all_named_and_more_are_cut() -> None:
    layer = LayerTiming("a", "kgen", "norm", (1.0,), 1.0, contents=tuple("ABCDEFGH"))
    assert contents_text(layer) == "A, B, C, D, E, F, G, H"
    assert contents_text(replace(layer, contents=tuple("ABCDEFGHI"))) == "A, B, C, D, E, F, G, H, ..."
