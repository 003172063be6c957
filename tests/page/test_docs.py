"""The API documentation in a headless browser: it needs no other host, asks for the key, sends requests, has links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.page
TIMEOUT_MS = 60_000


def test_the_documentation_asks_for_the_key_and_plays_what_it_generates(
    serve: Callable[..., Any], browser: Any
) -> None:
    server = serve(TICKRT_API_KEY="k")
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    addresses: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept("k"))
    page.goto(f"{server.url}docs")
    operation = page.locator("#operations-generations-create_generation")
    operation.get_by_role("button").first.click()
    operation.get_by_text("Try it out").click()
    operation.get_by_text("Execute").click()
    operation.locator("audio").wait_for()
    # Other people's clients are there, and the protocol that no OpenAPI document has is linked.
    theirs = page.locator("#operations-ACE-Step-release_task")
    theirs.get_by_role("button").first.click()
    theirs.get_by_text("key_scale").first.wait_for()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="the protocol of WS /v1/live", exact=True).click()
    opened.value.get_by_text("# The live protocol").wait_for()
    foreign = [address for address in addresses if not address.startswith((server.url, "data:", "blob:"))]
    assert foreign == []
    assert [text for text in errors if "401" not in text] == []
    page.close()
