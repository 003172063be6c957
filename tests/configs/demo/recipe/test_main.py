"""The command line of the demo model."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from configs.demo.recipe import __main__ as main
from configs.demo.recipe.bundle_text import read_bundle_file, write_bundle_file
from configs.demo.recipe.evaluation.report import Measured


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(main.app, ["--help"]).output
    assert all(command in text for command in ("train", "train-encoder", "export", "evaluate", "plot"))


def test_evaluate_writes_the_figures_and_keeps_those_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    matrices = {"layers.0.self_attn.to_q": {"weight": "w", "inputs": 3, "outputs": 4}}
    write_bundle_file(tmp_path, {"steps": 5}, {}, matrices)
    monkeypatch.setattr("configs.demo.recipe.evaluation.player.open_player", lambda folder: Opened())
    monkeypatch.setattr("configs.demo.recipe.evaluation.evaluate.measure", lambda player: Measured({"in_key": 0.5}))
    result = CliRunner().invoke(main.app, ["evaluate", "--folder", str(tmp_path), "--write"])
    assert result.output.strip() == '{"in_key": 0.5}'
    tables = read_bundle_file(tmp_path)
    assert (tables["training"], tables["evaluation"]) == ({"steps": 5}, {"in_key": 0.5})
    assert tables["adapters"]["matrices"] == matrices
