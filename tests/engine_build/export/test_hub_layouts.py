"""What is downloaded of a repository is what the exporters read: every layout, as tiny checkpoints have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.hub_server import Hub, Model, folder_files, hub_server, use_hub

from engine_build.export.hub import Reads, acestep_files, model_files, place_of, stable_audio_3_files
from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from helpers import tiny_acestep, tiny_stable_audio_3  # noqa: E402
from helpers.tiny_planner import save_checkpoint as save_planner  # noqa: E402

from engine_build.export.acestep import family as acestep_family  # noqa: E402
from engine_build.export.acestep.planner import PlannerFolder  # noqa: E402
from engine_build.export.acestep.sources import Checkpoint as AceStep  # noqa: E402
from engine_build.export.stable_audio_3 import family as stable_audio_family  # noqa: E402
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


def test_a_bundle_records_every_id_and_commit(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub.models["a/songs"] = Model(folder_files(acestep(tmp_path)))
    hub.models["a/plans"] = Model(folder_files(save_planner(tmp_path / "planner"), "large/"), commit="d" * 40)
    source = acestep_family.checkpoint_of("a/songs@main", "a/plans/large")
    assert source.description == f"ACE-Step, exported from a/songs@{'c' * 40} and a/plans/large@{'d' * 40}."
    assert (source.name, source.has("planner")) == ("songs", True)
    with pytest.raises(ConfigError) as found:
        stable_audio_family.checkpoint_of("a/songs", None)
    assert found.value.fix == "it is another family's: python -m engine_build.export acestep"


def test_a_text_encoder_may_have_an_id_of_its_own(hub: Hub, tmp_path: Path) -> None:
    files = folder_files(own_stable_audio(tmp_path))
    text = {name: data for name, data in files.items() if "t5gemma" in name}
    hub.models["a/sounds"] = Model({name: data for name, data in files.items() if name not in text})
    hub.models["a/text"] = Model({name.rpartition("/")[2]: data for name, data in text.items()}, commit="d" * 40)
    assert not stable_audio_family.checkpoint_of("a/sounds", None).has("text_encoder")
    source = stable_audio_family.checkpoint_of("a/sounds", "a/text")
    assert source.has("text_encoder")
    assert source.description == f"Stable Audio 3, exported from a/sounds@{'c' * 40} and a/text@{'d' * 40}."
