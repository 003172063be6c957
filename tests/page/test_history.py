"""Undo, redo, two states, takes, and the loop as a file, by accessible names alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.page_player import play
from helpers.page_traffic import opened, until
from numpy.typing import NDArray

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def slider(page: Any, name: str) -> Any:
    return page.get_by_role("slider", name=name, exact=True)


def values(page: Any) -> dict[str, Any]:
    """What the page shows, and would save as a preset."""
    with page.expect_download() as download:
        button(page, "Save").click()
    preset: dict[str, Any] = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    return preset


def test_every_change_is_undone_and_done_again(server: Any, open_page: OpenPage) -> None:
    # All of the page is in view: a focus that scrolls it late would move a button between press and release.
    page = open_page(server.url, viewport={"width": 1280, "height": 1800})
    button(page, "Model").click()
    states = [values(page)]
    assert button(page, "Undo").is_disabled()

    def draw_a_curve() -> None:
        page.get_by_role("combobox", name="Curve to draw").select_option("guidance")
        slider(page, "Position on the canvas").press("ArrowUp")

    def switch_the_mode() -> None:
        page.get_by_role("radio", name="Extend").check(force=True)
        page.wait_for_selector("#status[data-status=live]")

    changes: list[Callable[[], Any]] = [
        lambda: page.get_by_role("textbox", name="A", exact=True).fill("calm choir pads, C major, 90 bpm"),
        lambda: slider(page, "Blend of the prompts").press("ArrowRight"),
        lambda: slider(page, "shift").press("PageUp"),
        lambda: page.get_by_role("spinbutton", name="tempo", exact=True).fill("100"),
        lambda: page.get_by_role("combobox", name="key", exact=True).select_option("D minor"),
        lambda: button(page, "Mute drums").click(),
        lambda: slider(page, "density").press("ArrowUp"),
        lambda: slider(page, "music box").press("PageUp"),
        lambda: button(page, "Draw another seed").click(),
        lambda: button(page, "Keep this seed as a take").click(),
        lambda: slider(page, "Start of the loop band").press("ArrowRight"),
        draw_a_curve,
        lambda: page.get_by_role("combobox", name="blend of prompts").select_option("tokens"),
        switch_the_mode,
    ]
    for change in changes:
        change()
        page.keyboard.press("Tab")  # a number is taken when its field is left
        states.append(values(page))
        assert states[-1] != states[-2], len(states)
    for state in reversed(states[:-1]):
        page.keyboard.press("Control+z")
        assert values(page) == state
    assert button(page, "Undo").is_disabled()
    for state in states[1:]:
        button(page, "Redo").click()
        assert values(page) == state
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+Shift+Z")
    assert values(page) == states[-1]
    page.wait_for_selector("#status[data-status=live]")
    assert page.inner_text("#messages") == ""


def test_what_is_undone_is_what_the_server_plays(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    play(page)
    page.get_by_role("combobox", name="key", exact=True).select_option("E minor")
    page.wait_for_function("() => document.getElementById('words-a').textContent.includes('E minor')")
    button(page, "Undo").click()
    page.wait_for_function("() => document.getElementById('words-a').textContent.includes('A minor')")
    slider(page, "density").press("ArrowUp")
    page.wait_for_function("() => /dense/.test(document.getElementById('words-a').textContent)")
    button(page, "Undo").click()
    page.wait_for_function("() => !/dense/.test(document.getElementById('words-a').textContent)")


def test_two_states_are_compared_each_with_its_own_undo(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    variation = slider(page, "variation")
    variation.press("PageUp")
    first = variation.get_attribute("aria-valuenow")
    page.get_by_role("radio", name="State B").check(force=True)
    assert variation.get_attribute("aria-valuenow") == first
    assert button(page, "Undo").is_disabled()
    variation.press("End")
    page.get_by_role("radio", name="State A").check(force=True)
    assert variation.get_attribute("aria-valuenow") == first
    button(page, "Undo").click()
    assert variation.get_attribute("aria-valuenow") == "0"
    page.get_by_role("radio", name="State B").check(force=True)
    assert variation.get_attribute("aria-valuenow") == "1"


def test_there_may_be_more_prompts_or_fewer(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    puck = slider(page, "Blend of the prompts")
    for _ in range(2):
        button(page, "Remove the last prompt").click()
    puck.press("End")
    until(page, lambda: [item["weight"] for item in traffic.prompts] == [0, 1])
    for _ in range(6):
        button(page, "Add a prompt").click()
    assert button(page, "Add a prompt").is_disabled()
    page.get_by_role("textbox", name="H", exact=True).fill("brass pads, A minor, 84 bpm")
    page.get_by_role("textbox", name="E", exact=True).fill("harp arps, A minor, 84 bpm")
    puck.press("PageUp")
    puck.press("PageUp")  # the middle of the right edge
    until(page, lambda: traffic.prompts[-1]["text"].startswith("brass") and traffic.prompts[-1]["weight"] > 0.9)
    assert sum(item["weight"] for item in traffic.prompts) == pytest.approx(1, abs=0.01)
    assert len(values(page)["prompts"]) == 8
    page.wait_for_function("() => document.getElementById('words-h').textContent.includes('brass')")
    for _ in range(6):
        button(page, "Remove the last prompt").click()
    field = page.get_by_role("textbox", name="H", exact=True)
    while not field.is_visible():  # clicks in quick succession are one step
        button(page, "Undo").click()
    assert field.input_value().startswith("brass")
    assert page.inner_text("#messages") == ""


def test_a_take_is_kept_and_recalled(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    seed, takes = page.get_by_role("textbox", name="Seed"), page.get_by_role("combobox", name="Takes")
    assert takes.count() == 0
    seed.fill("101")
    seed.press("Enter")
    button(page, "Keep this seed as a take").click()
    button(page, "Draw another seed").click()
    assert seed.input_value() != "101"
    button(page, "Keep this seed as a take").click()
    takes.select_option(label="Take 1 · 101")
    assert seed.input_value() == "101"
    assert len(values(page)["takes"]) == 2


def test_the_loop_is_saved_as_a_file_without_a_seam(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    chunks: list[bytes] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda payload: chunks.append(payload)))
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    play(page)
    tempo = page.get_by_role("spinbutton", name="tempo", exact=True)
    tempo.fill("120")
    tempo.press("Enter")
    page.wait_for_function("() => document.querySelector('#stat-full').textContent.endsWith('ms')")
    with page.expect_download() as download:
        button(page, "Save loop").click()
    samples, rate = soundfile.read(io.BytesIO(Path(download.value.path()).read_bytes()), dtype="float32")
    bar = 2.0  # four beats at 120 bpm
    assert rate == 48000
    assert len(samples) / rate / bar == pytest.approx(round(len(samples) / rate / bar), abs=0.02 / bar)
    steps = np.abs(np.diff(np.concatenate([samples, samples[:1]]), axis=0)).max(1)
    assert steps[-1] < np.quantile(steps, 0.999)
    # It is what came, but where the pass was closed or, on a busy machine, was sent anew later.
    came = received([chunk for chunk in chunks if isinstance(chunk, bytes)])[:, 0]
    half = rate // 2
    found = [likeness(came, samples[at : at + half, 0]) for at in range(0, len(samples) - half + 1, half)]
    assert sum(value > 0.999 for value in found) > len(found) / 2


# A loop of a second of which every tenth is another sound, and is sent twice, the second time as what is heard.
NEVER_SETTLES = """async () => {
  const { LoopFile } = await import("./page/loop_file.js");
  const told = [], parts = { isPlaying: () => true, isVaried: () => true, notify: (text) => told.push(text) };
  const canvas = { seconds: 2, playable: { start: 0, end: 1 } }, player = { rateHz: 1000 };
  const file = new LoopFile({ canvas, player, ...parts });
  file.begin({ sample_rate_hz: 1000, channels: 1, mode: "loop" });
  document.getElementById("save-loop").click();
  for (let i = 0; i < 14; i++) {
    for (const [seq, level] of [[2 * i, 0.9], [2 * i + 1, i / 20]]) {
      const pcm = new Float32Array(100).fill(level);
      file.write({ epoch: 0, startSample: 100 * i, firstSeq: seq, fullSeq: seq, pcm });
    }
    file.follow({ seconds: 0, sample: 0 });
  }
  return told;
}"""


def test_a_loop_that_never_settles_is_saved_as_it_is_heard(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    with page.expect_download() as download:
        (told,) = page.evaluate(NEVER_SETTLES)
    assert told.startswith("The loop is saved as it was heard")
    samples, rate = soundfile.read(io.BytesIO(Path(download.value.path()).read_bytes()), dtype="float32")
    assert (len(samples), rate) == (1000, 1000)
    middles = samples[50::100] * 20
    assert sorted(np.round(middles).astype(int).tolist()) == list(range(1, 11))


def received(chunks: list[bytes]) -> NDArray[np.float32]:
    """The play axis `[n, 2]` as binary messages have it."""
    parts = [
        (int.from_bytes(chunk[4:12], "little"), np.frombuffer(chunk[28:], "<i2").reshape(-1, 2)) for chunk in chunks
    ]
    axis = np.zeros((max(start + len(part) for start, part in parts), 2), np.float32)
    for start, part in parts:
        axis[start : start + len(part)] = part / np.float32(32768)
    return axis


def likeness(heard: NDArray[np.float32], part: NDArray[np.float32]) -> float:
    """The correlation of a part with where it is most like what was heard."""
    size = len(heard) + len(part)
    products = np.fft.irfft(np.fft.rfft(heard, size) * np.fft.rfft(part, size).conj(), size)
    start = int(products[: len(heard) - len(part)].argmax())
    return float(np.corrcoef(heard[start : start + len(part)], part)[0, 1])


# What is not undone: what plays and saves, what is only shown, and what opens a file, from which a change comes.
APART = {
    *("undo", "redo", "state-a", "state-b", "play", "record", "save-loop", "stage", "save", "load", "share"),
    *("preset-file", "help-button", "more", "draw", "midi", "midi-panel-button", "volume", "microphone"),
    *(f"{action}-{kind}" for action in ("choose", "clear") for kind in ("source", "timbre", "structure")),
    *(f"{kind}-file" for kind in ("source", "timbre", "structure")),
}
# Each control that can be used by itself, by what it is called here: an id, else its place in the page.
WALK = """() => {
  const label = (one) => one.dataset.control ?? one.ariaLabel ?? one.textContent;
  const name = (one) => one.id || [one.closest("[id]").id, label(one)].join(" ");
  const able = (one) => one.checkVisibility() && !one.disabled && !(one.type === "radio" && one.checked);
  const all = "button, input, select, textarea, [role=slider], output";
  const told = "#undo, #redo, #play, #stage, #plays, #loops, #plan-header";
  // Where the band ends while all loops, the server tells.
  const band = () => JSON.parse(sessionStorage.getItem("tickrt.page"))?.preset.band;
  const moved = (one) => one.closest("#band") ? band() : one.ariaValueText ?? one.ariaValueNow;
  const controls = () => [...document.querySelectorAll(all)];
  const walked = controls().filter((one) => one.closest("header, main") && one.tagName !== "OUTPUT" && able(one));
  window.walked = new Map(walked.map((one) => [name(one), one]));
  window.shown = () => JSON.stringify(controls().filter((one) => one.checkVisibility() && !one.matches(told))
    .map((one) => [name(one), one.value, one.checked, one.ariaPressed, moved(one)]));
  return [...window.walked.keys()];
}"""
USE = """(name) => {
  const one = walked.get(name);
  const tell = (...types) => types.forEach((type) => one.dispatchEvent(new Event(type, { bubbles: true })));
  const press = (key) => one.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const before = shown();
  const keys = ["PageUp", "PageDown", "ArrowUp", "ArrowDown"];
  if (one.role === "slider") keys.find((key) => (press(key), shown() !== before));
  else if (one.tagName === "SELECT") {
    one.selectedIndex = [...one.options].findIndex((option, i) => i !== one.selectedIndex && !option.disabled);
    tell("input", "change");
  } else if (one.tagName === "TEXTAREA" || ["text", "number"].includes(one.type)) {
    one.value = one.type === "number" ? String(Math.ceil((Number(one.min) || 0) + 1)) : "1";
    tell("input", "change");
  } else if (one.id === "tap") { press("Enter"); press("Enter"); }
  else one.click();
  return [before, shown()];
}"""


def test_every_control_that_changes_what_is_sent_is_undone(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url, viewport={"width": 1280, "height": 1800})
    button(page, "Model").click()
    page.wait_for_selector('[data-control^="adapters."]')
    page.wait_for_function("() => document.getElementById('words-d').textContent")
    names = [name for name in page.evaluate(WALK) if name.split(" ")[0] not in APART]
    assert len(names) > 40
    # What a preset and a reset change. It is undone in place of what is not in the history.
    page.get_by_role("spinbutton", name="tempo", exact=True).fill("100")
    page.keyboard.press("Enter")
    for name in names:
        before, after = page.evaluate(USE, name)
        assert after != before, name
        page.wait_for_selector("#status[data-status=live]")
        page.evaluate("document.getElementById('undo').click()")
        page.wait_for_selector("#status[data-status=live]")
        assert page.evaluate("shown()") == before, f"{name}: not in the history"
    assert page.inner_text("#messages") == ""
    assert {"set", "prompts", "band", "mute"} <= {message["type"] for message in traffic.sent}


def test_a_source_is_undone_and_used_again(server: Any, open_page: OpenPage, tmp_path: Path) -> None:
    page, traffic = opened(open_page, server.url)
    soundfile.write(tmp_path / "hum.wav", np.zeros((48000, 2), np.float32), 48000)
    page.set_input_files("#source-file", tmp_path / "hum.wav")
    page.get_by_text("hum.wav", exact=True).wait_for()
    used = traffic.of("source", traffic.sent)[-1]["id"]
    for name, source in (("Undo", None), ("Redo", used)):
        button(page, name).click()
        until(page, lambda source=source: traffic.of("source", traffic.sent)[-1]["id"] == source)
    page.get_by_text("hum.wav", exact=True).wait_for()
    page.get_by_role("button", name="Remove the source").click()
    button(page, "Undo").click()
    until(page, lambda: traffic.of("source", traffic.sent)[-1]["id"] == used)
