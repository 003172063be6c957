"""A second engine: Firefox plays, and its knobs turn. Skipped where there is no Firefox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.firefox import FirefoxPage, firefox_page, firefox_path
from helpers.page_player import INTERRUPTED, IS_HEARD, SYSTEM

pytestmark = pytest.mark.page

# WebDriver's codes of keys.
PAGE_UP, ARROW_RIGHT = "\ue00e", "\ue014"
VALUE = "(element) => Number(element.ariaValueNow)"


@pytest.fixture
def page(server: Any, tmp_path: Path) -> Iterator[FirefoxPage]:
    """The page in Firefox, connected to its server."""
    path = firefox_path()
    if path is None:
        pytest.skip("needs Firefox and a sound server (apt-get install firefox-esr pulseaudio)")
    with firefox_page(path, tmp_path) as page:
        page.open(server.url)
        page.wait_for("document.getElementById('status').dataset.status === 'live'")
        yield page
        assert page.errors == []


def test_it_plays_and_stops(page: FirefoxPage) -> None:
    page.click("button", "Play")
    page.wait_for(f"({IS_HEARD})()")
    page.wait_for("parseFloat(document.getElementById('clock').textContent.split(':')[1]) > 2")
    page.click("button", "Pause")
    page.wait_for("document.getElementById('status').textContent === 'stopped'")


def test_knobs_turn_by_key_and_by_drag_and_the_sound_follows(page: FirefoxPage) -> None:
    page.click("button", "Play")
    page.wait_for(f"({IS_HEARD})()")
    before = page.call(VALUE, "slider", "variation")
    page.press("slider", "variation", PAGE_UP)
    turned = page.call(VALUE, "slider", "variation")
    assert turned > before
    page.drag("slider", "variation", -40)
    dragged = page.call(VALUE, "slider", "variation")
    assert dragged > turned
    page.wait_for("document.getElementById('stat-full').textContent.endsWith('ms')")
    for _ in range(8):  # a slow drag is several steps
        if page.call(VALUE, "slider", "variation") > before:
            page.click("button", "Undo")
    assert page.call(VALUE, "slider", "variation") == before
    page.press("slider", "Blend of the prompts", ARROW_RIGHT)
    assert "B" in page.call("(element) => element.ariaValueText", "slider", "Blend of the prompts")


def test_it_goes_on_when_the_system_gives_the_sound_back(page: FirefoxPage, server: Any) -> None:
    page.prepare(SYSTEM)
    page.open(server.url)
    page.wait_for("document.getElementById('status').dataset.status === 'live'")
    page.click("button", "Play")
    page.wait_for(f"({IS_HEARD})()")
    page.evaluate("system.take()")
    page.wait_for(f"document.getElementById('status').textContent === '{INTERRUPTED}'")
    page.evaluate("system.give()")
    page.wait_for("document.getElementById('status').textContent.startsWith('resumed after')")
    page.wait_for(f"({IS_HEARD})()")
