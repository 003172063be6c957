"""The page in a headless browser, against a real server: it plays, and everything on it does what it says."""

from __future__ import annotations

import base64
import io
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import eventually
from helpers.page_player import IS_HEARD, TAP, play
from helpers.page_traffic import opened, until
from helpers.redis_server import redis_server
from numpy.typing import NDArray
from pythonosc.udp_client import SimpleUDPClient

pytestmark = pytest.mark.page

Serve = Callable[..., Any]
OpenPage = Callable[..., Any]

FAKE_MIDI = """
const input = { onmidimessage: null };
navigator.requestMIDIAccess = async () =>
  ({ inputs: new Map([["one", input]]), outputs: new Map(), onstatechange: null });
window.turnController = (number, value) => input.onmidimessage({ data: new Uint8Array([0xb0, number, value]) });
"""
TAPPED = "() => { const all = []; for (const [l, r] of tapped) l.forEach((x, i) => all.push(x, r[i])); return all; }"


def knob(page: Any, name: str) -> Any:
    """The knob with this name, where the model's own are shown, too."""
    if page.get_by_role("button", name="Model", exact=True).get_attribute("aria-expanded") == "false":
        page.get_by_role("button", name="Model", exact=True).click()
    return page.get_by_role("slider", name=name, exact=True)


def value_of(page: Any, name: str) -> float:
    return float(knob(page, name).get_attribute("aria-valuenow"))


def record(page: Any, seconds: float) -> tuple[NDArray[np.float32], int]:
    """What the page records in about this time: samples `[n, 2]` and their rate."""
    page.click("#record")
    page.wait_for_timeout(1000 * seconds)
    with page.expect_download() as download:
        page.click("#record")
    samples, rate = soundfile.read(io.BytesIO(Path(download.value.path()).read_bytes()), dtype="float32")
    return samples, rate


def spectrum(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean level per band of frequencies, in dB, of blocks of 4096 samples."""
    blocks = samples[: len(samples) // 4096 * 4096].mean(1).reshape(-1, 4096)
    power = (np.abs(np.fft.rfft(blocks * np.hanning(4096))) ** 2).mean(0)
    edges = np.unique(np.geomspace(2, 2048, 40).astype(int))
    return 10 * np.log10(np.add.reduceat(power, edges) + 1e-6)


def test_it_opens_and_plays(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    play(page)
    assert {address for address in addresses if not address.startswith(server.url)} == set()
    page.wait_for_function("() => parseFloat(document.querySelector('#clock').textContent.split(':')[1]) > 2")
    assert page.inner_text("#stat-underruns") == "0"
    page.click("#play")
    assert page.get_attribute("#play", "aria-pressed") == "false"


def test_what_is_fetched_until_it_plays_is_at_most_90_kib(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.goto("about:blank")
    sizes: dict[str, int] = {}

    def note(response: Any) -> None:
        name = response.url.removeprefix(server.url)
        if name == "" or name.startswith("page/"):
            sizes[name] = max(sizes.get(name, 0), int(response.headers.get("content-length", 0)))

    page.on("response", note)
    page.goto(server.url)
    page.wait_for_selector("#status[data-status=live]")
    play(page)
    assert {"", "page/main.js", "page/style.css", "page/audio/player.js"} <= set(sizes)
    assert not any(name.startswith(("page/midi/panel", "page/help")) for name in sizes)
    # What the audio thread fetches is not reported.
    for name in ("page/audio/worklet.js", "page/audio/ring.js"):
        sizes[name] = int(httpx.get(server.url + name, headers={"accept-encoding": "gzip"}).headers["content-length"])
    assert 60 * 1024 < sum(sizes.values()) <= 90 * 1024
    page.get_by_role("button", name="MIDI", exact=True).click()
    page.get_by_role("combobox", name="MIDI output").wait_for()
    assert sizes["page/midi/panel.js"] > 0


def test_a_knob_changes_the_sound(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    play(page)
    before, rate = record(page, 11)  # a whole pass of the canvas
    again, _ = record(page, 11)
    assert rate == 48000
    knob(page, "velocity scale").press("Home")
    page.wait_for_function("() => document.querySelector('#stat-full').textContent.endsWith('ms')")
    after, _ = record(page, 11)
    unchanged = np.abs(spectrum(before) - spectrum(again)).mean()
    assert np.abs(spectrum(before) - spectrum(after)).mean() > 2 * unchanged


def test_a_recording_is_what_was_played(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, script=TAP, bypass_csp=True)
    play(page)
    recorded, rate = record(page, 2)
    played = np.array(page.evaluate(TAPPED), np.float32).reshape(-1, 2)
    assert rate == 48000
    assert len(recorded) > 48000
    assert np.abs(recorded).max() > 0.01
    starts = np.flatnonzero((played[: len(played) - len(recorded) + 1] == recorded[0]).all(1))
    assert any(np.array_equal(played[start : start + len(recorded)], recorded) for start in starts)


def test_midi_learn(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url, script=FAKE_MIDI)
    page.click("#midi")
    page.wait_for_selector("#midi[aria-pressed=true]")
    knob(page, "guidance").click()
    page.evaluate("turnController(21, 127)")
    assert value_of(page, "guidance") == 50
    assert "CC 21" in knob(page, "guidance").inner_text()
    page.click("#midi")
    page.evaluate("turnController(21, 0)")
    assert value_of(page, "guidance") == 0
    page.evaluate("turnController(22, 127)")
    assert value_of(page, "guidance") == 0
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    knob(page, "guidance").get_by_text("CC 21").wait_for()


def test_a_knob_by_keyboard_wheel_and_double_click(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    guidance = knob(page, "guidance")
    default = value_of(page, "guidance")
    for key, changes in [("ArrowUp", 1), ("PageUp", 1), ("ArrowDown", -1), ("PageDown", -1)]:
        before = value_of(page, "guidance")
        guidance.press(key)
        assert np.sign(value_of(page, "guidance") - before) == changes, key
    guidance.press("End")
    assert value_of(page, "guidance") == float(guidance.get_attribute("aria-valuemax"))
    guidance.press("Home")
    assert value_of(page, "guidance") == float(guidance.get_attribute("aria-valuemin"))
    guidance.dblclick()
    assert value_of(page, "guidance") == default
    guidance.hover()
    page.mouse.wheel(0, -100)
    page.wait_for_function("(old) => document.activeElement.ariaValueNow > old", arg=default)
    steps = value_of(page, "steps")
    knob(page, "steps").press("ArrowRight")
    assert value_of(page, "steps") == steps + 1


def test_it_resumes_after_a_killed_server(serve: Serve, open_page: OpenPage) -> None:
    server = serve()
    page = open_page(server.url, allowed=("WebSocket connection", "ERR_CONNECTION", "Failed to load resource"))
    play(page)
    knob(page, "guidance").press("PageUp")
    page.wait_for_function("() => document.querySelector('#stat-full').textContent.endsWith('ms')")
    seed, guidance = page.input_value("#seed"), value_of(page, "guidance")
    ready: list[dict[str, Any]] = []

    def note(payload: Any) -> None:
        if isinstance(payload, str) and '"ready"' in payload:
            ready.append(json.loads(payload))

    page.on("websocket", lambda socket: socket.on("framereceived", note))
    server.kill()
    page.wait_for_selector("#status:not([data-status=live])")
    knob(page, "guidance").press("PageUp")
    page.wait_for_function(f"() => !({IS_HEARD})()")
    server.start()
    page.wait_for_selector("#status[data-status=live]")
    page.wait_for_function(IS_HEARD)
    assert all(message["resumed"] for message in ready)  # on a slow machine a connection may be lost again
    assert ready[0]["controls"]["values"]["guidance"] == guidance
    assert page.input_value("#seed") == seed
    assert value_of(page, "guidance") > guidance
    assert page.inner_text("#messages") == ""


def test_it_goes_on_at_another_server(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        other = serve(TICKRT_REDIS=redis.url, TICKRT_ALLOWED_ORIGINS="*")
        server = serve(TICKRT_REDIS=redis.url, TICKRT_EDGES=other.url.rstrip("/"))
        page = open_page(server.url, allowed=("WebSocket connection", "ERR_CONNECTION", "Failed to load resource"))
        play(page)
        page.wait_for_function(IS_HEARD)
        server.kill()
        with httpx.Client(base_url=other.url) as client:
            eventually(lambda: [card["connected"] for card in client.get("/v1/sessions").json()["data"]] == [True])
        page.wait_for_selector("#status[data-status=live]")
        page.wait_for_function(IS_HEARD)


def test_it_begins_again_where_the_session_is_lost(serve: Serve, open_page: OpenPage) -> None:
    server = serve()
    page = open_page(server.url, allowed=("WebSocket connection", "ERR_CONNECTION", "Failed to load resource"))
    play(page)
    knob(page, "guidance").press("PageUp")
    seed, guidance = page.input_value("#seed"), value_of(page, "guidance")
    server.kill()
    shutil.rmtree(server.state)
    page.wait_for_selector("#status:not([data-status=live])")
    server.start()
    page.get_by_text("The session is gone").wait_for()
    page.wait_for_selector("#status[data-status=live]")
    page.wait_for_function(IS_HEARD)
    assert (page.input_value("#seed"), value_of(page, "guidance")) == (seed, guidance)


def test_a_page_that_is_left_ends_its_session(serve: Serve, open_page: OpenPage) -> None:
    server = serve()
    page = open_page(server.url)
    sessions = f"{server.url}v1/sessions"
    assert len(httpx.get(sessions).json()["data"]) == 1
    page.goto("about:blank")
    eventually(lambda: httpx.get(sessions).json()["data"] == [])


def test_a_preset_is_the_same_after_a_round_trip(server: Any, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(server.url)
    page.fill("#prompt-a", "calm pads in F minor — ä")
    page.locator(".puck").press("PageDown")
    knob(page, "guidance").press("PageUp")
    knob(page, "Start of the loop band").press("ArrowRight")
    page.fill("#seed", "12345")
    page.press("#seed", "Enter")
    page.click("#share")
    with page.expect_download() as download:
        page.click("#save")
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert saved["seed"] == 12345
    assert saved["prompts"][0] == "calm pads in F minor — ä"
    assert saved["controls"]["guidance"] == value_of(page, "guidance")

    shared = open_page(page.url)
    assert shared.evaluate("document.querySelector('.puck').style.top") == page.evaluate(
        "document.querySelector('.puck').style.top"
    )
    file = tmp_path / "preset.json"
    file.write_text(json.dumps(saved), encoding="utf-8")
    loaded = open_page(server.url)
    loaded.set_input_files("#preset-file", file)
    loaded.wait_for_function("() => document.querySelector('#seed').value === '12345'")
    for other in (shared, loaded):
        with other.expect_download() as download:
            other.click("#save")
        assert json.loads(Path(download.value.path()).read_text(encoding="utf-8")) == saved


def test_a_preset_of_another_model_opens_without_its_controls(server: Any, open_page: OpenPage) -> None:
    preset = {
        "version": 1, "name": "", "mode": "loop", "seconds": None, "prompts": ["calm pads", "", "", ""], "pad": [0, 0],
        "blend": "velocity", "controls": {"reverb": 3}, "seed": 5, "band": [0, 1],
    }  # fmt: skip
    fragment = base64.urlsafe_b64encode(json.dumps(preset).encode()).decode().rstrip("=")
    page = open_page(f"{server.url}#p={fragment}")
    assert "reverb" in page.inner_text("#messages")
    assert page.input_value("#prompt-a") == "calm pads"
    assert page.input_value("#seed") == "5"


@pytest.mark.parametrize("text", ["{", '{"version": 1, "prompts": []}', '{"version": 99}'])
def test_a_wrong_preset_is_explained(server: Any, open_page: OpenPage, tmp_path: Path, text: str) -> None:
    page = open_page(server.url)
    file = tmp_path / "preset.json"
    file.write_text(text, encoding="utf-8")
    page.set_input_files("#preset-file", file)
    page.get_by_role("alert").get_by_text("preset").wait_for()


def test_a_curve_is_drawn_over_the_canvas(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    page.select_option("#draw", label="guidance")
    box = page.locator("#stage").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] * 0.9)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] * 0.1, steps=8)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('[data-control=guidance]').ariaValueText === 'curve'")
    until(page, lambda: traffic.values("guidance")[-1][-1] > 3)
    curve = traffic.values("guidance")[-1]
    assert len(curve) == 64
    assert curve[0] < 1.5
    assert np.all(np.diff(curve) >= 0)
    page.click("#clear-curve")
    assert knob(page, "guidance").get_attribute("aria-valuetext") == "2.14"
    assert page.inner_text("#messages") == ""


def test_the_pad_blends_the_prompts(server: Any, open_page: OpenPage) -> None:
    page, traffic = opened(open_page, server.url)
    page.locator(".puck").press("Home")
    until(page, lambda: [item["weight"] for item in traffic.prompts] == [1, 0, 0, 0])
    page.locator(".puck").press("ArrowRight")
    until(page, lambda: [item["weight"] for item in traffic.prompts] == [0.95, 0.05, 0, 0])


def test_it_shows_what_an_osc_surface_turns(serve: Serve, open_page: OpenPage) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = open_page(serve(TICKRT_OSC_PORT=str(port)).url)
    play(page)
    with SimpleUDPClient("127.0.0.1", port) as surface:
        surface.send_message("/tickrt/guidance", 4.5)
        surface.send_message("/tickrt/prompt/2/weight", 1.0)
        surface.send_message("/tickrt/prompt/2/text", "fast drums")
        surface.send_message("/tickrt/seed", 77)
        page.wait_for_function("() => document.getElementById('seed').value === '77'")
        assert value_of(page, "guidance") == 4.5
        assert page.locator(".prompt textarea").nth(1).input_value() == "fast drums"
        assert [share.inner_text() for share in page.locator(".share").all()[:2]] == ["50 %", "50 %"]
        knob(page, "guidance").press("Home")
        while (message := next(surface.get_messages(10.0))).address != "/tickrt/guidance" or message.params == [4.5]:
            pass
        assert message.params == [value_of(page, "guidance")]
        surface.send_message("/tickrt/pause", 1.0)
        page.wait_for_selector("#play[aria-pressed=false]")
    assert page.inner_text("#messages") == ""


def wait_for_note(page: Any, letter: str, pattern: str) -> None:
    """Until the note beside a prompt is like this."""
    page.wait_for_function(
        "([id, pattern]) => new RegExp(pattern).test(document.getElementById(id).textContent)",
        arg=[f"words-{letter}", pattern],
    )


def test_it_shows_the_words_that_the_model_does_not_understand(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.fill("#prompt-a", "calm pads, yodel trio")
    wait_for_note(page, "a", r"^not understood: yodel trio( · |$)")
    page.fill("#prompt-a", "calm pads and bass")
    wait_for_note(page, "a", "^(?!not understood)")
    assert "not understood" not in page.inner_text("#words-b")


def test_it_shows_what_of_a_prompt_is_played_and_offers_near_words(
    serve: Serve, open_page: OpenPage, built: Built
) -> None:
    config = built(meaning=True, words=("calm", "chant"), more=FEW_VARIANTS).path
    page = open_page(serve(config=config).url)
    page.fill("#prompt-a", "fast jazz drumss")
    wait_for_note(page, "a", r"^(?!not understood).*drums; jazz; 150 bpm · drumss played as drums$")
    page.fill("#prompt-a", "fast jazz drams, yodel")
    wait_for_note(page, "a", r"^not understood: drams, yodel · drams: drums\? · jazz; 150 bpm$")
    page.locator("#words-a").get_by_role("button", name="drums?").click()
    wait_for_note(page, "a", r"^not understood: yodel · drums; jazz; 150 bpm$")
    assert page.input_value("#prompt-a") == "fast jazz drums, yodel"
    page.fill("#prompt-b", "chant")
    wait_for_note(page, "b", r"^(rock|jazz|ambient) · genre drawn by the seed: \1$")


def test_extend_plays_on(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    play(page)
    page.get_by_text("Extend", exact=True).click()
    page.wait_for_function(IS_HEARD)
    page.wait_for_function("() => Number(document.querySelector('#stage').ariaValueNow) > 1")
    assert page.inner_text("#messages") == ""


def test_sessions_that_follow_each_other_fast_get_no_reports_of_the_one_before(
    server: Any, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    play(page)
    for mode in 3 * ("Extend", "Loop"):
        page.get_by_text(mode, exact=True).click()
        page.wait_for_timeout(300)
    page.wait_for_selector("#status[data-status=live]")
    page.wait_for_timeout(300)
    assert page.inner_text("#messages") == ""


def test_a_source_from_a_file_and_from_the_microphone(server: Any, open_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "tone.wav"
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(4 * 48000) / 48000)
    soundfile.write(file, np.stack([tone, tone], 1), 48000)
    page, traffic = opened(open_page, server.url)
    play(page)
    page.set_input_files("#source-file", file)
    page.wait_for_selector("#source-strength")
    assert page.inner_text("#source-name") == "tone.wav"
    page.click("#clear-source")
    page.click("#microphone")
    page.wait_for_function("() => document.querySelector('#microphone').ariaPressed === 'true'")
    until(page, lambda: traffic.of("write", traffic.sent))
    page.click("#microphone")
    until(page, lambda: [message["id"] is None for message in traffic.of("source", traffic.sent)] == [False, True])
    assert page.inner_text("#messages") == ""


def test_a_server_with_a_key_asks_for_it(serve: Serve, open_page: OpenPage) -> None:
    server = serve(TICKRT_API_KEY="swordfish")
    page = open_page(server.url, status="key", allowed=("WebSocket connection", "401"))
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.get_by_text("does not accept this key").wait_for()
    page.fill("#key", "swordfish")
    page.press("#key", "Enter")
    page.wait_for_selector("#status[data-status=live]")
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    play(page)


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("width", [1280, 800, 400])
def test_axe_finds_nothing_serious(server: Any, open_page: OpenPage, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(server.url, color_scheme=scheme, viewport={"width": width, "height": 860})
    page.click("#more")
    play(page)
    found = axe.run(page).response["violations"]
    serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
