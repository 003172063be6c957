"""[controls]: what values of controls are for a bundle, and what is refused when it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_bundle
from helpers.paths import ROOT

from runtime.base.errors import ConfigError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.option_ranges import Option
from runtime.live.parts.controls import CONTROL_NAMES

DEMO = load_bundle(ROOT / "configs" / "demo").controls


def loaded(folder: Path, controls: str, **changes: bool) -> Bundle:
    path = tiny_bundle(folder, **changes) / "bundle.toml"
    path.write_text(f"{path.read_text()}\n[controls]\n{controls}\n", encoding="utf-8")
    return load_bundle(folder)


def test_the_demo_hears_options_and_words() -> None:
    values = {"bpm": 120, "scale": "D major", "density": 0.9, "brightness": 0.1, "mute_drums": True, "mute_bass": False}
    options = {"bpm": 120, "key": "D major", "time_signature": 3}
    assert DEMO.heard({**values, "meter": 3}) == (["dense", "dark", "no drums"], options)
    assert DEMO.heard({"temperature": 3.0}) == ([], dict.fromkeys(options))


@pytest.mark.parametrize(
    ("share", "word"), [(0.0, ["sparse"]), (0.34, []), (0.66, []), (0.67, ["dense"]), (1, ["dense"])]
)
def test_words_divide_the_range_equally(share: float, word: list[str]) -> None:
    assert DEMO.heard({"density": share})[0] == word


def test_an_option_takes_a_range_and_words_take_the_value(tmp_path: Path) -> None:
    controls = """
        bpm = { words = ["at {value} bpm"] }
        scale = { words = ["in {value}"] }
        temperature = { option = "ode_noise", range = [0.0, 0.3] }
    """
    found = loaded(tmp_path, controls).controls.heard({"bpm": 90, "scale": "Db major", "temperature": 1.5})
    assert found == (["at 90 bpm", "in Db major"], {"ode_noise": pytest.approx(0.15)})


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ('bmp = { words = ["a"] }', "controls.bmp: is not a known name; did you mean bpm"),
        ("bpm = {}", "controls.bpm: expected words or an option"),
        ('density = { words = ["a"], range = [0.0, 1.0] }', "range belongs to an option"),
        ('density = { option = "seconds" }', "controls.density.option: expected 'bpm'"),
        ('bpm = { option = "bpm" }', r"controls.bpm.option is bpm, the template has no \{bpm\}"),
        ('bpm = { option = "key" }', "a scale sets key"),
        ('scale = { option = "guidance" }', "a scale sets key"),
        ('scale = { words = ["a", "b"] }', "scale has one text"),
        ('meter = { words = ["a", "b"] }', "meter has one text"),
        ('meter = { option = "bpm" }', "a meter sets time_signature"),
        ('density = { words = ["a"], values = ["b"] }', "values belong to"),
        ('meter = { option = "time_signature", range = [2, 4] }', "range belongs to an option that is a number"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, controls: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, controls)


def test_words_need_a_text_encoder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"controls.density.words need \[text_encoder\]"):
        loaded(tmp_path, 'density = { words = ["a"] }', text_encoder=False)


def test_every_option_is_a_control_of_live_sessions() -> None:
    options = [name for part in Option.__args__ for name in getattr(part, "__args__", (part,))]
    assert set(options) <= set(CONTROL_NAMES)
