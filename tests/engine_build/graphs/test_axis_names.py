"""Names of axes: those that contradict the tensors' roles are replaced, all others stay."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.factories import tiny_bundle, tiny_deployment
from helpers.paths import DEMO

from engine_build.graphs.graph_file import (
    Graph,
    decoder_graph,
    graph_of,
    load_model,
    messages_of,
    read_graph,
    with_axis_names,
)
from engine_build.graphs.reference_session import exact_session
from engine_build.new_bundle.probe import frame_counts
from engine_build.new_bundle.roles import decoder_roles
from engine_build.request import load_request
from engine_build.specs import engine_specs as module
from engine_build.specs.engine_specs import engine_specs

LETTERS = {"x": "RTC", "time": "R", "tokens": "RLC", "y": "RTC"}


def renamed(path: Path, name: str, **how: Any) -> Path:
    """The graph in a file, with every axis that has a name called so, those of values within too. how: see save."""
    model = onnx.load(path)
    for dimension in messages_of(model, onnx.TensorShapeProto.Dimension):
        if dimension.dim_param:
            dimension.dim_param = name
    onnx.save(model, path, **how)
    return path


def test_one_name_for_all_axes_is_replaced_and_onnx_runtime_runs_the_graph(tmp_path: Path) -> None:
    """With the names as they are it takes memory of one tensor for another one, of another size."""
    demo = load_request(DEMO)
    source = demo.bundle.graph_path(demo.bundle.decoder.graph)
    path = Path(shutil.copy(source, tmp_path))
    external = {"save_as_external_data": True, "location": "decoder.onnx.data", "size_threshold": 1024}
    graph = read_graph(renamed(path, "n", **external))
    found = decoder_graph(demo.bundle.model_copy(update={"folder": tmp_path}))
    assert {info.name: info.shape for info in found.inputs}["encoder_hidden_states"][:2] == ("R", "L")
    assert (found.label, found.sha256 == graph.sha256) == (str(path), False)
    sizes, random = {"R": 3, "T": 34, "L": 16}, np.random.default_rng(0)
    feeds: dict[str, Any] = {
        info.name: random.uniform(0.1, 1, [sizes.get(str(size), size) for size in info.shape]).astype(np.float32)
        for info in found.inputs
    }
    expected, renewed = (exact_session(each, 1).run(None, feeds)[0] for each in (read_graph(source), found))
    np.testing.assert_array_equal(renewed, expected)
    with pytest.raises(Exception, match="attempting to re-use buffer"):
        exact_session(graph, 1).run(None, feeds)


def test_init_measures_a_graph_of_one_name_for_all_axes(tmp_path: Path) -> None:
    bundle = load_request(DEMO).bundle
    path = Path(shutil.copy(bundle.graph_path(bundle.decoder.graph), tmp_path))
    graph = read_graph(renamed(path, "n"))
    assert frame_counts(graph, decoder_roles(graph, {}, lambda role, fitting: None)).multiple == 2


def stated(**shapes: tuple[int | str, ...]) -> Graph:
    """A graph of these inputs, the last of which is the output too."""
    values = {n: onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    output = values.pop("y")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    return graph_of(onnx.helper.make_model(onnx.helper.make_graph([node], "g", list(values.values()), [output])))


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": ("a", "b", 2), "time": ("a",), "tokens": ("a", "c", 2), "y": ("a", "b", 2)},
        {"x": ("a", "b", 2), "time": ("d",), "tokens": ("e", "c", 2), "y": ("f", "g", 2)},
        {"x": (None, None, 2), "time": (None,), "tokens": (4, None, 2), "y": (None, None, 2)},
        {"x": (4, 8, 2), "time": (4,), "tokens": (4, 8, 2), "y": (4, 8, 2)},
    ],
    ids=["equal names", "other names in every tensor", "no names", "fixed"],
)
def test_names_that_contradict_nothing_stay(shapes: dict[str, Any]) -> None:
    graph = stated(**shapes)
    assert with_axis_names(graph, LETTERS) is graph


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": ("a", "a", 2), "time": ("t",), "tokens": ("r", "l", 2), "y": ("o", "p", 2)},
        {"x": ("r", "t", 2), "time": ("r",), "tokens": ("t", "l", 2), "y": ("r", "t", 2)},
        {"x": ("r", "t", 2), "time": ("r",), "tokens": ("r", "l", 2), "y": ("r", "l", 2)},
    ],
    ids=["in one tensor", "in two inputs", "of an output"],
)
def test_a_name_of_two_roles_is_replaced_and_fixed_sizes_stay(shapes: dict[str, Any]) -> None:
    graph = stated(**shapes)
    found = with_axis_names(graph, LETTERS)
    wanted = {name: tuple(2 if letter == "C" else letter for letter in letters) for name, letters in LETTERS.items()}
    assert {info.name: info.shape for info in (*found.inputs, *found.outputs)} == wanted
    assert load_model(found.source).graph.node == load_model(graph.source).graph.node


def test_graphs_that_we_make_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no engine is built again for it."""
    kept: list[bool] = []

    def noted(graph: Graph, letters: dict[str, str]) -> Graph:
        kept.append((found := with_axis_names(graph, letters)) is graph)
        return found

    monkeypatch.setattr(module, "with_axis_names", noted)
    tiny = tiny_deployment(tmp_path, conditions=True, planner={"capacity": 96, "thinking": False}, depth=2)
    specs = [spec for deployment in (DEMO, tiny) for spec in engine_specs(load_request(deployment))]
    assert kept == [True] * len(specs)


def test_every_graph_of_a_bundle_may_have_one_name_for_all_axes(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, conditions=True, planner={"capacity": 96, "thinking": False}, depth=2)
    plain = {spec.name: spec for spec in engine_specs(load_request(path))}
    tiny_bundle(tmp_path / "tiny", conditions=True, planner={"capacity": 96, "thinking": False})
    for file in (tmp_path / "tiny").glob("*.onnx"):
        renamed(file, "n")
    for spec in engine_specs(load_request(path)):
        ranks = [[len(info.shape) for info in graph.inputs] for graph in (spec.graph, plain[spec.name].graph)]
        assert ranks[0] == ranks[1]
        names: dict[str, str] = {}
        for info in spec.graph.inputs:
            for letter, size in zip(spec.letters[info.name], info.shape, strict=True):
                assert isinstance(size, int) or names.setdefault(size, letter) == letter
