"""The first row: tempo, key, meter, parts, words and adapters, as a person sets them, and knobs that are typed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.page_traffic import Traffic, opened, until

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]
Serve = Callable[..., Any]
FAKE_MIDI = """
const input = { onmidimessage: null };
navigator.requestMIDIAccess = async () =>
  ({ inputs: new Map([["one", input]]), outputs: new Map(), onstatechange: null });
window.turnController = (number, value) => input.onmidimessage({ data: new Uint8Array([0xb0, number, value]) });
"""


def texts(traffic: Traffic) -> list[str]:
    """Of the prompts that were sent at last."""
    return [item["text"] for item in traffic.prompts]


def slider(page: Any, name: str) -> Any:
    return page.get_by_role("slider", name=name, exact=True)


def test_tempo_key_and_meter_are_set_and_follow_the_prompt_where_they_are_not(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    tempo, key = page.get_by_label("tempo", exact=True), page.get_by_label("key", exact=True)
    page.wait_for_function("() => document.querySelector('[data-control=bpm] input').placeholder === '84'")
    assert "A minor" in key.locator("option").first.text_content()
    tempo.fill("120")
    tempo.press("Enter")
    key.select_option("E minor")
    page.get_by_label("meter", exact=True).select_option(label="3/4")
    until(page, lambda: traffic.values("time_signature") == [3])
    assert traffic.values("bpm") == [120]
    assert traffic.values("key") == ["E minor"]
    page.wait_for_function("() => document.getElementById('words-a').textContent.includes('E minor')")
    key.select_option(index=0)
    until(page, lambda: traffic.values("key") == ["E minor", None])
    assert page.inner_text("#messages") == ""


# Taps at given times, in milliseconds: those of a real hand depend on the machine's load.
TAP = """([type, timesMs]) => {
  const button = document.getElementById("tap");
  for (const timeMs of timesMs) {
    const options = { button: 0, key: "Enter", bubbles: true, cancelable: true };
    const event = type === "keydown" ? new KeyboardEvent(type, options) : new PointerEvent(type, options);
    Object.defineProperty(event, "timeStamp", { value: timeMs });
    button.dispatchEvent(event);
  }
}"""


def test_a_tempo_is_tapped(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    page.evaluate(TAP, ["pointerdown", [1000, 1500, 2000, 2500]])
    assert page.get_by_label("tempo", exact=True).input_value() == "120"
    until(page, lambda: traffic.values("bpm")[-1] == 120)
    page.evaluate(TAP, ["keydown", [9000, 9100, 9200]])  # faster than the model plays
    assert page.get_by_label("tempo", exact=True).input_value() == "180"


def test_parts_and_words_are_added_to_every_prompt(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    density = slider(page, "density")
    density.press("ArrowUp")
    assert density.get_attribute("aria-valuetext") == "dense"
    until(page, lambda: all(text.endswith(", dense") for text in texts(traffic)))
    # What is typed stays as it is, and what the server says of it is shown.
    assert "dense" not in page.input_value("#prompt-a")
    page.wait_for_function("() => /dense/.test(document.getElementById('words-a').textContent)")
    density.press("ArrowDown")
    until(page, lambda: not any("dense" in text for text in texts(traffic)))


def test_lanes_alone_silence_layers_also_those_of_a_preset_with_words(server: Any, open_page: OpenPage) -> None:
    page, _ = opened(open_page, server.url)
    assert page.get_by_role("group", name="Parts").get_by_role("button").count() == 0
    page.get_by_role("button", name="Share").click()
    page.wait_for_function("() => location.hash.startsWith('#p=')")
    shared = page.url.partition("#p=")[2]
    preset = json.loads(base64.urlsafe_b64decode(shared + "=" * (-len(shared) % 4)))
    preset["music"] = {"mute_drums": 1, "only_bass_and_drums": 1, "density": 2}
    changed = base64.urlsafe_b64encode(json.dumps(preset).encode()).decode().rstrip("=")
    other = open_page(f"{server.url}#p={changed}")
    pressed = other.locator("#lanes [aria-pressed=true]")
    other.wait_for_function("() => document.querySelectorAll('#lanes [aria-pressed=true]').length === 3")
    assert {one.get_attribute("aria-label") for one in pressed.all()} == {"Mute drums", "Solo bass", "Solo drums"}
    assert slider(other, "density").get_attribute("aria-valuetext") == "dense"


def test_adapters_have_knobs_that_controllers_turn_and_presets_keep(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url, script=FAKE_MIDI)
    adapter = slider(page, "music box")
    adapter.press("PageUp")
    strength = float(adapter.get_attribute("aria-valuenow"))
    until(page, lambda: traffic.values("adapters")[-1] == [{"id": "music-box", "strength": strength}])
    page.click("#midi")
    page.wait_for_selector("#midi[aria-pressed=true]")
    adapter.focus()
    page.evaluate("turnController(7, 64)")
    page.click("#midi")
    until(page, lambda: traffic.values("adapters")[-1][0]["strength"] == pytest.approx(0.5, abs=0.02))
    page.get_by_role("button", name="Share").click()
    shared = open_page(page.url)
    shared.wait_for_function("() => document.querySelector('[data-control=\"adapters.music-box\"]').ariaValueNow > 0.4")
    page.get_by_role("button", name="Reset").click()
    until(page, lambda: traffic.values("adapters")[-1] is None)
    assert slider(page, "music box").get_attribute("aria-valuenow") == "0"
    assert page.locator("#messages > :not(.is-note)").count() == 0


def test_a_bundle_without_musical_controls_shows_none(serve: Serve, open_page: OpenPage, built: Built) -> None:
    page = open_page(serve(config=built(more=FEW_VARIANTS).path).url)
    assert page.get_by_role("button", name="Tap", exact=True).count() == 0
    assert page.get_by_role("group", name="Parts").get_by_role("button").count() == 0
    assert slider(page, "density").count() == 0
    assert slider(page, "variation").count() == 1
    page.get_by_role("button", name="Model", exact=True).click()
    assert slider(page, "guidance").count() == 1


def test_a_drag_stays_in_the_range_that_is_played_and_shift_is_fine(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("button", name="Model", exact=True).click()
    for name, least, most in (("guidance", 2.7, 4.5), ("dcw low", 0.003, 0.02)):
        dragged = slider(page, name)
        box = dragged.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + 30
        for keys, low, high in (((), least, most), (("Shift",), 0.0, most / 10)):
            before = float(dragged.get_attribute("aria-valuenow"))
            for key in keys:
                page.keyboard.down(key)
            page.mouse.move(x, y)
            page.mouse.down()
            page.mouse.move(x, y - 40, steps=8)
            page.mouse.up()
            for key in keys:
                page.keyboard.up(key)
            value = float(dragged.get_attribute("aria-valuenow"))
            assert low < (value if not keys else value - before) < high, (name, keys)
        dragged.press("End")  # all that the model takes can be reached
        assert dragged.get_attribute("aria-valuenow") == dragged.get_attribute("aria-valuemax")
        assert dragged.locator("path.mark").count() >= 1


def test_values_are_typed(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    page.get_by_role("button", name="Model", exact=True).click()
    guidance = slider(page, "guidance")
    guidance.locator(".value").click()
    entry = page.get_by_role("textbox", name="guidance, typed")
    entry.fill("4,75")
    entry.press("Enter")
    assert guidance.get_attribute("aria-valuenow") == "4.75"
    assert guidance.evaluate("(knob) => document.activeElement === knob")
    page.keyboard.type("70")
    entry.press("Enter")
    assert entry.evaluate("(field) => field.validationMessage") == "guidance takes 0 to 50"
    entry.press("Escape")
    assert (entry.count(), guidance.get_attribute("aria-valuenow")) == (0, "4.75")
    slider(page, "volume").press("Enter")
    page.get_by_role("textbox", name="volume, typed").fill("40")
    page.keyboard.press("Enter")
    assert slider(page, "volume").get_attribute("aria-valuenow") == "0.4"
    until(page, lambda: traffic.values("guidance") == [4.75])


def test_words_of_the_model_are_offered_while_a_prompt_is_typed(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    page.wait_for_function("() => document.querySelectorAll('[data-control^=\"adapters.\"]').length")
    prompt = page.get_by_role("textbox", name="A", exact=True)
    prompt.fill("")
    prompt.press_sequentially("calm pads, drum ma")
    offered = page.get_by_role("listbox", name="Words of the model").get_by_role("option")
    offered.get_by_text("drum machine").wait_for()
    assert offered.all_inner_texts() == ["drum machine"]
    prompt.press("ArrowDown")
    assert offered.first.get_attribute("aria-selected") == "true"
    prompt.press("Enter")
    assert prompt.input_value() == "calm pads, drum machine"
    assert offered.count() == 0
    prompt.press_sequentially(", xyl")
    offered.filter(has_text="xylophone").click()
    until(page, lambda: texts(traffic)[0] == "calm pads, drum machine, xylophone")
    prompt.press_sequentially(" zq")  # nothing begins so
    assert offered.count() == 0
