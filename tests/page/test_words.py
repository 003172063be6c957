"""Words that the model does not know, marked in the prompt's text, and those that are offered in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.page_player import play

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]

TEXT = "calm pads, yodel trio, drams, A minor, 92 bpm"
# Where a marked word is drawn, and how far its copy is from the word in the text field: both have the same lines.
OFFSET = """() => {
  const field = document.getElementById("prompt-a"), copy = field.previousElementSibling;
  const [own, other] = [field, copy].map((one) => getComputedStyle(one));
  const same = ["fontSize", "fontFamily", "lineHeight", "letterSpacing", "paddingTop", "paddingLeft", "paddingRight"]
    .every((name) => own[name] === other[name]);
  const [a, b] = [field, copy].map((one) => one.getBoundingClientRect());
  const [right, down] = [a.left + field.clientLeft - b.left, a.top + field.clientTop - b.top];
  return [same, right, down, field.clientWidth - copy.clientWidth, field.scrollHeight - copy.scrollHeight];
}"""


def prompt(page: Any) -> Any:
    return page.get_by_role("textbox", name="A", exact=True)


def marked(page: Any) -> list[str]:
    texts: list[str] = page.locator("#prompt-a").locator("xpath=..").locator("mark").all_inner_texts()
    return texts


def wait_for_marks(page: Any, *words: str) -> None:
    page.wait_for_function(
        "(words) => [...document.querySelectorAll('.prompt-a mark')].map((one) => one.textContent).join() === words",
        arg=",".join(words),
    )


def put_caret(page: Any, word: str) -> None:
    """Click on a word of the text, as it is drawn."""
    box = page.locator(".prompt-a mark", has_text=word).bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_unknown_words_are_marked_in_the_text_and_described(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    prompt(page).fill(TEXT)
    wait_for_marks(page, "yodel trio", "drams")
    assert page.evaluate(OFFSET) == [True, 0, 0, 0, 0]
    described = prompt(page).get_attribute("aria-describedby")
    assert page.inner_text(f"#{described}").startswith("not understood: yodel trio, drams")
    # What is typed now is not marked before the server has said so; what stays is.
    prompt(page).fill("drams and dramsolo, drums")
    assert marked(page) == ["drams"]
    prompt(page).fill("calm pads")
    assert marked(page) == []
    # A text that is longer than its field scrolls with its marks.
    prompt(page).fill("calm pads, " * 20 + "drams")
    wait_for_marks(page, "drams")
    prompt(page).press("ControlOrMeta+End")
    page.wait_for_function("() => document.getElementById('prompt-a').scrollTop > 0")
    page.wait_for_function(
        "() => document.querySelector('.prompt-a .marks').scrollTop === document.getElementById('prompt-a').scrollTop"
    )
    assert page.evaluate(OFFSET) == [True, 0, 0, 0, 0]


def test_a_click_on_a_marked_word_offers_near_ones_and_the_choice_is_undone(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    prompt(page).fill(TEXT)
    wait_for_marks(page, "yodel trio", "drams")
    put_caret(page, "drams")
    offered = page.get_by_role("listbox", name="Words like drams").get_by_role("option")
    offered.get_by_text("drums", exact=True).click()
    assert prompt(page).input_value() == TEXT.replace("drams", "drums")
    wait_for_marks(page, "yodel trio")
    page.get_by_role("button", name="Undo").click()
    assert prompt(page).input_value() == TEXT
    wait_for_marks(page, "yodel trio", "drams")
    page.get_by_role("button", name="Redo").click()
    assert prompt(page).input_value() == TEXT.replace("drams", "drums")


def test_near_words_are_offered_by_keyboard(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    prompt(page).fill("drams")
    wait_for_marks(page, "drams")
    offered = page.get_by_role("listbox", name="Words like drams").get_by_role("option")
    prompt(page).press("Alt+ArrowDown")
    offered.first.wait_for()
    chosen = prompt(page).get_attribute("aria-activedescendant")
    assert page.locator(f"#{chosen}").get_attribute("aria-selected") == "true"
    prompt(page).press("Escape")
    assert offered.count() == 0
    prompt(page).press("Alt+ArrowDown")
    for _ in range(offered.count()):  # and back to the first one
        prompt(page).press("ArrowDown")
    word = page.locator("[role=option][aria-selected=true]").inner_text()
    prompt(page).press("Enter")
    assert prompt(page).input_value() == word
    wait_for_marks(page)
    page.wait_for_function("(word) => document.getElementById('words-a').textContent.startsWith(word)", arg=word[:4])


def test_one_line_says_what_is_played_and_follows_the_pad(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    prompt(page).fill("calm pads, rock, A minor, 92 bpm")
    page.get_by_role("textbox", name="D", exact=True).fill("techno drums, D minor, 130 bpm")
    plays = page.get_by_role("status", name="What is played")
    puck = page.get_by_role("slider", name="Blend of the prompts")

    def wait_for_played(text: str) -> None:
        plays.filter(has_text=text).wait_for()

    puck.press("Home")
    wait_for_played(" · rock · 92 bpm · A minor")
    page.wait_for_function("() => document.getElementById('words-d').textContent.includes('130 bpm')")
    puck.press("End")
    wait_for_played(" · techno · 130 bpm · D minor")
    assert "rock" not in plays.inner_text()
    play(page)
    page.get_by_role("combobox", name="key", exact=True).select_option("E minor")
    wait_for_played("E minor")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious_where_words_are_marked(server: Any, open_page: OpenPage, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(server.url, color_scheme=scheme)
    prompt(page).fill(TEXT)
    wait_for_marks(page, "yodel trio", "drams")
    page.get_by_role("button", name="Share").click()
    put_caret(page, "drams")
    page.get_by_role("listbox", name="Words like drams").wait_for()
    found = axe.run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
