"""What is downloaded of a repository is what the exporters read: every layout, as tiny checkpoints have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.hub_server import Hub, Model, folder_files, hub_server, use_hub

from engine_build.export.hub import Reads, acestep_files, model_files, place_of, stable_audio_3_files

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from helpers import tiny_acestep, tiny_stable_audio_3  # noqa: E402
from helpers.tiny_planner import save_checkpoint as save_planner  # noqa: E402

from engine_build.export.acestep.planner import PlannerFolder  # noqa: E402
from engine_build.export.acestep.sources import Checkpoint as AceStep  # noqa: E402
from engine_build.export.stable_audio_3.sources import Checkpoint as StableAudio  # noqa: E402


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        use_hub(monkeypatch, server.url, tmp_path / "home")
        yield server


def acestep(folder: Path) -> Path:
    return tiny_acestep.save_checkpoint(folder / "base")


def own_acestep(folder: Path) -> Path:
    return tiny_acestep.save_own_checkpoint(acestep(folder), folder / "all").parent


def stable_audio(folder: Path) -> Path:
    return tiny_stable_audio_3.save_checkpoint(folder / "model", "small")


def own_stable_audio(folder: Path) -> Path:
    return tiny_stable_audio_3.save_own_checkpoint(folder / "model", "small")


@pytest.mark.parametrize(
    ("save", "reads", "source"),
    [
        (acestep, acestep_files, AceStep),
        (own_acestep, acestep_files, AceStep),
        (stable_audio, stable_audio_3_files, StableAudio),
        (own_stable_audio, stable_audio_3_files, StableAudio),
        (lambda folder: save_planner(folder / "planner"), model_files, PlannerFolder),
    ],
    ids=["acestep", "acestep-own", "stable-audio", "stable-audio-own", "planner"],
)
def test_a_downloaded_checkpoint_is_the_saved_one(
    hub: Hub, tmp_path: Path, save: Callable[[Path], Path], reads: Reads, source: Callable[[Path], Any]
) -> None:
    saved = save(tmp_path)
    hub.models["a/b"] = Model({**folder_files(saved), "README.md": b"# b", "more/model.safetensors": b"m" * 2000})
    place = place_of("a/b", reads, lambda text: None)
    there, here = source(place.folder), source(saved)
    assert there.fingerprint() == here.fingerprint()
    assert not {"README.md", "more/model.safetensors"} & {*hub.downloads()}
