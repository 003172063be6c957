"""What the page says of what is heard, what a reload keeps, and its help."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.page_player import IS_HEARD, play, wait_for_status

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]
Serve = Callable[..., Any]
LOST = ("WebSocket connection", "ERR_CONNECTION", "Failed to load resource")


def clock(page: Any) -> str:
    text: str = page.get_by_role("timer", name="Played").inner_text()
    return text


def test_it_says_what_is_heard_when_the_server_is_gone_and_back(serve: Serve, open_page: OpenPage) -> None:
    server = serve()
    page = open_page(server.url, allowed=LOST)
    wait_for_status(page, "^ready$")
    play(page)
    wait_for_status(page, "^live$")
    page.get_by_role("button", name="Pause", exact=True).wait_for()
    page.wait_for_function("() => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > 1")
    server.kill()
    page.get_by_role("button", name="Stop waiting", exact=True).wait_for()
    wait_for_status(page, "reconnecting")
    stopped = clock(page)
    page.wait_for_function(f"() => !({IS_HEARD})()")
    page.wait_for_timeout(1000)
    assert clock(page) == stopped
    server.start()
    wait_for_status(page, r"^resumed after \d+\.\d s$")
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_for_status(page, "^stopped$")
    assert page.inner_text("#messages") == ""


def test_a_reload_keeps_prompts_controls_and_the_session(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    ready: list[dict[str, Any]] = []

    def note(payload: Any) -> None:
        if isinstance(payload, str) and '"ready"' in payload:
            ready.append(json.loads(payload))

    page.on("websocket", lambda socket: socket.on("framereceived", note))
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    play(page)
    page.get_by_role("textbox", name="B", exact=True).fill("calm choir pads, D major, 90 bpm")
    page.get_by_role("slider", name="Blend of the prompts").press("ArrowRight")
    page.get_by_role("slider", name="variation").press("PageUp")
    page.get_by_role("slider", name="density").press("ArrowUp")
    page.get_by_role("button", name="Keep this seed as a take").click()
    page.wait_for_function("() => document.getElementById('words-b').textContent.includes('D major')")

    def shown() -> list[Any]:
        texts = [page.locator(".prompt textarea").nth(i).input_value() for i in range(4)]
        knobs = [
            page.get_by_role("slider", name=name).get_attribute("aria-valuetext") for name in ("variation", "density")
        ]
        pad = page.get_by_role("slider", name="Blend of the prompts").get_attribute("aria-valuetext")
        return [*texts, *knobs, pad, page.input_value("#seed"), page.locator("#takes option").count()]

    before, played = shown(), clock(page)
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    assert shown() == before
    assert clock(page) >= played
    assert [one["session"] for one in ready] == [ready[0]["session"]] * 2
    assert ready[-1]["resumed"]
    page.wait_for_function(IS_HEARD)  # it goes on where the browser lets it
    page.get_by_role("button", name="Pause", exact=True).wait_for()
    page.get_by_role("button", name="Undo", exact=True).click()
    assert not page.is_visible("#takes")
    page.get_by_role("button", name="Redo", exact=True).click()
    assert shown() == before
    # What is changed now counts on: the server takes it.
    page.get_by_role("combobox", name="key", exact=True).select_option("E minor")
    page.wait_for_function("() => document.getElementById('words-b').textContent.includes('E minor')")
    assert page.inner_text("#messages") == ""


# A browser that lets a page sound only after a touch, as those of people do.
TOUCH_FIRST = """
let isTouched = false;
addEventListener("click", () => (isTouched = true), { capture: true });
window.AudioContext = class extends AudioContext {
  constructor(options) { super(options); if (!isTouched) this.suspend(); }
  async resume() { return isTouched ? super.resume() : new Promise(() => {}); }
};
"""


def test_a_reload_asks_for_a_touch_where_the_browser_does_and_goes_on(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, script=TOUCH_FIRST)
    play(page)
    page.wait_for_function("() => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > 1")
    page.reload()
    wait_for_status(page, "^touch to go on$")
    stopped = clock(page)
    assert float(stopped.split(":")[1]) > 1
    assert not page.is_visible("#hint")
    page.get_by_role("button", name="Stop waiting", exact=True).click()
    page.wait_for_function(IS_HEARD)
    wait_for_status(page, "^(live|resumed.*)$")
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_for_status(page, "^stopped$")
    page.reload()
    wait_for_status(page, "^stopped$")
    page.get_by_role("button", name="Play", exact=True).wait_for()
    assert clock(page) > stopped
    assert page.inner_text("#messages") == ""


def test_a_reload_after_its_session_ended_begins_a_new_one_as_it_was(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("slider", name="variation").press("PageUp")
    value = page.get_by_role("slider", name="variation").get_attribute("aria-valuenow")
    sessions = f"{server.url}v1/sessions"
    page.goto("about:blank")
    for card in httpx.get(sessions).json()["data"]:
        httpx.delete(f"{sessions}/{card['id']}")
    page.goto(server.url)
    page.wait_for_selector("#status[data-status=live]")
    assert page.get_by_role("slider", name="variation").get_attribute("aria-valuenow") == value
    assert page.inner_text("#messages") == ""


def test_help_lists_keys_and_gestures(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    help_ = page.get_by_role("dialog", name="Keys and gestures")
    page.keyboard.press("?")
    assert "Ctrl+Shift+Z" in help_.inner_text()
    page.keyboard.press("Escape")
    assert help_.count() == 0
    page.get_by_role("textbox", name="A", exact=True).press("?")
    assert help_.count() == 0
    page.get_by_role("button", name="Help").click()
    help_.get_by_role("button", name="Close").click()
    assert help_.count() == 0
