"""What is downloaded of a repository is what the exporters read: every layout, as tiny checkpoints have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.hub_server import Hub, Model, folder_files, hub_server, use_hub
from helpers.tiny_exports import TinyExports

from engine_build.export.hub import Reads, acestep_files, model_files, place_of, stable_audio_3_files
from runtime.base.errors import ConfigError

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from engine_build.export.acestep.family import acestep_checkpoint  # noqa: E402
from engine_build.export.acestep.planner import LanguageModelFolder  # noqa: E402
from engine_build.export.acestep.sources import AceStepCheckpoint  # noqa: E402
from engine_build.export.stable_audio_3.family import stable_audio_checkpoint  # noqa: E402
from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint  # noqa: E402


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        use_hub(monkeypatch, server.url, tmp_path / "home")
        yield server


@pytest.mark.parametrize(
    ("saved", "reads", "source"),
    [
        (lambda tiny: tiny.acestep(), acestep_files, AceStepCheckpoint),
        (lambda tiny: tiny.acestep_own().parent, acestep_files, AceStepCheckpoint),
        (lambda tiny: tiny.stable_audio("medium"), stable_audio_3_files, StableAudioCheckpoint),
        (lambda tiny: tiny.stable_audio("small"), stable_audio_3_files, StableAudioCheckpoint),
        (lambda tiny: tiny.planner(), model_files, LanguageModelFolder),
    ],
    ids=["acestep", "acestep-own", "stable-audio", "stable-audio-own", "planner"],
)
def test_a_downloaded_checkpoint_is_the_saved_one(
    hub: Hub, tiny: TinyExports, saved: Callable[[TinyExports], Path], reads: Reads, source: Callable[[Path], Any]
) -> None:
    folder = saved(tiny)
    hub.models["a/b"] = Model({**folder_files(folder), "README.md": b"# b", "more/model.safetensors": b"m" * 2000})
    place = place_of("a/b", reads, lambda text: None)
    there, here = source(place.folder), source(folder)
    assert there.fingerprint() == here.fingerprint()
    assert not {"README.md", "more/model.safetensors"} & {*hub.downloads()}


def test_a_bundle_records_every_id_and_commit(
    hub: Hub, tiny: TinyExports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.models["a/songs"] = Model(folder_files(tiny.acestep()))
    hub.models["a/plans"] = Model(folder_files(tiny.planner(), "large/"), commit="d" * 40)
    source = acestep_checkpoint("a/songs@main", "a/plans/large")
    assert source.description == f"ACE-Step, exported from a/songs@{'c' * 40} and a/plans/large@{'d' * 40}."
    assert (source.name, source.has("planner")) == ("songs", True)
    with pytest.raises(ConfigError) as found:
        stable_audio_checkpoint("a/songs", None)
    assert found.value.fix == "it is another family's: python -m engine_build.export acestep"


def test_a_text_encoder_may_have_an_id_of_its_own(hub: Hub, tiny: TinyExports) -> None:
    files = folder_files(tiny.stable_audio("small"))
    text = {name: data for name, data in files.items() if "t5gemma" in name}
    hub.models["a/sounds"] = Model({name: data for name, data in files.items() if name not in text})
    hub.models["a/text"] = Model({name.rpartition("/")[2]: data for name, data in text.items()}, commit="d" * 40)
    assert not stable_audio_checkpoint("a/sounds", None).has("text_encoder")
    source = stable_audio_checkpoint("a/sounds", "a/text")
    assert source.has("text_encoder")
    assert source.description == f"Stable Audio 3, exported from a/sounds@{'c' * 40} and a/text@{'d' * 40}."
