"""The plan of a session on the page: its sections are listed and drawn, and edited before they are heard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.backends import FEW_VARIANTS
from helpers.page_traffic import Traffic, until

from runtime.config.deployment import Deployment

pytestmark = pytest.mark.page

SIZES: dict[str, Any] = {
    "sample_rate_hz": 48000, "hop_samples": 1920, "words": ("pads", "and", "bass"), "canvas_frames": 64
}  # fmt: skip
# The plan of this one begins with short sections.
SEED = "3"
# The whitest pixel near a place (a share of the width) half way down the picture, 0 to 255.
WHITEST = """(place) => {
  const canvas = document.querySelector("#stage canvas");
  const [x, y] = [Math.round(place * canvas.width) - 1, canvas.height / 2];
  const { data } = canvas.getContext("2d").getImageData(x, y, 3, 1);
  return Math.max(...[0, 4, 8].map((i) => Math.min(...data.slice(i, i + 3))));
}"""


def sections(traffic: Traffic) -> list[dict[str, Any]]:
    """Of the newest plan."""
    found: list[dict[str, Any]] = traffic.of("plan")[-1]["sections"]
    return found


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def page(
    serve: Callable[..., Any], built: Callable[..., Deployment], open_page: Callable[..., Any], traffic: Traffic
) -> Any:
    """The page of a tiny model with a planner, in mode extend, with the plan of its session."""
    planner = {"capacity": 1024, "plan": True}
    server = serve(built(**SIZES, planner=planner, conditions=True, more=FEW_VARIANTS).path)
    page = open_page(server.url, color_scheme="dark")
    assert not page.is_visible("#plan-field")
    page.fill("#seed", SEED)
    page.press("#seed", "Enter")
    traffic.listen(page)
    page.get_by_text("Extend", exact=True).click()
    page.wait_for_function("() => document.querySelectorAll('#sections button:enabled').length >= 2")
    plans = 0
    while plans != len(traffic.of("plan")):  # until no more is planned ahead
        plans = len(traffic.of("plan"))
        page.wait_for_timeout(1000)
    return page


def buttons(page: Any) -> list[str]:
    return [text.replace("\n", " ") for text in page.locator("#sections button").all_inner_texts()]


def texts(sections: list[dict[str, Any]]) -> list[str]:
    """What the buttons of these sections say."""
    bars = ["1 bar" if one["bars"] == 1 else f"{one['bars']} bars" for one in sections]
    return [f"{one['kind']} {bars[i]} {', '.join(one['layers'])}" for i, one in enumerate(sections)]


def edit_last(page: Any) -> None:
    """Open the editor of the last section, by the keyboard."""
    page.locator("#sections button").last.press("Enter")
    page.wait_for_selector("#section:not([hidden])")
    assert page.evaluate("document.activeElement.id") == "section-kind"


def test_sections_are_listed_and_drawn(page: Any, traffic: Traffic) -> None:
    until(page, lambda: buttons(page) == texts(sections(traffic)))
    header = traffic.of("plan")[-1]["header"]
    assert f"{header['bpm']:g} bpm" in page.inner_text("#plan-header")
    length = traffic.of("ready")[-1]["canvas"]["seconds"]
    ahead = [one["start_s"] for one in sections(traffic) if 0 < one["start_s"] < 1.9 * length]
    assert ahead
    for start_s in ahead:
        place = (start_s + length) / (3 * length)
        assert page.evaluate(WHITEST, place) == 255
        assert page.evaluate(WHITEST, place + 0.01) < 255
    assert page.locator("#sections button").first.get_attribute("aria-current") == "true"


def test_the_section_that_plays_is_marked_and_cannot_be_edited(page: Any) -> None:
    page.click("#play")
    page.wait_for_function("() => document.querySelectorAll('#sections button')[1].ariaCurrent === 'true'")
    first, second = page.locator("#sections button").all()[:2]
    assert first.is_disabled()
    assert second.is_disabled()
    kind = second.locator("b").inner_text()
    page.wait_for_function("(kind) => document.querySelector('#stage').ariaValueText.endsWith(kind)", arg=kind)


def test_a_section_is_changed(page: Any, traffic: Traffic) -> None:
    before = sections(traffic)
    edit_last(page)
    page.select_option("#section-kind", "chorus")
    for layer in before[-1]["layers"]:
        page.get_by_role("checkbox", name=layer).uncheck(force=True)
    page.get_by_role("checkbox", name="bass").check(force=True)
    page.select_option("#section-bars", "2")
    page.get_by_role("button", name="Change").press("Enter")
    until(page, lambda: texts(sections(traffic))[len(before) - 1 :][:1] == ["chorus 2 bars bass"])
    edit = traffic.of("set_plan", traffic.sent)[-1]
    assert edit["start_s"] == before[-1]["start_s"]
    assert edit["sections"] == [{"kind": "chorus", "layers": ["bass"], "bars": 2}]
    until(page, lambda: buttons(page) == texts(sections(traffic)))
    assert buttons(page)[: len(before) - 1] == texts(before[:-1])
    page.keyboard.press("Escape")
    assert not page.is_visible("#section")
    assert page.inner_text("#messages") == ""


def test_a_section_is_put_before_another_and_deleted(page: Any, traffic: Traffic) -> None:
    before = sections(traffic)
    edit_last(page)
    page.select_option("#section-kind", "break")
    page.click("#section-insert")
    until(page, lambda: len(sections(traffic)) > len(before))
    inserted, moved = traffic.of("set_plan", traffic.sent)[-1]["sections"]
    assert (inserted["kind"], texts([moved])) == ("break", texts(before[-1:]))
    until(page, lambda: buttons(page) == texts(sections(traffic)))
    assert buttons(page)[len(before) - 1 :][:2] == texts([inserted, moved])
    page.click("#section-delete")
    until(page, lambda: traffic.of("set_plan", traffic.sent)[-1]["sections"][:1] == [moved])
    until(page, lambda: texts(sections(traffic))[len(before) - 1 :][:1] == texts([moved]))
    until(page, lambda: buttons(page) == texts(sections(traffic)))
    assert not page.is_visible("#section")


def test_edits_are_undone_and_done_again_also_at_the_server(page: Any, traffic: Traffic) -> None:
    place, made = next((i, one) for i, one in enumerate(sections(traffic)) if i and one["codes"] and one["layers"][1:])

    def press(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).press("Enter")

    def choose_another(field: str) -> None:
        options = page.locator(f"{field} option").all_inner_texts()
        page.select_option(field, next(one for one in options if one != page.input_value(field)))

    def silence() -> None:
        page.locator("#section-codes button").first.press("Enter")

    def rename() -> None:
        choose_another("#section-kind")
        press("Change")

    def change_bars() -> None:
        choose_another("#section-bars")
        press("Change")

    def insert() -> None:
        choose_another("#section-kind")
        press("Insert before")

    def delete() -> None:
        press("Delete")

    before = buttons(page)[place:]
    for edit in (silence, rename, change_bars, insert, delete):
        page.locator("#sections button").nth(place).press("Enter")
        edit()
        page.keyboard.press("Escape")
        after = buttons(page)[place:]
        assert after[: len(before)] != before[: len(after)], edit.__name__
        for name, row in (("Undo", before), ("Redo", after), ("Undo", before)):
            press(name)
            assert buttons(page)[place:][: len(row)] == row, edit.__name__
            told = traffic.of("set_plan", traffic.sent)[-1]
            assert texts(told["sections"])[: len(row)] == row, edit.__name__
        assert page.is_checked("#mode-extend")
    page.click("#play")

    def back() -> Any:
        return next(one for one in sections(traffic) if one["start_s"] == made["start_s"])

    until(page, lambda: back()["codes"])
    assert (texts([back()]), back()["codes"]) == (before[:1], made["codes"])
    assert page.inner_text("#messages") == ""


def by_layer(section: dict[str, Any], choices: dict[str, Any]) -> list[list[int]]:
    """A section's codes as digits, layer by layer."""
    size = choices["group_size"]
    return [[code // size**row % size for code in section["codes"]] for row in range(len(choices["layers"]))]


def test_a_layer_is_silenced_and_restored_by_the_keyboard_while_others_stay_as_written(
    page: Any, traffic: Traffic
) -> None:
    choices = traffic.of("ready")[-1]["plan"]
    place = next(i for i, one in enumerate(sections(traffic)) if i and len(one["layers"]) == 2 and one["codes"])
    before = sections(traffic)[place]
    page.locator("#sections button").nth(place).press("Enter")
    group = page.get_by_role("group", name="Layers as they are written")
    drums, bass = (group.get_by_role("button", name=name) for name in choices["layers"])
    drums.press("Enter")
    assert [each.get_attribute("aria-pressed") for each in (drums, bass)] == ["false", "true"]
    assert bass.get_attribute("aria-disabled") == "true", "a section has a layer at least"
    until(page, lambda: page.inner_text("#section-note") == "planned")
    until(page, lambda: sections(traffic)[place]["layers"] == ["bass"] and sections(traffic)[place]["codes"])
    silenced, written = by_layer(sections(traffic)[place], choices), by_layer(before, choices)
    assert silenced[1] == written[1]
    assert set(silenced[0]) == {choices["silent"][0]} != set(written[0])
    bass.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "bass"
    assert traffic.of("set_plan", traffic.sent)[-1]["codes"] == sections(traffic)[place]["codes"]
    drums.press("Space")
    until(page, lambda: sections(traffic)[place:] and sections(traffic)[place]["codes"] == before["codes"])
    assert texts(sections(traffic))[place] == texts([before])[0]
    assert page.inner_text("#messages") == ""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_editors_last_button_is_not_covered(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    edit_last(page)
    page.wait_for_function("() => scrollY === window.lastY || void (window.lastY = scrollY)")
    for name in ("Change", "Close"):
        box = page.get_by_role("button", name=name, exact=True).bounding_box()
        middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        assert page.evaluate("([x, y]) => document.elementFromPoint(x, y)?.textContent", middle) == name


def test_a_refused_edit_is_explained_and_the_plan_stays(page: Any, traffic: Traffic) -> None:
    before = buttons(page)
    edit_last(page)
    layers = page.locator("#section-layers :checked").count()
    for box in page.locator("#section-layers :checked").all():
        box.uncheck(force=True)
    page.get_by_role("button", name="Change").click()
    page.get_by_role("alert").get_by_text("layers").wait_for()
    assert buttons(page) == before == texts(sections(traffic))
    assert page.locator("#section-layers :checked").count() == layers > 0


def test_a_plan_is_turned_off_and_on(page: Any, traffic: Traffic) -> None:
    page.uncheck("#plan")
    page.wait_for_selector("#sections", state="hidden")
    until(page, lambda: traffic.of("open", traffic.sent)[-1].get("plan") is False)
    page.wait_for_selector("#status[data-status=live]")
    assert page.is_visible("#plan-field")
    page.check("#plan")
    page.wait_for_selector("#sections button")
    assert "plan" not in traffic.of("open", traffic.sent)[-1]
    page.get_by_text("Loop", exact=True).click()
    page.wait_for_selector("#plan-field", state="hidden")
    assert page.inner_text("#messages") == ""


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(page: Any, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.set_viewport_size({"width": width, "height": 844})
    edit_last(page)
    found = axe.run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
