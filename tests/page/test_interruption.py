"""The system takes the sound away (a call, sleep, a device that is unplugged): the page says so, and goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers.page_player import INTERRUPTED, IS_HEARD, SYSTEM, play, wait_for_status

pytestmark = pytest.mark.page

OpenPage = Callable[..., Any]


def clock_s(page: Any) -> float:
    minutes, seconds = page.get_by_role("timer", name="Played").inner_text().split(":")
    return 60 * float(minutes) + float(seconds)


def taken(page: Any) -> float:
    """The system has taken the sound, and the page says so; returns what the clock says then."""
    wait_for_status(page, "^live$")
    page.evaluate("system.take()")
    wait_for_status(page, f"^{INTERRUPTED}$")
    page.wait_for_timeout(200)  # its last report
    return clock_s(page)


@pytest.mark.parametrize("is_silent", [False, True], ids=["told", "silent"])
def test_it_says_so_the_clock_stands_and_it_goes_on_by_itself(
    server: Any, open_page: OpenPage, is_silent: bool
) -> None:
    page = open_page(server.url, script=SYSTEM)
    types: list[str] = []

    def note(payload: Any) -> None:
        if isinstance(payload, str):
            types.append(json.loads(payload)["type"])

    page.on("websocket", lambda socket: socket.on("framesent", note))
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    play(page)
    page.evaluate("(isSilent) => (system.isSilent = isSilent)", is_silent)
    before_s = taken(page)
    page.get_by_role("button", name="Stop waiting", exact=True).wait_for()
    page.wait_for_timeout(2000)
    assert clock_s(page) == before_s
    since = types[types.index("pause") :]
    assert since.count("ack") <= 2, "the last reports"
    assert "play" not in since, "nothing is generated meanwhile"
    page.evaluate("system.give()")
    wait_for_status(page, r"^resumed after \d+\.\d s$")
    assert [item for item in types if item in ("play", "pause")][-1] == "play"
    page.wait_for_function(IS_HEARD)
    page.wait_for_function(
        "(before) => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > before + 1", arg=before_s
    )
    assert page.evaluate("contexts.length") == 1
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_for_status(page, "^stopped$")


@pytest.mark.parametrize("how", ["key", "button", "canvas"])
def test_it_goes_on_at_the_first_touch_which_does_nothing_else(server: Any, open_page: OpenPage, how: str) -> None:
    page = open_page(server.url, script=SYSTEM)
    play(page)
    page.evaluate("system.asksForTouch = true")
    taken(page)
    page.evaluate("system.give()")
    page.wait_for_timeout(1500)
    wait_for_status(page, f"^{INTERRUPTED}$")
    if how == "key":
        page.keyboard.press("Space")
    elif how == "button":
        page.click("#play")
    else:
        page.click("header, #status")
    wait_for_status(page, r"^resumed after \d+\.\d s$")
    assert page.get_attribute("#play", "aria-pressed") == "true"


def test_a_device_that_never_comes_back_is_replaced(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, script=SYSTEM)
    play(page)
    page.evaluate("system.isSilent = true")
    before_s = taken(page)
    page.wait_for_function("() => contexts.length === 2")
    page.evaluate("system.isSilent = false")
    page.wait_for_function(IS_HEARD)
    page.wait_for_function(
        "(before) => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > before + 1", arg=before_s
    )
    assert page.evaluate("contexts[0].state") == "closed"
    assert page.inner_text("#messages") == ""


def test_a_page_that_was_frozen_goes_on(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    play(page)
    wait_for_status(page, "^live$")
    before_s = clock_s(page)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    page.context.new_page().wait_for_timeout(15_000)
    devtools.send("Page.setWebLifecycleState", {"state": "active"})
    wait_for_status(page, "^(live|resumed after .*)$")
    page.wait_for_function(
        "(before) => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > before + 3", arg=before_s
    )


# Sockets that are open and on which nothing comes or goes from `sleep.begin()` on, as after a sleep in another network.
SLEEP = """
const sleep = (window.sleep = { asleep: new Set(), sockets: [] });
const Socket = window.WebSocket;
window.WebSocket = class extends Socket {
  constructor(...options) {
    super(...options);
    sleep.sockets.push(this);
  }
  send(data) { if (!sleep.asleep.has(this)) super.send(data); }
  set onmessage(listener) { super.onmessage = (event) => sleep.asleep.has(this) || listener(event); }
};
sleep.begin = () => sleep.sockets.forEach((socket) => sleep.asleep.add(socket));
"""


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "untold"])
def test_a_lid_that_was_closed_for_ten_minutes(server: Any, open_page: OpenPage, is_told: bool) -> None:
    """The same session goes on, the clock has counted what was heard, and the server is asked anew."""
    page = open_page(server.url, script=SYSTEM + SLEEP)
    page.clock.install()
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    play(page)
    wait_for_status(page, "^live$")
    if is_told:
        before_s = taken(page)
    else:
        before_s = clock_s(page)
        page.evaluate("contexts.at(-1).suspend()")
    page.evaluate("sleep.begin()")
    page.clock.fast_forward("10:00")
    page.evaluate("system.give()")
    wait_for_status(page, r"^(live|resumed after .*)$")
    page.wait_for_function(IS_HEARD)
    page.wait_for_function(
        "(before) => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > before + 3", arg=before_s
    )
    assert clock_s(page) < before_s + 60
    assert page.inner_text("#messages") == "", "the session is the same"
    assert page.evaluate("sleep.sockets.length") == 2
    assert page.evaluate("contexts.length") == 1
    assert is_gapless(page)


# Of the page's first prompt.
WORDS = ("pads", "and", "bass")


def is_gapless(page: Any) -> bool:
    """Whether no gap stays: soon all of two seconds is heard, which the clock counts."""
    for _ in range(10):
        begun_s, since_ms = clock_s(page), page.evaluate("performance.now()")
        page.wait_for_timeout(2000)
        if clock_s(page) - begun_s > (page.evaluate("performance.now()") - since_ms) / 1000 - 0.3:
            return True
    return False


def test_a_device_that_is_changed_meanwhile(server: Any, open_page: OpenPage) -> None:
    """Chromium's own change of devices, of which one plays nothing."""
    page = open_page(server.url, script=SYSTEM)
    play(page)
    wait_for_status(page, "^live$")
    for device in ("{type: 'none'}", "''"):
        page.evaluate(f"contexts[0].setSinkId({device})")
        page.wait_for_timeout(1000)
        wait_for_status(page, "^(live|resumed after .*)$")
        assert is_gapless(page)
    assert page.evaluate("contexts.length") == 1
    assert page.inner_text("#messages") == ""


def test_a_session_at_another_rate_than_the_device(
    serve: Callable[..., Any], built: Callable[..., Any], open_page: OpenPage
) -> None:
    """The browser resamples: the clock is that of the wall, and the context has the session's rate."""
    page = open_page(serve(built(sample_rate_hz=16_000, hop_samples=640, words=WORDS).path).url, script=SYSTEM)
    page.click("#play")
    wait_for_status(page, "^live$")
    assert (
        page.evaluate("contexts[0].sampleRate")
        == 16_000
        != page.evaluate("new (Object.getPrototypeOf(AudioContext))().sampleRate")
    )
    assert is_gapless(page)
