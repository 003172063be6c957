"""The first execute of every plan on a card: in a process of its own, once, and remembered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.engine_behaviour import written
from simulator.fixture import simulated
from simulator.plans import CHANNELS

from runtime.base.files import own_entries
from runtime.engines.manifest import MANIFEST_SUFFIX, Manifest, manifest_path, read_manifest, write_manifest
from runtime.engines.tensorrt import trials
from runtime.engines.tensorrt.trials import (
    KEPT,
    card_here,
    crashed_levels,
    first_executes,
    keep_trial,
    read_trials,
    trial_of,
    trials_path,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Engines of the simulated card."""
    with simulated():
        written(tmp_path / "tensorrt")
        profile = {
            "x": f"1x2x{CHANNELS} 2x4x{CHANNELS} 2x4x{CHANNELS}",
            "t": "1 2 2",
            "bias": " ".join(3 * [str(CHANNELS)]),
        }
        manifest = manifest_in(tmp_path / "tensorrt")
        build = {**manifest.build, "profiles": [profile], "optimization_level": 3}
        write_manifest(
            manifest_path(tmp_path / "tensorrt", manifest.name), manifest.model_copy(update={"build": build})
        )
        yield tmp_path / "tensorrt"


def manifest_in(folder: Path) -> Manifest:
    return read_manifest(own_entries(folder, MANIFEST_SUFFIX)[0])


def no_process(*about: Any) -> Any:
    raise AssertionError("a process was started")


def test_a_plan_that_runs_is_tried_once_per_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_in(folder)
    assert first_executes(folder, "tensorrt") == {}
    (found,) = read_trials(folder, manifest.name)
    assert (found.card, found.engine_sha256, found.crash) == (card_here("tensorrt"), manifest.engine_sha256, "")
    monkeypatch.setattr(trials, "_run", no_process)
    assert first_executes(folder, "tensorrt") == {}
    monkeypatch.setattr(trials, "card_here", lambda target: {"gpu": "another"})
    with pytest.raises(AssertionError, match="a process was started"):
        first_executes(folder, "tensorrt")


def test_a_plan_that_ends_its_process_is_named_and_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_in(folder)
    monkeypatch.setenv("SIMULATED_FAULTS", json.dumps({"crash_above_level": -1}))
    assert first_executes(folder, "tensorrt") == {manifest.name: "signal SIGSEGV"}
    monkeypatch.setattr(trials, "_run", no_process)
    assert first_executes(folder, "tensorrt") == {manifest.name: "signal SIGSEGV"}
    assert crashed_levels(manifest, folder, card_here("tensorrt")) == {3}
    assert crashed_levels(manifest, folder, {"gpu": "another"}) == set()
    other = manifest.model_copy(update={"graph_sha256": "another"})
    assert crashed_levels(other, folder, card_here("tensorrt")) == set()


def test_without_a_gpu_or_engines_nothing_is_tried(folder: Path, tmp_path: Path) -> None:
    assert first_executes(tmp_path / "none", "tensorrt") == {}
    with simulated(no_driver=True):
        assert first_executes(folder, "tensorrt") == {}


def test_damaged_trials_are_made_again_and_old_ones_dropped(folder: Path) -> None:
    manifest = manifest_in(folder)
    trials_path(folder, manifest.name).write_text("{")
    assert read_trials(folder, manifest.name) == ()
    for number in range(KEPT + 2):
        keep_trial(folder, manifest.name, trial_of(manifest, {"gpu": str(number)}))
    keep_trial(folder, manifest.name, trial_of(manifest, {"gpu": str(KEPT)}))
    found = [trial.card["gpu"] for trial in read_trials(folder, manifest.name)]
    assert (len(found), found[0], found[-1]) == (KEPT, "2", str(KEPT))
    assert manifest_path(folder, manifest.name).is_file()
