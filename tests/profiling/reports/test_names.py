"""Names of a stranger's graph are data: every report of a profile takes any, and shows them as text."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.recorded_profiles import SHAPES, assert_adds_up, transformer_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, save
from rich.console import Console

from profiling.layers.origins import CLASSES, SCOPES, Origins, read_graph
from profiling.layers.timings import Profile, Wall, layer_timings
from profiling.layers.work import layer_works
from profiling.reports.chrome_trace import trace
from profiling.reports.diff import print_diff, read_saved
from profiling.reports.html import page
from profiling.reports.tables import grids, markdown, show
from profiling.reports.trtexec_json import layer_info, profile_records
from runtime.commands.tables import markdown_text
from runtime.engines.node_times import NodeTimes

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
    source = read_graph(tmp_path / "model.onnx")
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
    lines = markdown(profile, 9, 2).splitlines()
    tables = list(grids(profile, 9, 2))
    assert sum(line.startswith("| ") for line in lines) == sum(2 + len(grid.rows) for grid in tables)
    assert [line for line in lines if line.startswith("#")] == [f"### {markdown_text(grid.title)}" for grid in tables]
