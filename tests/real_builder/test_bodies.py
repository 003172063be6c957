"""TensorRT-RTX's parser and builder take prepared graphs with bodies, of the property test of every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from helpers.graphs_with_bodies import FRAMES, C, graph_with_bodies
from real_builder.judge import TARGET, need_builder

from engine_build.compile.tasks import compile_engine
from engine_build.compile.worker import BuildLog, CompileRequest, Worker
from engine_build.config import RTX_OPTIONS, BuildConfig
from engine_build.graphs.plain_graph import plain
from engine_build.graphs.tensorrt_preparation import prepare_model
from engine_build.precision.recipe import apply_recipe
from runtime.base.errors import BuildError

pytestmark = pytest.mark.builder

SEEDS = range(12)
ROWS = (1, 2, 4)
PROFILE = {
    "latents": " ".join(f"{rows}x{FRAMES}x{C}" for rows in ROWS),
    "time": " ".join(map(str, ROWS)),
}
RECIPES: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "fp32": lambda model: model,
    "bf16": lambda model: apply_recipe(model, "bf16"),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    need_builder()
    with Worker() as worker:
        yield worker


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_builder_takes_them(recipe: str, seed: int, worker: Worker, tmp_path: Path) -> None:
    build(graph_with_bodies(seed, depth=1), recipe, worker, tmp_path)


def build(model: onnx.ModelProto, recipe: str, worker: Worker, tmp_path: Path) -> None:
    options = BuildConfig().of("decoder").model_dump(mode="json", include=set(RTX_OPTIONS))
    shapes = [{"latents": (rows, FRAMES, C), "time": (rows,)} for rows in ROWS[1:]]
    graph = tmp_path / "graph.onnx"
    onnx.save(prepare_model(RECIPES[recipe](plain(model)), shapes), graph)
    request = CompileRequest(TARGET, str(graph), graph, tmp_path / "plan", options, [PROFILE], threads=1)
    worker.run(compile_engine, request, BuildLog())


def test_nesting_that_it_does_not_build_is_named(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as found:
        build(graph_with_bodies(9), "fp32", worker, tmp_path)
    assert "TensorRT does not build all control flow inside control flow" in found.value.fix
