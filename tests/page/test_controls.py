"""The page's controls: which widget each option of a schema gets, under node; and what they send, in the browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers.live_simulation import MODEL
from helpers.paths import ROOT

from runtime.config.option_ranges import OptionRanges
from runtime.live.parts.controls import controls_schema
from runtime.live.protocol.actions import LiveModel

PROGRAM = """
const { readControls } = await import(process.argv[1]);
console.log(JSON.stringify(readControls(JSON.parse(process.argv[2]))));
"""
PANEL = """async (schema) => {
  const { ControlPanel } = await import("./page/controls.js");
  const [first, more] = [document.createElement("div"), document.createElement("div")];
  const panel = new ControlPanel(first, more), sent = [];
  panel.addEventListener("change", (event) => sent.push(event.detail));
  panel.draw(schema);
  document.body.append(first, more);
  const write = (id, value) => {
    const field = panel.fields.get(id);
    field.value = value;
    field.dispatchEvent(new Event("change"));
    return field.value;
  };
  const texts = [["bpm", "92.5"], ["bpm", "9"], ["bpm", ""], ["language", ""], ["lyrics", "la\\nla"],
    ["track_classes", "drums, bass"], ["time_signature", "3"], ["time_signature", ""], ["key", "C major"]];
  const shown = texts.map(([id, text]) => write(id, text));
  return { sent, shown, values: panel.values, lines: panel.fields.get("lyrics").tagName };
}"""


@pytest.fixture(scope="module")
def drawn() -> Callable[[LiveModel], dict[str, dict[str, Any]]]:
    """What the page makes of the schema of a model, by id."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    module = (ROOT / "server/live/page/controls.js").as_uri()

    def draw(model: LiveModel) -> dict[str, dict[str, Any]]:
        command = [node, "--input-type=module", "--eval", PROGRAM, module, json.dumps(controls_schema(model))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {control["id"]: control for control in json.loads(done.stdout)}

    return draw


@pytest.fixture(scope="module")
def controls(drawn: Callable[[LiveModel], dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Those of a model that takes everything."""
    return drawn(MODEL)


@pytest.mark.parametrize(
    ("name", "type_", "default"),
    [
        ("lyrics", "lines", ""),
        ("language", "text", "en"),
        ("bpm", "entry", None),
        ("key", "text", ""),
        ("time_signature", "enum", ""),
        ("task", "enum", ""),
        ("track_classes", "names", ""),
        ("noise", "enum", "tickrt"),
        ("structure_strength", "number", 1),
        ("timbre_strength", "number", 1),
        ("cfg_interval_start", "number", 0),
        ("cfg_interval_end", "number", 1),
        ("steps", "integer", 8),
        ("guidance", "number", 3),
    ],
)
def test_every_option_has_a_widget_of_its_kind(
    controls: dict[str, dict[str, Any]], name: str, type_: str, default: object
) -> None:
    assert (controls[name]["type"], controls[name]["default"]) == (type_, default)


def test_knobs_have_the_usual_range_and_fields_the_whole_one(
    drawn: Callable[[LiveModel], dict[str, dict[str, Any]]], controls: dict[str, dict[str, Any]]
) -> None:
    table = {"guidance": {"max": 20, "usual": [1, 6]}, "bpm": {"min": 60, "max": 180, "type": "integer"}}
    found = drawn(replace(MODEL, ranges=OptionRanges.model_validate(table)))
    guidance, bpm = found["guidance"], found["bpm"]
    assert (guidance["min"], guidance["max"], guidance["usual"], guidance["type"]) == (0, 20, [1, 6], "number")
    assert (bpm["min"], bpm["max"], bpm["type"], bpm["isWhole"]) == (60, 180, "entry", True)
    assert (controls["bpm"]["isWhole"], controls["guidance"]["usual"]) == (False, [0, 50])


def test_what_the_page_cannot_give_has_no_widget(controls: dict[str, dict[str, Any]]) -> None:
    assert not {"adapters", "seed"} & set(controls)
    assert controls["time_signature"]["choices"] == ["", 2, 3, 4, 6]


def test_what_needs_a_source_is_marked(controls: dict[str, dict[str, Any]]) -> None:
    assert {id_ for id_, control in controls.items() if control["orStructure"]} == {
        "structure_strength", "cover_strength"
    }  # fmt: skip
    assert [controls[id_]["needsSource"] for id_ in ("structure_strength", "denoise", "timbre_strength")] == [
        True, True, False
    ]  # fmt: skip


@pytest.mark.page
def test_fields_send_what_the_protocol_takes(server: Any, open_page: Callable[..., Any]) -> None:
    found = open_page(server.url).evaluate(PANEL, controls_schema(MODEL))
    assert found["sent"] == [
        {"bpm": 92.5}, {"bpm": None}, {"language": None}, {"lyrics": "la\nla"}, {"track_classes": ["drums", "bass"]},
        {"time_signature": 3}, {"time_signature": None}, {"key": "C major"},
    ]  # fmt: skip
    assert found["shown"][1:4] == ["9", "", "en"]
    assert found["values"] == {"lyrics": "la\nla", "track_classes": ["drums", "bass"], "key": "C major"}
    assert found["lines"] == "TEXTAREA"
