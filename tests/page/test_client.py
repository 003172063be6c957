"""server/clients/live.html and the page's client as one module, in a browser, from another origin than the server's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.page

Serve = Callable[..., Any]
TIMEOUT_MS = 60_000


class Quiet(SimpleHTTPRequestHandler):
    """Files, without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    """Another site, which has server/clients."""
    site = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(ROOT / "server/clients")))
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{site.server_port}"
    site.shutdown()
    thread.join()
    site.server_close()


@pytest.fixture
def other_page(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    yield context.new_page()
    context.close()


PEAK_IS_HEARD = "() => Number(/peak ([0-9.]+)/.exec(document.getElementById('heard').value)?.[1]) > 0.01"


def test_a_page_of_another_site_plays(serve: Serve, origin: str, other_page: Any) -> None:
    server = serve(TICKRT_ALLOWED_ORIGINS=origin)
    other_page.goto(f"{origin}/live.html?server={server.url.rstrip('/')}")
    other_page.click("#play")
    other_page.wait_for_function(PEAK_IS_HEARD)


CHANGES = """async (address) => {
  const { Live } = await import(`${address}page/tickrt.js`);
  const live = (globalThis.live = new Live(address, { mode: "loop", prompts: "calm piano" }));
  globalThis.ready = [];
  live.on("ready", ({ resumed, controls }) => ready.push({ resumed, guidance: controls.values.guidance }));
  await live.play();
  await live.opened;
  const seq = live.set({ guidance: 6 });
  await new Promise((heard) => live.on("heard", ({ firstSeq }) => firstSeq >= seq && heard()));
  return seq;
}"""


def test_a_change_is_heard_and_the_session_survives_its_server(serve: Serve, origin: str, other_page: Any) -> None:
    server = serve(TICKRT_ALLOWED_ORIGINS=origin)
    other_page.goto(f"{origin}/README.md")
    assert other_page.evaluate(CHANGES, server.url) == 1
    server.kill()
    server.start()
    other_page.wait_for_function("() => ready.length > 1")
    assert other_page.evaluate("ready.at(-1)") == {"resumed": True, "guidance": 6}
    other_page.evaluate("live.close()")


def test_a_site_that_is_not_allowed_gets_nothing(serve: Serve, origin: str, other_page: Any) -> None:
    server = serve()
    other_page.goto(f"{origin}/README.md")
    with pytest.raises(Exception, match="Failed to fetch dynamically imported module"):
        other_page.evaluate(CHANGES, server.url)
