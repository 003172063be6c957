"""The command line of the demo model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from configs.demo.recipe import __main__ as main
from configs.demo.recipe.bundle_text import read_bundle_file, write_bundle_file
from configs.demo.recipe.evaluation.report import Measured
from runtime.base.errors import BuildError, ConfigError


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


def test_evaluate_measures_the_groups_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def module(name: str) -> object:
        group = name.rsplit(".", 1)[1]
        return SimpleNamespace(measure=lambda player: Measured({group: 1.0}, {group: [{"row": group}]}))

    monkeypatch.setattr("configs.demo.recipe.evaluation.player.open_player", lambda folder: Opened())
    monkeypatch.setattr(main, "import_module", module)
    monkeypatch.setattr(main, "need_packages", lambda *names, extra: None)
    tables = tmp_path / "tables.md"
    result = CliRunner().invoke(main.app, ["evaluate", "tonic", "plans", "--tables", str(tables)])
    assert json.loads(result.output) == {"tonic": 1.0, "plans": 1.0}
    assert "| tonic |" in tables.read_text()
    everything = CliRunner().invoke(main.app, ["evaluate", "all"])
    assert list(json.loads(everything.output)) == list(main.GROUPS.values())
    with pytest.raises(ConfigError, match="no figures tonics"):
        main.evaluate(["tonics"])


def test_evaluate_without_librosa_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"librosa.*\n?.*tickrt\[recipe\]"):
        main.evaluate(["typed"])
