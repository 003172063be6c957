"""Where things are on the page at three widths, and that the pad's colors are clear."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]
Box = dict[str, float]

# Of each row of things that wraps: how many stand side by side, line by line, those of a group each.
LINES = """() => [...document.querySelectorAll("header, header *, main *, footer, footer *")].flatMap((row) => {
  const style = getComputedStyle(row);
  if (style.display !== "flex" || style.flexWrap !== "wrap" || !row.checkVisibility()) return [];
  const boxes = [...row.children].map((item) => [item.getBoundingClientRect(), item.childElementCount])
    .filter(([box]) => box.width && box.height);
  const lines = [];
  for (const [box, size] of boxes) {
    const line = lines.find((one) => box.top < one.bottom && box.bottom > one.top);
    if (line) line.count += size || 1;
    else lines.push({ top: box.top, bottom: box.bottom, count: size || 1 });
  }
  return [[row.id || row.className || row.tagName, lines.map(({ count }) => count)]];
})"""
# Whether a message with this text is shown, whole, over nothing that can be read or used.
SHOWN_OVER_NOTHING = """(text) => {
  const message = [...document.querySelectorAll("#messages > *")].find((one) => one.checkVisibility());
  if (!message?.textContent.includes(text)) return false;
  const own = message.getBoundingClientRect();
  const covered = [...document.querySelectorAll(
    "button, input, select, textarea, [role=slider], [role=timer], .stats b, .stats span")].filter((item) => {
    if (item.closest("#messages") || !item.checkVisibility({ visibilityProperty: true })) return false;
    const box = item.getBoundingClientRect();
    return box.left < own.right && box.right > own.left && box.top < own.bottom && box.bottom > own.top;
  });
  return own.top >= 0 && own.bottom <= innerHeight && !covered.length;
}"""
# Messages stay until they are closed.
SLOW_MESSAGES = """const later = window.setTimeout;
window.setTimeout = (run, ms, ...more) => (ms >= 9000 ? 0 : later(run, ms, ...more));"""
# Closes the message with this text, where it is there still.
CLOSE = """(text) => [...document.querySelectorAll("#messages > *")].filter((one) => one.textContent.includes(text))
  .forEach((one) => one.querySelector("[aria-label='Close the message']").click())"""
# The colors of the pad at 21 x 21 places, and those of its corners.
PAD_COLORS = """async () => {
  const { blendColor, cornerColors } = await import("./page/theme.js");
  const { padWeights } = await import("./page/widgets/pad.js");
  const corners = cornerColors().slice(0, 4), places = Array.from({ length: 21 }, (_, i) => i / 20);
  return [places.flatMap((y) => places.map((x) => blendColor(corners, padWeights(x, y)))), corners];
}"""


def opened(open_page: OpenPage, server: Any, width: int, height: int, **options: Any) -> Any:
    page = open_page(server.url, viewport={"width": width, "height": height}, **options)
    page.wait_for_selector('[data-control^="adapters."]')
    return page


def box_of(found: Any) -> Box:
    box: Box = found.bounding_box()
    return box


def test_sources_and_figures_are_above_the_fold(server: Any, open_page: OpenPage) -> None:
    page = opened(open_page, server, 1280, 800)
    shown = [page.get_by_role("button", name="Choose a file for the structure"), *page.locator(".stats b").all()]
    assert len(shown) == 8
    for one in shown:
        box = box_of(one)
        assert box["y"] + box["height"] <= 800
    assert page.evaluate("document.documentElement.scrollHeight") <= 800


def test_the_model_s_controls_do_not_stretch_the_pad(server: Any, open_page: OpenPage) -> None:
    page = opened(open_page, server, 1280, 800)
    page.wait_for_function("() => document.getElementById('words-d').textContent.includes('bpm')")
    pad = page.locator("#pad")
    before = pad.evaluate("(pad) => [pad.offsetWidth, pad.offsetHeight]")
    page.get_by_role("button", name="Model", exact=True).click()
    page.get_by_role("slider", name="guidance", exact=True).wait_for()
    assert pad.evaluate("(pad) => [pad.offsetWidth, pad.offsetHeight]") == before


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_alone_in_its_line(server: Any, open_page: OpenPage, width: int) -> None:
    page = opened(open_page, server, width, 900)
    page.get_by_role("button", name="Keep this seed as a take").click()
    found = page.evaluate(LINES)
    assert "presets" in {name for name, _ in found}
    assert [(name, lines) for name, lines in found if len(lines) > 1 and lines[-1] == 1 and lines[0] > 1] == []


# What can be used and is cut at a side of the page, or cannot be scrolled to and pressed.
OUT_OF_REACH = """() => [...document.querySelectorAll("button, input, select, textarea, [role=slider], summary, a")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && one.offsetWidth)
  .filter((one) => {
    one.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
    const box = one.getBoundingClientRect();
    if (box.left < -0.5 || box.right > document.documentElement.clientWidth + 0.5) return true;
    const top = document.elementFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
    return !top || !(one.contains(top) || top.contains(one) || one.closest("label")?.contains(top));
  })
  .map((one) => `${one.id || one.ariaLabel || one.textContent.trim()} ${one.getBoundingClientRect().left}`)"""


CUT_TEXTS = """() => [...document.querySelectorAll("*")]
  .filter((one) => getComputedStyle(one).textOverflow === "ellipsis" && one.scrollWidth > one.clientWidth)
  .map((one) => one.textContent)"""
# What can be used.
USABLE = """() => [...document.querySelectorAll("button, input, select, textarea, [role=slider]")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && one.offsetWidth)
  .map((one) => one.id || one.ariaLabel || one.textContent.trim()).sort()"""


@pytest.mark.parametrize(("width", "height", "zoom"), [(1024, 768, 1), (640, 400, 2), (512, 384, 2)])
def test_nothing_is_cut_on_a_small_screen_and_enlarged(
    server: Any, open_page: OpenPage, width: int, height: int, zoom: int, tmp_path: Path
) -> None:
    page = opened(open_page, server, width, height, device_scale_factor=zoom)
    page.wait_for_function("() => document.getElementById('words-d').textContent.includes('bpm')")
    page.get_by_role("button", name="Model", exact=True).click()
    page.get_by_role("slider", name="guidance", exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OUT_OF_REACH) == []
    assert page.evaluate(CUT_TEXTS) == []
    names = page.evaluate(USABLE)
    page.set_viewport_size({"width": 1280, "height": 800})
    assert names == page.evaluate(USABLE)


def test_a_phone_has_play_pad_and_music_before_the_canvas(server: Any, open_page: OpenPage) -> None:
    page = opened(open_page, server, 390, 844)
    play = box_of(page.get_by_role("button", name="Play", exact=True))
    assert play["y"] + play["height"] <= 844
    tops = [box_of(page.locator(one))["y"] for one in ("#pad", "[aria-label=Music]", "[aria-label=Canvas]")]
    assert tops == sorted(tops)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # Wherever the page is scrolled to, play can be pressed.
    on_play = """([share, x, y]) => {
      scrollTo(0, share * document.documentElement.scrollHeight);
      return document.elementFromPoint(x, y).closest("button")?.id;
    }"""
    middle = [play["x"] + play["width"] / 2, play["y"] + play["height"] / 2]
    assert {page.evaluate(on_play, [i / 40, *middle]) for i in range(41)} == {"play"}


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (800, 900), (390, 844)])
def test_messages_cover_nothing_and_move_nothing(
    server: Any, open_page: OpenPage, tmp_path: Path, width: int, height: int
) -> None:
    page = opened(open_page, server, width, height, script=SLOW_MESSAGES)
    page.wait_for_function("() => document.getElementById('words-d').textContent.includes('bpm')")
    places = """() => [...document.querySelectorAll("main > :not(.deck), main > :not(.deck) *")]
      .map((one) => one.getBoundingClientRect().top - document.body.getBoundingClientRect().top)"""
    before = page.evaluate(places)
    damaged = tmp_path / "preset.json"
    damaged.write_text("{", encoding="utf-8")
    page.set_input_files("#preset-file", damaged)
    page.get_by_role("alert").get_by_text("This is not a preset").wait_for()
    page.get_by_role("button", name="Share").click()
    assert page.evaluate(places) == before
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    # One after the other.
    page.wait_for_function(SHOWN_OVER_NOTHING, arg="This is not a preset")
    page.evaluate(CLOSE, "This is not a preset")
    page.wait_for_function(SHOWN_OVER_NOTHING, arg="The address holds this preset")
    page.evaluate(CLOSE, "The address holds this preset")
    assert page.inner_text("#messages") == ""
    assert page.locator("#save-loop").is_visible()


def linear(colors: Any) -> NDArray[np.float64]:
    """Light of sRGB colors of 0 to 255, [..., 3]."""
    shares = np.array(colors, float) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def chroma(colors: Any) -> NDArray[np.float64]:
    """How vivid colors are, by CIELAB."""
    xyz = linear(colors) @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    ratios = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.hypot(500 * (ratios[..., 0] - ratios[..., 1]), 200 * (ratios[..., 1] - ratios[..., 2]))


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_pad_is_nowhere_gray_and_what_is_written_on_its_color_is_readable(
    server: Any, open_page: OpenPage, scheme: str
) -> None:
    page = open_page(server.url, color_scheme=scheme)
    colors, corners = page.evaluate(PAD_COLORS)
    for place, corner in zip((0, 20, 420, 440), corners, strict=True):
        assert colors[place] == pytest.approx(corner, abs=2)
    assert chroma(colors).min() > 0.6 * chroma(corners).min()
    written = page.evaluate("getComputedStyle(document.querySelector('.play')).color")
    written = [float(part) for part in written.removeprefix("rgb(").removesuffix(")").split(",")]
    weights = np.array([0.2126, 0.7152, 0.0722])
    lights = linear([written, *itertools.chain(colors, corners)]) @ weights + 0.05
    assert np.maximum(lights[1:] / lights[0], lights[0] / lights[1:]).min() >= 4.5
