"""[notes]: what a bundle says of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_bundle
from helpers.tiny_planner import KEYED_PLAN
from pydantic import ValidationError

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.notes import NotesSpec


def test_a_bundle_names_its_layers(tmp_path: Path) -> None:
    notes = load_bundle(tiny_bundle(tmp_path, notes=True)).notes
    assert notes is not None
    assert [layer.name for layer in notes.layers] == ["bass", "drums"]
    assert notes.layers[0].all_channels == (0, 1, 2, 5)
    assert notes.last_channel == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("off = 0.06", "off = 0.12", "off is 0.12, expected less than on, 0.12"),
        ("channels = [3, 4]", "channels = [2, 4]", "channel 2 stands twice"),
        ("timbre_channels = [5]", "timbre_channels = [4]", "channel 4 stands twice"),
        ('name = "drums"', 'name = "../drums"', "layers.1.name: expected text that matches"),
        ('name = "drums"', 'name = "mix"', "a layer is named 'mix'"),
        ('name = "drums"', 'name = "bass"', "layer 'bass' stands twice"),
        ("keys = [36, 38]", "keys = [36]", "layer 'drums' has 2 channels and 1 keys"),
        ("keys = [36, 38]", "keys = [36, 128]", "expected at most 127"),
        ("channels = [3, 4]", "channels = [3, 8]", "channel 8, latents.channels is 8"),
        ("channels = [3, 4]", "channels = [-1, 4]", "expected at least 0"),
        ("levels = [0.3]", "levels = [0.3, 0.4]", "instrument 'sub bass' has 2 levels"),
        ("program = 39", "program = 128", "expected at most 127"),
        ("scale = 0.5", "scale = 0", "expected more than 0"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tiny_bundle(tmp_path, notes=True) / "bundle.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_bundle(tmp_path)


def test_there_are_no_more_layers_than_midi_has_channels() -> None:
    layers = [{"name": f"layer {number}", "channels": [number], "keys": [60]} for number in range(16)]
    values = {"scale": 1.0, "on": 0.2, "off": 0.1}
    with pytest.raises(ValidationError, match="16 layers beside percussion"):
        NotesSpec(**values, layers=layers)
    NotesSpec(**values, layers=[*layers[:15], {**layers[15], "is_percussion": True}])


@pytest.mark.parametrize("lacking", ["notes", "codec"])
def test_stems_need_notes_and_a_codec(tmp_path: Path, lacking: str) -> None:
    path = tiny_bundle(tmp_path, stems=lacking != "notes", codec=lacking != "codec") / "bundle.toml"
    if lacking == "notes":
        path.write_text(path.read_text(encoding="utf-8") + "[stems]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[stems\] needs \[codec\], and \[notes\]"):
        load_bundle(tmp_path)


@pytest.mark.parametrize(
    ("changes", "tracks", "message"),
    [
        ({}, '["drums"]', r"stems.tracks need \[codec\], \[context\], and an instruction for extract"),
        ({"conditions": True, "codec": False}, '["drums"]', "stems.tracks need"),
        ({"conditions": True}, '["drums", "drums"]', "a name stands twice"),
        ({"conditions": True}, '["mix"]', "or is 'mix'"),
        ({"conditions": True}, '["../drums"]', "expected text that matches"),
        ({"conditions": True}, '["drums"]\nsaturation = "tanh"', "tracks do not sum"),
    ],
)
def test_tracks_need_a_task_that_extracts_them(
    tmp_path: Path, changes: dict[str, Any], tracks: str, message: str
) -> None:
    path = tiny_bundle(tmp_path, **changes) / "bundle.toml"
    path.write_text(path.read_text(encoding="utf-8") + f"[stems]\ntracks = {tracks}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_bundle(tmp_path)


def test_notes_are_no_part_of_what_sounds(tmp_path: Path) -> None:
    with_notes, without = (load_bundle(tiny_bundle(tmp_path / str(has), notes=has)) for has in (True, False))
    assert with_notes.settings_json() == without.settings_json()


def test_envelopes_are_a_part_of_what_sounds(tmp_path: Path) -> None:
    plain, shaped = (load_bundle(tiny_bundle(tmp_path / str(has), notes=True, envelopes=has)) for has in (False, True))
    assert plain.settings_json() != shaped.settings_json()
    assert plain.notes is not None
    assert shaped.notes is not None
    assert (plain.notes.has_envelopes, shaped.notes.has_envelopes) == (False, True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("attack = [1.0, 0.8]", "attack = []", "attack: expected at least 1 item"),
        ("attack = [1.0, 0.8]", "attack = [0.0, 0.0]", "attack is silent"),
        ("attack = [1.0, 0.8]", "attack = [1.5]", "expected at most 1"),
        ("decay = 0.92", "decay = 0.0", "expected more than 0"),
        ("decay = 0.92", "decay = 1.1", "expected at most 1"),
        ("release = [0.35]", "release = [-1.0]", "expected at least 0"),
    ],
)
def test_an_envelope_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tiny_bundle(tmp_path, notes=True, envelopes=True) / "bundle.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_bundle(tmp_path)


def test_several_openings_need_notes_which_are_then_a_part_of_what_sounds(tmp_path: Path) -> None:
    keyed = {"plan": {**KEYED_PLAN, "openings": 2}}
    with pytest.raises(ConfigError, match=r"planner.plan.openings needs \[notes\]"):
        load_bundle(tiny_bundle(tmp_path / "none", planner=keyed))
    path = tiny_bundle(tmp_path / "notes", planner=keyed, notes=True)
    before = load_bundle(path).settings_json()
    file = path / "bundle.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("on = 0.", "on = 0.9"), encoding="utf-8")
    assert load_bundle(path).settings_json() != before
