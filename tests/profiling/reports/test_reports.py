"""Profiles as tables, as pages and as files of trtexec's and Chrome's."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.recorded_profiles import (
    FOLDER,
    FOREIGN_NODE,
    RUNS,
    SHAPES,
    VERSIONS,
    assert_adds_up,
    recorded,
    recorded_rows,
    transformer_model,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, save
from rich.console import Console

from profiling.layers.origins import CLASSES, SCOPES, Origins, read_origin_graph
from profiling.layers.rollups import UNKNOWN_MODULE, WHOLE_MODEL
from profiling.layers.timings import LayerTiming, Profile, Wall, layer_timings
from profiling.layers.work import EXCEEDED, Ceilings, LayerWork, layer_works
from profiling.output import write_json
from profiling.reports.diff import print_diff, read_saved
from profiling.reports.html import content, page
from profiling.reports.json_files import (
    BLOCKS,
    EXECUTES,
    EXTRA_KEY,
    LAYERS,
    ROUND_SAMPLES,
    layer_info,
    profile_records,
    read_records,
    stored_rounds,
    trace,
)
from profiling.reports.tables import MODULE_ROWS, contents_text, profile_markdown, show, text_tables
from runtime.base.errors import ConfigError
from runtime.commands.terminal import markdown_text
from runtime.engines.node_times import NodeTimes


def shown(profile: Profile, width: int = 120, top: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(profile, top, 2, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def many(count: int) -> Profile:
    layers = [LayerTiming(f"l{i}", "Add", "pointwise", (1.0,), 1 / count, f"net.part{i}") for i in range(count)]
    return Profile("e", 1, tuple(layers), Wall((1.0,)))


@pytest.mark.parametrize("count", [3, MODULE_ROWS, MODULE_ROWS + 7])
def test_shown_and_folded_rows_add_up_to_the_sum(count: int) -> None:
    grid = next(grid for grid in text_tables(many(count), 5, 2) if grid.title == "by module")
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
    assert f"| {markdown_text(loud.name)}: Reformat |" in profile_markdown(replace(profile, layers=(loud,)), 5, 2)


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
    tables = {grid.columns[0]: [row[0] for row in grid.rows] for grid in text_tables(profile, 5, 2)}
    assert tables["layer"] == ["steady: Add", "slow once: Add"]
    assert tables["kind"] == ["norm", "pointwise", "sum"]
    assert tables["module"] == ["b", "a", "sum"]


def test_shares_of_a_roof_above_one_are_explained(tmp_path: Path) -> None:
    slow, fast = (recorded("10", tmp_path, Ceilings(*peaks, "given")) for peaks in ((1e15, 1e15), (1e3, 1e3)))
    assert EXCEEDED not in profile_markdown(slow, 100, 2)
    assert EXCEEDED in profile_markdown(fast, 100, 2)


def test_markdown_has_the_same_rows(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    text = profile_markdown(profile, 100, 2)
    assert all(f"| {markdown_text(f'{layer.name}: {layer.op_type}')}" in text for layer in profile.layers)
    assert "### blocks of decoder.layers, ms" in text
    heads = [line for line in text.splitlines() if line.startswith("| ---")]
    assert len(heads) == len(list(text_tables(profile, 100, 2)))


@pytest.mark.parametrize(
    ("contents", "text"),
    [(("Mul", "Div", "Mul"), "Div, Mul 2"), (("Mul",), ""), ("ABCDEFGH", "A, B, C, D, E, F, G, H"),
     ("ABCDEFGHI", "A, B, C, D, E, F, G, H, ...")],
)  # fmt: skip
def test_operators_are_counted_and_more_than_a_few_are_cut(contents: Sequence[str], text: str) -> None:
    layer = LayerTiming("a", "kgen", "norm", (1.0,), 1.0, contents=tuple(contents))
    assert contents_text(layer) == text


def small() -> Profile:
    """Three layers: a product at 80 % of its roof in its fastest execute, a copy, and one whose work is not known."""
    layers = (
        LayerTiming("up", "MatMul", "gemm", (2.0, 4.0, 3.0), 0.6, "net.a", work=LayerWork(3_200_000_000, 20_000_000)),
        LayerTiming(
            "turn", "kgen", "reformat", (1.0,) * 3, 0.2, "net.b", work=LayerWork(0, 60_000), contents=("A", "B", "A")
        ),
        LayerTiming("odd", "Quux", "other", (1.0,) * 3, 0.2),
    )
    notes = ("a note",)
    return Profile("decoder", 3, layers, Wall((5.0, 6.0, 8.0)), ceilings=Ceilings(2e12, 6e10, "given"), notes=notes)


def test_a_report_has_these_cells() -> None:
    wall, kinds, _, slowest = text_tables(small(), 2, 2)
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
    without = list(text_tables(replace(small(), ceilings=None), 3, 2))[-1]
    assert without.columns == ("layer", "kind", "ms", "share", "GFLOP/s", "GB/s")
    assert (without.rows[2], without.note) == (("odd: Quux", "other", "1.000", "20.0%", "", ""), "")


NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def data_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_page_contains_its_data(version: str, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path, Ceilings(1e12, 1e11, "given"))
    text = page(profile, 2)
    assert data_of(text) == json.loads(json.dumps(content(profile, 2)))
    assert "@" not in re.sub(r"@media", "", text.split('id="data"')[0])


def test_every_layer_belongs_to_a_module_row(tmp_path: Path) -> None:
    held = content(recorded("10", tmp_path), 2)
    sums: dict[str, float] = {}
    for layer in held["layers"]:
        sums[layer["group"]] = sums.get(layer["group"], 0.0) + layer["ms"]
    assert sums == pytest.approx({row["name"]: row["ms"] for row in held["modules"]})
    assert {layer["kind"] for layer in held["layers"]} <= set(held["order"])


def test_nothing_is_loaded(tmp_path: Path) -> None:
    text = page(recorded("10", tmp_path), 2)
    reader = Tags()
    reader.feed(text)
    links = [attrs.get(name) for _, attrs in reader.tags for name in ("src", "href") if attrs.get(name)]
    assert links == ["data:,"]
    assert "default-src 'none'" in text
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|\bimport\(", text)
    assert not [url for url in re.findall(r"https?://[^'\" ]+", text) if url != "http://www.w3.org/2000/svg"]


def test_a_name_cannot_end_the_data(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    nasty = replace(profile, engine=NASTY, layers=(replace(profile.layers[0], name=NASTY, module=NASTY),))
    text = page(nasty, 2)
    reader = Tags()
    reader.feed(text)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in reader.tags]
    assert data_of(text)["layers"][0]["name"] == NASTY  # type: ignore[index]


def test_the_data_is_in_the_units_that_the_page_shows(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path, Ceilings(1e12, 1e11, "given"))
    about = {
        "target": "cpu", "machine": {"cpu": "a CPU", "gpu": "a card"}, "versions": {"x": "1", "y": "2"},
        "engine_sha256": "0123456789abcdef", "shapes": {"x": [2, 8], "t": [2]}, "commit": None,
    }  # fmt: skip
    held = content(replace(profile, about=about), 2)
    assert dict(held["about"]) == {
        "target": "cpu", "machine": "a CPU a card", "versions": "x 1, y 2", "engine": "0123456789ab",
        "shapes": "x 2x8, t 2",
    }  # fmt: skip
    assert (held["wall"], held["gap"][0]) == ([profile.wall.p50_ms, profile.wall.p95_ms], profile.gap_ms)
    for shown, layer in zip(held["layers"], profile.layers, strict=True):
        assert (shown["ms"], shown["mean"], shown["share"]) == (layer.median_ms, layer.average_ms, layer.share)
        if layer.work is not None and layer.work.flops and layer.median_ms:
            assert shown["gflops"] == pytest.approx(layer.work.flops / layer.median_ms / 1e6)
            assert shown["gbs"] == pytest.approx(layer.work.bytes / layer.median_ms / 1e6)
            seconds = max(layer.work.flops / 1e12, layer.work.bytes / 1e11)
            assert shown["roof"] == pytest.approx(1e3 * seconds / layer.median_ms)
    assert held["ceilings"][:2] == [1e12, 1e11]
    assert sum(shown["flops"] is None for shown in held["layers"]) == sum(x.work is None for x in profile.layers)


FIELDS = ["name", "timeMs", "averageMs", "medianMs", "percentage"]


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_have_trtexec_fields(version: str, tmp_path: Path) -> None:
    head, *rows = profile_records(recorded(version, tmp_path))
    _, *expected = recorded_rows(version)
    assert head["count"] == RUNS
    # Readers tell rows by their number of fields: four or five.
    assert all(list(row) == FIELDS for row in rows)
    assert len(head) not in (4, 5)
    for row, wanted in zip(rows, expected, strict=True):
        assert row["name"] == wanted["name"]
        assert row["timeMs"] == pytest.approx(wanted["timeMs"], abs=1e-5)
        assert row["percentage"] == pytest.approx(wanted["percentage"], abs=1e-3)


@pytest.mark.parametrize("version", VERSIONS)
def test_layer_info_keeps_tensorrt_records(version: str, tmp_path: Path) -> None:
    info = layer_info(recorded(version, tmp_path))
    theirs = json.loads((FOLDER / f"layers_{version}.json").read_text())
    assert info["Layers"] == theirs["Layers"]
    assert set(info) == set(theirs)
    inputs = {"10": ["x"], "11": [{"Name": "x", "IOMode": "Input", "Dimensions": [2, 8, 16]}]}
    assert info["Bindings" if version == "10" else "I/O Tensors"] == inputs[version]


def test_layer_info_of_onnxruntime_has_the_same_fields() -> None:
    facts = {
        "provider": "CPUExecutionProvider",
        "input_type_shape": [{"float": [2, 4]}],
        "output_type_shape": [{"float": [2]}],
    }
    layer = LayerTiming("sum", "ReduceSum", "reduction", (1.0,), 1.0, nodes=("a", "b"), facts=facts)
    (record,) = layer_info(Profile("e", 1, (layer,), Wall((1.0,))))["Layers"]
    assert (record["Name"], record["LayerType"], record["TacticName"]) == ("sum", "ReduceSum", "CPUExecutionProvider")
    assert record["Inputs"] == [{"Name": "sum:in0", "Dimensions": [2, 4], "Format/Datatype": "float"}]
    assert record["Metadata"] == "[ONNX Layer: a]\x1e[ONNX Layer: b]"


def test_extra_properties_are_read_back(tmp_path: Path) -> None:
    profile = recorded("11", tmp_path, Ceilings(1e11, 1e12, "given"))
    write_json(tmp_path / "p.json", profile_records(profile))
    count, extras, rows = read_records(tmp_path / "p.json")
    assert (count, len(rows)) == (RUNS, len(profile.layers))
    assert [row["kind"] for row in extras["layers"]] == [layer.kind for layer in profile.layers]
    assert [row["module"] for row in extras["layers"]] == [layer.module for layer in profile.layers]
    assert extras["wall_p50_ms"] == profile.wall.p50_ms
    assert extras["layer_sum_p50_ms"] + extras["gap_ms"] == pytest.approx(extras["wall_p50_ms"])
    assert any(row["bound"] == "compute" for row in extras["layers"])


def test_times_of_rounds_are_stored_and_bounded(tmp_path: Path) -> None:
    assert stored_rounds((1.0, 2.0, 3.0), (2, 1)) == [[1.0, 2.0], [3.0]]
    assert stored_rounds((1.0,), ()) == []
    profile = replace(recorded("10", tmp_path), rounds=(RUNS,))
    stored = profile_records(profile)[0][EXTRA_KEY]["layers"][0]["rounds_ms"]
    assert [len(times) for times in stored] == [ROUND_SAMPLES]


@pytest.mark.parametrize("change", [{"schema": 2}, {"layers": []}])
def test_another_schema_or_a_truncated_profile_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    records = profile_records(recorded("10", tmp_path))
    assert set(records[0]) == {"count", EXTRA_KEY}
    records[0][EXTRA_KEY] |= change
    write_json(tmp_path / "p.json", records)
    with pytest.raises(ConfigError, match=r"is not a profile[\s\S]*schema"):
        read_records(tmp_path / "p.json")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("thread", [LAYERS, BLOCKS, EXECUTES])
def test_every_thread_is_as_long_as_all_executes(version: str, thread: int, tmp_path: Path) -> None:
    profile = recorded(version, tmp_path)
    events = [event for event in trace(profile)["traceEvents"] if event["ph"] == "X" and event["tid"] == thread]
    assert sum(event["dur"] for event in events) == pytest.approx(profile.layer_sum_ms * RUNS * 1e3, rel=1e-4)
    for before, after in pairwise(events):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.1)


def test_threads_and_layers_are_named(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    found = json.loads(json.dumps(trace(profile)))
    threads = {event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert threads == {"executes", "blocks", "layers"}
    layers = [event for event in found["traceEvents"] if event["tid"] == LAYERS and event["ph"] == "X"]
    assert [event["name"] for event in layers] == [layer.name for layer in profile.layers] * RUNS
    assert layers[2]["args"]["flops"] > 0
    blocks = [event["name"] for event in found["traceEvents"] if event["tid"] == BLOCKS and event["ph"] == "X"]
    assert {"decoder.layers.0", "decoder.layers.1", "(not attributable)"} <= set(blocks)


def test_blocks_are_numbered_ones_or_the_names_of_modules(tmp_path: Path) -> None:
    profile = recorded("10", tmp_path)
    modules = ("decoder.layers.3.mlp.up", "decoder.norm", "", None)
    layers = tuple(replace(profile.layers[0], module=module) for module in modules)
    events = trace(replace(profile, layers=layers))["traceEvents"]
    blocks = [event["name"] for event in events if event["tid"] == BLOCKS and event["ph"] == "X"]
    assert blocks == ["decoder.layers.3", "norm", WHOLE_MODEL, UNKNOWN_MODULE] * RUNS


PARTS = ["blocks", "3", "٣", "9" * 5000, "[0]", "class", "None", "__proto__", "a b", "it's", '"', "`|`", "<b>", "\\"]
PARTS += ["", "\n", "\x1b[2J", "ünï", "]", "[ONNX Layer: ", "@DATA@", "{}", "%s", "(", "*", "x" * 3000, "\\N", "'"]
PATHS = st.lists(st.sampled_from(PARTS), max_size=4).map(".".join)
TEXTS = st.one_of(
    st.lists(PATHS, max_size=4).map(repr), st.lists(PATHS, max_size=3).map("/".join), PATHS, st.text(max_size=9)
)


def named(names: list[str], texts: list[str]) -> ModelProto:
    """The transformer with these names of nodes and texts of their exporter, in turn."""
    model = transformer_model()
    for index, node in enumerate(model.graph.node):
        node.name = names[index % len(names)]
        del node.metadata_props[:]
        for key in (SCOPES, CLASSES, "namespace")[index % 4 :]:
            entry = node.metadata_props.add()
            entry.key, entry.value = key, texts[index % len(texts)].encode("utf-8", "replace").decode()
    return model


@given(names=st.lists(PATHS, min_size=1, max_size=5), texts=st.lists(TEXTS, min_size=1, max_size=5))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_report_takes_any_name(names: list[str], texts: list[str], tmp_path: Path) -> None:
    save(named(names, texts), tmp_path / "model.onnx")
    source = read_origin_graph(tmp_path / "model.onnx")
    nodes = [NodeTimes(node.name, node.op_type, (1.0, 2.0)) for node in source.nodes]
    origins = Origins(source)
    layers = layer_timings(nodes, origins, layer_works(nodes, origins, SHAPES))
    profile = Profile("decoder", 2, layers, Wall((1.0, 2.0)), rounds=(1, 1))
    assert_adds_up(profile)
    _check_texts(profile, tmp_path)


def _check_texts(profile: Profile, folder: Path) -> None:
    saved = folder / "profile.json"
    saved.write_text(json.dumps(profile_records(profile)), encoding="utf-8")
    (folder / "page.html").write_text(page(profile, 2), encoding="utf-8")
    json.dumps([layer_info(profile), trace(profile)])
    with (folder / "out.txt").open("w+", encoding="utf-8") as file:
        show(profile, 9, 2, Console(file=file, width=100))
        print_diff(read_saved(saved), read_saved(saved), 9, None, Console(file=file, width=100))
        file.seek(0)
        assert all(line.rstrip("\n").isprintable() for line in file)
    lines = profile_markdown(profile, 9, 2).splitlines()
    tables = list(text_tables(profile, 9, 2))
    assert sum(line.startswith("| ") for line in lines) == sum(2 + len(grid.rows) for grid in tables)
    assert [line for line in lines if line.startswith("#")] == [f"### {markdown_text(grid.title)}" for grid in tables]
