"""The canvas: time and bars along it, layers and pitches beside it, and what is done with a layer."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.backends import FEW_VARIANTS
from helpers.page_player import play
from helpers.page_traffic import opened, until
from numpy.typing import NDArray

from runtime.config.deployment import Deployment

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]
LAYERS = ("melody", "arp", "pad", "bass", "drums")
SIZES: dict[str, Any] = {
    "sample_rate_hz": 48000, "hop_samples": 1920, "words": ("pads", "and", "bass"), "canvas_frames": 64
}  # fmt: skip
# A target is at least so large (WCAG 2.5.8).
LEAST_PIXELS = 24
# The picture of the stage as gray levels 0 to 255, row by row, one for each CSS pixel.
PICTURE = """() => {
  const screen = document.querySelector("#stage canvas");
  const [width, height] = [screen.clientWidth, screen.clientHeight];
  const small = new OffscreenCanvas(width, height).getContext("2d");
  small.drawImage(screen, 0, 0, width, height);
  const { data } = small.getImageData(0, 0, width, height);
  const gray = (i) => (data[4 * i] + data[4 * i + 1] + data[4 * i + 2]) / 3;
  return [width, Array.from({ length: width * height }, (_, i) => gray(i))];
}"""
FAKE_MIDI = """
const port = { id: "1", name: "keys", state: "connected", addEventListener: () => {}, onmidimessage: null };
navigator.requestMIDIAccess = async () =>
  ({ inputs: new Map([["1", port]]), outputs: new Map(), addEventListener() {} });
window.turnController = (number, value) => port.onmidimessage?.({ data: [0xb0, number, value], target: port });
"""


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def stage(page: Any) -> Any:
    return page.get_by_role("slider", name="Position on the canvas")


def picture(page: Any) -> NDArray[np.float64]:
    """The stage as gray levels `[height, width]`."""
    width, values = page.evaluate(PICTURE)
    return np.array(values).reshape(-1, width)


def lanes(page: Any) -> dict[str, slice]:
    """The rows of the stage's picture that are beside a layer's name."""
    top = stage(page).bounding_box()["y"]
    found = {}
    for lane in page.locator("#lanes > div").all():
        box = lane.bounding_box()
        found[lane.locator("span").first.inner_text()] = slice(
            round(box["y"] - top), round(box["y"] - top + box["height"])
        )
    return found


def recorded(page: Any, seconds: float) -> NDArray[np.float32]:
    """What is heard meanwhile, `[n, 2]`."""
    button(page, "Record").click()
    page.wait_for_timeout(seconds * 1000)
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("Record|Stop")).first.click()
    samples: NDArray[np.float32]
    samples, _ = soundfile.read(io.BytesIO(Path(download.value.path()).read_bytes()), dtype="float32")
    return samples


def is_high(samples: NDArray[np.float32]) -> bool:
    """Whether something is heard, and nothing below 250 Hz."""
    mono = samples.mean(1)
    power = np.abs(np.fft.rfft(mono)) ** 2
    hertz = np.fft.rfftfreq(len(mono), 1 / 48000)
    return bool(np.abs(mono).max() > 0.01 and power[(hertz > 30) & (hertz < 250)].sum() < 0.01 * power.sum())


def preset(page: Any) -> dict[str, Any]:
    with page.expect_download() as download:
        button(page, "Save").click()
    found: dict[str, Any] = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    return found


def is_pressed(page: Any, name: str) -> bool:
    return bool(button(page, name).get_attribute("aria-pressed") == "true")


@pytest.mark.parametrize(("width", "mode"), [(1280, "Loop"), (1280, "Extend"), (390, "Loop"), (390, "Extend")])
def test_every_layer_has_a_lane_that_can_be_read_and_hit(
    server: Any, open_page: OpenPage, width: int, mode: str
) -> None:
    page = open_page(server.url, viewport={"width": width, "height": 800})
    page.get_by_role("radio", name=mode).check(force=True)
    page.wait_for_selector("#status[data-status=live]")
    if mode == "Extend":
        page.get_by_role("list", name="Sections of the plan").wait_for()
    page.wait_for_timeout(1000)
    group = page.get_by_role("group", name="Layers", exact=True)
    assert tuple(lanes(page)) == LAYERS
    boxes = [button(page, f"{kind} {layer}").bounding_box() for layer in LAYERS for kind in ("Mute", "Solo")]
    assert len(boxes) == group.get_by_role("button").count()
    assert all(min(box["width"], box["height"]) >= LEAST_PIXELS for box in boxes)
    for one, other in zip(boxes[::2], boxes[1::2], strict=True):
        assert one["x"] + one["width"] <= other["x"]
    heights = [rows.stop - rows.start for rows in lanes(page).values()]
    assert min(heights) >= LEAST_PIXELS
    assert stage(page).bounding_box()["height"] >= max(rows.stop for rows in lanes(page).values()) - 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_muted_is_not_heard_and_solo_mutes_all_others(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    play(page)
    page.get_by_label("changes at the bar").uncheck()
    for layer in LAYERS:
        button(page, f"Mute {layer}").click()
    until(page, lambda: np.abs(recorded(page, 1.0)).max() < 1e-3)
    for _ in LAYERS:
        button(page, "Undo").click()
    assert not is_pressed(page, "Mute drums")
    until(page, lambda: np.abs(recorded(page, 3.0)).max() > 0.02)
    # The melody plays high: alone it has nothing of the bass.
    button(page, "Solo melody").click()
    until(page, lambda: is_high(recorded(page, 6.0)))
    # What is muted stays so, also alone.
    button(page, "Mute melody").click()
    until(page, lambda: np.abs(recorded(page, 1.0)).max() < 1e-3)
    assert page.inner_text("#messages") == ""


def test_mute_and_solo_are_undone_kept_and_shared(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)

    def is_told(*layers: str) -> None:
        until(page, lambda: traffic.of("mute", traffic.sent)[-1]["layers"] == sorted(layers))

    # By the keyboard.
    button(page, "Mute drums").focus()
    page.keyboard.press("Space")
    assert is_pressed(page, "Mute drums")
    is_told("drums")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert is_pressed(page, "Solo drums")
    is_told(*LAYERS)
    page.keyboard.press("Control+z")
    assert [is_pressed(page, f"{kind} drums") for kind in ("Mute", "Solo")] == [True, False]
    is_told("drums")
    page.keyboard.press("Control+z")
    assert not is_pressed(page, "Mute drums")
    is_told()
    button(page, "Redo").click()
    button(page, "Redo").click()
    assert [is_pressed(page, f"{kind} drums") for kind in ("Mute", "Solo")] == [True, True]
    saved = preset(page)
    assert (saved["mute"], saved["solo"]) == (["drums"], ["drums"])
    # Another session and a reload keep it, and so does the server.
    page.get_by_role("radio", name="Extend").check(force=True)
    page.wait_for_selector("#status[data-status=live]")
    until(page, lambda: traffic.of("open", traffic.sent)[-1].get("muted") == sorted(LAYERS))
    assert is_pressed(page, "Mute drums")
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    assert [is_pressed(page, f"{kind} drums") for kind in ("Mute", "Solo")] == [True, True]
    button(page, "Solo drums").click()
    is_told("drums")
    assert page.inner_text("#messages") == ""


def test_a_controller_mutes_a_layer(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, script=FAKE_MIDI)
    page.get_by_role("button", name="MIDI learn").click()
    page.get_by_role("button", name="MIDI learn", pressed=True).wait_for()
    button(page, "Mute drums").focus()
    page.evaluate("turnController(30, 127)")
    assert is_pressed(page, "Mute drums")
    page.get_by_role("button", name="MIDI learn").click()
    page.evaluate("turnController(30, 0)")
    assert not is_pressed(page, "Mute drums")


def test_bars_lie_along_the_canvas(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, color_scheme="dark", reduced_motion="reduce")
    page.get_by_role("spinbutton", name="tempo", exact=True).fill("120")
    page.keyboard.press("Tab")
    play(page)
    page.wait_for_function("() => /, bar 2/.test(document.querySelector('#stage').ariaValueText)")
    page.wait_for_timeout(700)
    seconds = float(stage(page).get_attribute("aria-valuemax"))
    image = picture(page)
    row = image[1]  # of the time axis, above its texts
    bar = 2.0 / seconds * image.shape[1]
    places = [round(bar * number) for number in range(1, 5)]
    at = float(stage(page).get_attribute("aria-valuenow")) / seconds * image.shape[1]
    places = [place for place in places if abs(place - at) > 60]
    assert len(places) >= 2
    for place in places:
        assert row[place - 4 : place + 5].max() > np.median(row) + 20, place
    assert re.fullmatch(r"[\d.]+ of 10\.0 seconds, bar \d", stage(page).get_attribute("aria-valuetext"))


def test_what_loops_is_shown_whole_and_in_bars_and_edges_snap_to_beats(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)  # 84 bpm: a bar is 2.86 s, the canvas 10.24 s.
    play(page)
    loops = page.get_by_role("status", name="What loops")
    loops.filter(has_text=re.compile(r"^loops 2 bars, 5\.7 s$")).wait_for()
    until(page, lambda: stage(page).get_attribute("aria-valuemax") == "5.7")
    bars = page.get_by_role("spinbutton", name="loop bars", exact=True)
    assert bars.get_attribute("placeholder") == "default: 2"
    start, end = (page.get_by_role("slider", name=f"{edge} of the loop band") for edge in ("Start", "End"))
    region = page.locator("#band").bounding_box()
    middles = [one.bounding_box()["x"] + one.bounding_box()["width"] / 2 - region["x"] for one in (start, end)]
    assert middles == pytest.approx([0, region["width"]], abs=2), "the band is as long as what loops"
    beat = 60 / 84
    end.press("ArrowLeft")
    assert float(end.get_attribute("aria-valuenow")) == pytest.approx(7 * beat, abs=0.05)
    loops.filter(has_text="1.8 bars: cuts a bar").wait_for()
    page.mouse.move(region["x"] + middles[0] + 2, region["y"] + 8)
    page.mouse.down()
    page.mouse.move(region["x"] + 0.29 * region["width"], region["y"] + 8, steps=4)
    page.mouse.up()
    assert float(start.get_attribute("aria-valuenow")) == pytest.approx(2 * beat, abs=0.05)
    for _ in range(2):
        button(page, "Undo").click()
    bars.fill("3")
    bars.press("Enter")
    loops.filter(has_text="loops 3 bars, 8.6 s").wait_for()
    bars.fill("")
    bars.press("Enter")
    page.get_by_role("combobox", name="Length of the canvas").select_option(label="2.6 s")
    loops.filter(has_text="cuts a bar").wait_for()


def test_it_says_which_prompt_plays_also_after_a_preset(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    plays = page.get_by_role("status", name="What is played")
    plays.filter(has_text=re.compile("^only A · ")).wait_for()
    button(page, "Clockwork").click()
    plays.filter(has_text=re.compile("^only B · .*124 bpm")).wait_for()
    page.get_by_role("slider", name="Blend of the prompts").press("ArrowLeft")
    plays.filter(has_text=re.compile("^A 5 %, B 95 % · ")).wait_for()


def test_a_picture_of_few_layers_shows_them_alone(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, color_scheme="dark")
    button(page, "Clockwork").click()  # Drums and bass.
    slider = page.get_by_role("slider", name="Blend of the prompts")
    slider.press("Home")
    play(page)

    def are_alone() -> bool:
        image = picture(page)
        # Without the names of keys at the left.
        light = {
            name: np.quantile(image[rows.start + 3 : rows.stop - 2, 40:], 0.9) for name, rows in lanes(page).items()
        }
        return bool(light["drums"] > 60 and max(light["arp"], light["pad"], light["melody"]) < 40)

    until(page, are_alone)


def test_what_a_model_does_not_have_is_not_drawn(
    serve: Callable[..., Any], built: Callable[..., Deployment], open_page: OpenPage
) -> None:
    page = open_page(serve(config=built(**SIZES, more=FEW_VARIANTS).path).url)
    assert not page.get_by_role("group", name="Layers", exact=True).is_visible()
    for _ in range(3):
        button(page, "Remove the last prompt").click()
    page.get_by_role("textbox", name="A", exact=True).fill("calm")  # Nothing says its tempo.
    page.wait_for_timeout(1000)
    play(page)
    page.wait_for_function("() => Number(document.querySelector('#stage').ariaValueNow) > 0.5")
    assert "bar" not in stage(page).get_attribute("aria-valuetext")
    assert page.get_by_role("button", name=re.compile("^(Mute|Solo) ")).count() == 0


def test_layers_that_cannot_be_told_apart_have_no_buttons(
    serve: Callable[..., Any], built: Callable[..., Deployment], open_page: OpenPage
) -> None:
    page = open_page(serve(config=built(**SIZES, notes=True, more=FEW_VARIANTS).path).url)
    group = page.get_by_role("group", name="Layers", exact=True)
    assert group.is_visible()
    assert group.get_by_role("button").count() == 0


def test_a_planned_lane_opens_its_section_at_the_layer(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    button(page, "Daybreak").click()
    page.wait_for_function("() => document.querySelectorAll('#sections button:enabled').length >= 3")
    play(page)
    page.wait_for_function("() => Number(document.querySelector('#stage').ariaValueNow) > 0.5")
    box = stage(page).bounding_box()
    rows = lanes(page)["bass"]
    assert rows.start >= 2 * LEAST_PIXELS * 0.8, "there is room for bars and the names of sections"
    page.mouse.click(box["x"] + 0.97 * box["width"], box["y"] + (rows.start + rows.stop) / 2)
    editor = page.get_by_role("form", name="Edit a section")
    editor.wait_for()
    assert page.evaluate("document.activeElement.value") == "bass"
    was = editor.get_by_role("checkbox", name="bass").is_checked()
    page.keyboard.press("Space")
    assert editor.get_by_role("checkbox", name="bass").is_checked() != was
    page.keyboard.press("Escape")
    # What is there to be played is played from.
    position = float(stage(page).get_attribute("aria-valuenow"))
    page.mouse.click(box["x"] + box["width"] / 3 - 20, box["y"] + (rows.start + rows.stop) / 2)
    page.wait_for_function("(was) => Number(document.querySelector('#stage').ariaValueNow) < was + 1", arg=position)
    assert not editor.is_visible()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious_where_layers_are_muted(server: Any, open_page: OpenPage, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(server.url, color_scheme=scheme)
    button(page, "Mute drums").click()
    button(page, "Solo bass").click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(400)
    found = axe.run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


def test_bars_of_a_plan_have_the_numbers_that_the_server_tells(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    numbers = page.evaluate("""async () => {
      const { Bars } = await import("./page/widgets/bars.js"), bars = new Bars();
      const beat = { sample: 48000 * 20, bpm: 120, beats: 4, bar: 0 };
      bars.tell({ beat, loop: null, canvas_position_s: 21, playhead_sample: 48000 * 21 }, 48000);
      const section = (start_s, more) => ({ start_s, end_s: start_s + 4, bars: 2, ...more });
      // Before the tempo changes, after it, and one that is only asked for.
      const sections = [section(12, { first_bar: 6 }), section(16, { first_bar: 0 }), section(20, {})];
      return bars.between(0, 30, sections).map(({ number }) => number);
    }""")
    assert numbers == [7, 8, 1, 2, 3, 4]
