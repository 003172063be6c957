"""What exporters write as a dimension: with any of it, init and build make engines that run, or say why not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers.building import build_engine
from helpers.factories import TinySpec, tiny_decoder

from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.graphs.adapter_graph import adapter_graph
from engine_build.graphs.graph_file import graph_of, load_model, read_graph
from engine_build.new_bundle.init import InitOptions, init
from engine_build.new_bundle.roles import NAMES
from engine_build.request import load_request
from runtime.base.errors import TickError
from runtime.config.decoder import AdapterSpec

DECODER = tiny_decoder(TinySpec())
PLACES = [
    (value.name, axis)
    for value in (*DECODER.graph.input, *DECODER.graph.output)
    for axis in range(len(value.type.tensor_type.shape.dim))
]
# None: neither a size nor a name, as torch's exporter writes dimensions that it cannot name.
WRITTEN = (-1, 0, 3, 2**40, None, "frames", "a+b*2 ß")


def written(places: list[tuple[str, int]], size: int | str | None) -> onnx.ModelProto:
    """The decoder with this in some of its dimensions."""
    model = onnx.ModelProto()
    model.CopyFrom(DECODER)
    for value in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in places:
                dim.Clear()
                if size is not None:
                    setattr(dim, "dim_param" if isinstance(size, str) else "dim_value", size)
    return model


def built(model: onnx.ModelProto, folder: Path) -> str:
    """What is said of a model that init or build refuses; "" where its decoder was built."""
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, path)
    usual = ("hidden_states", "timestep", "context_latents", "encoder_hidden_states", "condition_mask")
    roles = dict(zip(list(NAMES)[1:], usual, strict=True))
    try:
        init(InitOptions(path, None, folder, roles, None, None, force=False))
        with (folder / "deployment.toml").open("a", encoding="utf-8") as file:
            file.write('[build]\nstep_variants = ["plain"]\nthreads = 1\n')
        request = load_request(folder / "deployment.toml")
        environment, engines = build_environment("cpu", request.options), request.deployment.engine_folder()
        with locked(engines):
            decoder = check_rebuilds(request, "cpu", environment=environment)[0]
            build_engine(decoder, request, engines, environment)
    except TickError as error:
        return f"{error.what}\n{error.fix}"
    assert request.deployment.max_rows >= 1
    return ""


@pytest.mark.parametrize("size", WRITTEN, ids=repr)
def test_any_dimension_of_any_tensor_builds_or_is_refused_in_words(size: int | str | None, tmp_path: Path) -> None:
    said = {place: built(written([place], size), tmp_path / "-".join(map(str, place))) for place in PLACES}
    is_dynamic = size in (None, "") or (isinstance(size, int) and size < 0)
    for (name, axis), text in said.items():
        if size == 0:
            assert f"'{name}' has size 0 in dimension {axis}" in text
        elif is_dynamic and axis < 2:
            assert not text, (name, axis, text)
        else:  # what was built needs no words
            assert text == "" or name in text, (name, axis, text)


@pytest.mark.parametrize("size", [-1, None, ""], ids=repr)
def test_rows_frames_and_tokens_may_all_be_unnamed(size: int | str | None, tmp_path: Path) -> None:
    assert built(written([place for place in PLACES if place[1] < 2], size), tmp_path / "all") == ""


@pytest.mark.parametrize("size", [-1, None], ids=repr)
def test_the_weights_of_adapters_have_as_many_rows_as_there_are(size: int | None, tmp_path: Path) -> None:
    onnx.save(written(PLACES, size), tmp_path / "model.onnx")
    matrices = {"in": {"weight": "w_in", "inputs": 8, "outputs": 16}}
    model = adapter_graph(load_model(tmp_path / "model.onnx"), AdapterSpec(matrices=matrices), "hidden_states")
    shapes = {info.name: info.shape for info in graph_of(model).inputs}
    assert shapes["adapter_weights"][0] == "adapter_weights.0"
    assert read_graph(tmp_path / "model.onnx").inputs[0].shape[0] == "hidden_states.0"
