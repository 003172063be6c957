"""The bundle's planner: its graph with weights in 16 bits, its tokenizer, and what bundle.toml says of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT
from tokenizers import Tokenizer

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from engine_build.demo_model.bundle_text import read_bundle_file, write_bundle_file  # noqa: E402
from engine_build.demo_model.instruments import LAYERS  # noqa: E402
from engine_build.demo_model.planner.export import export_planner, graph_logits, half_planner_graph  # noqa: E402
from engine_build.demo_model.planner.tokens import NUM_TOKENS, TOKEN_IDS  # noqa: E402
from engine_build.demo_model.planner.train import PlannerConfig, PlannerTrainer  # noqa: E402
from runtime.config.explain import validated  # noqa: E402
from runtime.config.planner import PlannerSpec  # noqa: E402


@pytest.fixture(scope="module")
def trainer() -> PlannerTrainer:
    return PlannerTrainer(PlannerConfig(threads=1))


def test_a_checkpoint_becomes_the_bundles_planner(trainer: PlannerTrainer, tmp_path: Path) -> None:
    write_bundle_file(tmp_path, {"steps": 5}, {"in_key": 0.5})
    assert "planner" not in read_bundle_file(tmp_path)
    trainer.save(tmp_path / "planner.pt")
    for half in ("encode", "decode"):
        shutil.copy(ROOT / f"configs/demo/structure_{half}.onnx", tmp_path)
    assert export_planner(tmp_path / "planner.pt", tmp_path) < 1e-3
    tables = read_bundle_file(tmp_path)
    assert (tables["training"]["steps"], tables["evaluation"]) == (5, {"in_key": 0.5})
    assert 1.1e6 < tables["training"]["planner_parameters"] < 1.4e6
    planner = validated(PlannerSpec, tables["planner"], "planner")
    assert planner.vocabulary == NUM_TOKENS
    assert planner.plan is not None
    assert [
        planner.plan.silent[layer] in group.tokens for layer, group in zip(LAYERS, planner.codes.groups, strict=True)
    ] == 5 * [True]
    assert 4e5 < (tmp_path / planner.graph).stat().st_size < 2.8e6
    assert planner.tokenizer is not None
    tokenizer = Tokenizer.from_file(str(tmp_path / planner.tokenizer))
    assert TOKEN_IDS["genre:jazz"] in tokenizer.encode("jazz").ids


def test_sixteen_bits_change_logits_a_little(trainer: PlannerTrainer) -> None:
    model = trainer.model.eval()
    tokens = np.random.default_rng(1).integers(NUM_TOKENS, size=(1, 40))
    with torch.no_grad():
        table = model.table()
        wanted = (model(table[torch.from_numpy(tokens)]) @ table.T).numpy()
    assert 0.0 < np.abs(graph_logits(half_planner_graph(model), tokens) - wanted).max() < 0.02
