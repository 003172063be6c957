"""How long the page takes from pressing play to the first sound: `python tests/page/first_sound.py [RUNS]`.

A server of its own and a browser without a window, on this machine. Each row is measured RUNS times, each time in a new
context: play is pressed as soon as the page is connected, or 5 s later. The sound is the first sample that is not zero
behind the player, seen on the page's main thread. Run it on a calm machine: what else runs is in its figures.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from helpers.page_player import TAP
from page.conftest import BROWSERS, FLAGS, ServerProcess
from playwright.sync_api import sync_playwright

BUDGET_MS = 1500
PRESSED = """() => document.getElementById("play").addEventListener("click", () => {
  const pressed = performance.now();
  const watch = setInterval(() => {
    if (!tapped.some(([left]) => left.some((sample) => Math.abs(sample) > 1e-4))) return;
    window.firstSoundMs = performance.now() - pressed;
    clearInterval(watch);
  }, 5);
}, { capture: true })"""


def first_sound_ms(browser: Any, url: str, wait_s: float) -> float:
    """In a new context: open the page, wait, press play."""
    context = browser.new_context(bypass_csp=True)
    context.add_init_script(TAP)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#status[data-status=live]")
    page.evaluate(PRESSED)
    page.wait_for_timeout(1000 * wait_s)
    page.click("#play")
    page.wait_for_function("() => window.firstSoundMs")
    elapsed: float = page.evaluate("firstSoundMs")
    page.goto("about:blank")  # its session ends
    context.close()
    return elapsed


def main(runs: int) -> None:
    """Print a row for each time at which play is pressed."""
    path = os.environ.get("TICKRT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {runs} runs a row; at most {BUDGET_MS} ms")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = ServerProcess(Path(folder))
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for wait_s, name in ((0.0, "play at once"), (5.0, "play after 5 s")):
            times = [first_sound_ms(browser, server.url, wait_s) for _ in range(runs)]
            print(
                f"{name:<16} first {times[0]:5.0f}  median {statistics.median(times):5.0f}  most {max(times):5.0f} ms"
            )
        browser.close()
        server.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
