"""Files that generations use, beside the source: a timbre and a structure, with a model that takes both."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from helpers.backends import FEW_VARIANTS
from helpers.odd_audio import DAMAGED

from runtime.config.deployment import Deployment

pytestmark = pytest.mark.page

DROP = """([selector, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], "dropped.wav"));
  document.querySelector(selector).dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
}"""
IDLE = "or drop audio here"


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    """Two seconds of a tone."""
    path = tmp_path / "tone.wav"
    soundfile.write(path, 0.3 * np.sin(np.arange(2 * 48000) * 2 * np.pi * 220 / 48000), 48000)
    return path


@pytest.fixture
def tiny_server(serve: Callable[..., Any], built: Callable[..., Deployment]) -> Any:
    """A server whose tiny model has [timbre] and [structure]."""
    sizes: dict[str, Any] = {"sample_rate_hz": 48000, "hop_samples": 1920, "words": ("pads", "and", "bass")}
    return serve(built(**sizes, structure=True, conditions=True, more=FEW_VARIANTS).path)


@pytest.fixture
def page(tiny_server: Any, open_page: Callable[..., Any]) -> Any:
    """The page, which keeps what it sends of files in `sent`."""
    keep = """() => {
      window.sent = [];
      const send = WebSocket.prototype.send;
      WebSocket.prototype.send = function (data) {
        const message = typeof data === "string" ? JSON.parse(data) : {};
        if (["open", "timbre", "structure", "source", "set"].includes(message.type)) window.sent.push(message);
        return send.call(this, data);
      };
    }"""
    return open_page(tiny_server.url, script=f"({keep})()")


def sent(page: Any, kind: str) -> list[dict[str, Any]]:
    return [message for message in page.evaluate("sent") if message["type"] == kind]


def strength(page: Any, kind: str) -> Any:
    return page.get_by_role("slider", name=f"{kind} strength", exact=True)


def test_a_row_is_there_where_the_model_has_the_role(page: Any, open_page: Callable[..., Any], server: Any) -> None:
    assert page.is_visible("#timbre")
    assert page.is_visible("#structure")
    names = set(httpx.get(f"{server.url}v1/schema").json()["properties"])
    shown = open_page(server.url)
    assert shown.is_visible("#timbre") == ("timbre_strength" in names)
    assert shown.is_visible("#structure") == ("structure_strength" in names)


def test_files_for_timbre_and_structure(page: Any, tone: Path) -> None:
    assert not strength(page, "timbre").is_visible()
    assert not strength(page, "structure").is_visible()
    page.set_input_files("#timbre-file", tone)
    strength(page, "timbre").wait_for()
    assert page.inner_text("#timbre-name") == "tone.wav"
    page.evaluate(DROP, ["#structure", base64.b64encode(tone.read_bytes()).decode()])
    strength(page, "structure").wait_for()
    assert (page.inner_text("#structure-name"), page.inner_text("#source-name")) == ("dropped.wav", IDLE)
    page.click("#more")
    assert page.is_visible("[data-control=cover_strength]")
    assert not page.is_visible("[data-control=denoise]")
    strength(page, "timbre").press("Home")
    page.wait_for_function("() => sent.some((message) => message.values?.timbre_strength === 0)")
    page.get_by_text("Extend", exact=True).click()  # another session
    page.wait_for_function("() => sent.filter((message) => message.type === 'structure').length === 2")
    for kind in ("timbre", "structure"):
        first, again = sent(page, kind)
        assert first["id"] == again["id"] is not None
        assert first["strength"] is None
        page.click(f"#clear-{kind}")
        strength(page, kind).wait_for(state="hidden")
        assert sent(page, kind)[-1]["id"] is None
    page.wait_for_timeout(300)
    assert page.inner_text("#messages") == ""


def test_a_source_has_a_structure_strength(page: Any, tone: Path) -> None:
    page.set_input_files("#source-file", tone)
    strength(page, "structure").wait_for()
    assert not strength(page, "timbre").is_visible()


def test_what_cannot_be_decoded_is_shown_beside_the_file(page: Any, tmp_path: Path) -> None:
    (tmp_path / "cut.flac").write_bytes(DAMAGED["cut flac"][0])
    page.set_input_files("#source-file", tmp_path / "cut.flac")
    page.get_by_text(re.compile(r"cut\.flac · at least 0\.\d\d s of the audio cannot be decoded")).wait_for()


def test_a_file_that_the_server_has_no_more_is_not_shown(page: Any, tiny_server: Any, tone: Path) -> None:
    page.set_input_files("#timbre-file", tone)
    strength(page, "timbre").wait_for()
    httpx.delete(f"{tiny_server.url}v1/sources/{sent(page, 'timbre')[0]['id']}").raise_for_status()
    page.get_by_text("Extend", exact=True).click()
    strength(page, "timbre").wait_for(state="hidden")
    assert page.inner_text("#timbre-name") == IDLE
    assert "source" in page.inner_text("#messages")
