"""PyTorch's decoder, timed in turn with ticks. Needs the extra `export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from conftest import Built
from helpers.tiny_acestep import save_checkpoint
from typer.testing import CliRunner

from profiling.bench.peers.torch_decoder import TorchDecoder
from profiling.bench_cli import app
from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_the_bench_times_it_in_turn_with_the_ticks(built: Built, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", text=False)
    command = [str(built().path), "--depth", "2", "--ticks", "3", "--torch", str(checkpoint), "--json", "-"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["competitors"]
    assert found.keys() == {"torch eager", "torch compiled"}
    assert all(each["p50"] > 0 < each["over_tick"] for each in found.values())


def test_it_computes_a_velocity_for_every_row(tmp_path: Path) -> None:
    checkpoint = str(save_checkpoint(tmp_path / "checkpoint", text=False))
    decoder = TorchDecoder(checkpoint, rows=3, frames=16, tokens=5, compiled=False)
    assert decoder.velocity().shape == (3, 16, 8)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ACE-Step transformer"):
        TorchDecoder(str(tmp_path), rows=1, frames=8, tokens=4, compiled=False)
    with pytest.raises(ConfigError, match="needs --torch published"):
        TorchDecoder(str(tmp_path), rows=1, frames=8, tokens=4, layers=2, compiled=False)
