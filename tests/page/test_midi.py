"""The MIDI panel of the page, with ports that are simulated: notes and clock go out, a clock and a keyboard come in."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mido
import numpy as np
import pytest
import soundfile
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.page_player import play
from helpers.page_traffic import Traffic, until

pytestmark = pytest.mark.page

Serve = Callable[..., Any]
OpenPage = Callable[..., Any]

# One output that keeps what is sent with its times in ms, and one input that a test plays. As in a browser a port that
# was unplugged takes nothing. midiHeld: channels and pitches of what sounds.
PORTS = """
window.midiSent = [];
const input = { name: "keys", onmidimessage: null };
const output = { name: "synth", state: "connected", send: (data, timeMs) => {
  if (output.state === "disconnected") throw new DOMException("The port is disconnected.", "InvalidStateError");
  midiSent.push([[...data], timeMs, performance.now()]);
} };
const access = { inputs: new Map([["in", input]]), outputs: new Map([["out", output]]), onstatechange: null };
navigator.requestMIDIAccess = async () => access;
window.midiReceive = (data, timeStamp) => input.onmidimessage({ data: new Uint8Array(data), timeStamp });
window.midiUnplug = () => {
  output.state = "disconnected";
  access.outputs.delete("out");
  access.onstatechange();
};
window.midiHeld = () => {
  const held = new Set();
  for (const [[status, pitch]] of midiSent) {
    if ((status & 0xf0) === 0x90) held.add(`${status & 0x0f} ${pitch}`);
    if ((status & 0xf0) === 0x80) held.delete(`${status & 0x0f} ${pitch}`);
  }
  return [...held];
};
"""
SIZES: dict[str, Any] = {
    "sample_rate_hz": 48000, "hop_samples": 1920, "words": ("pads", "and", "bass"), "canvas_frames": 64
}  # fmt: skip
NO_PORTS = "delete Navigator.prototype.requestMIDIAccess;"
NOTE_OFF, NOTE_ON, CLOCK, START, CONTINUE, STOP = 0x80, 0x90, 0xF8, 0xFA, 0xFB, 0xFC
TOLERANCE_S = 0.08
RATE = 48000
# How bright a note's frame is on a canvas of four rows: above, at its left, in its middle, a row below, later.
PAINTED = """async () => {
  const { paintNotes } = await import("./page/widgets/note_view.js");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [200, 100];
  const context = canvas.getContext("2d");
  const lane = (name, key, top) =>
    ({ layer: { name, keys: [key, key + 1], rows: [], is_percussion: false }, top, height: 50, isSilent: false });
  const note = { layer: "low", pitch: 37, velocity: 127, start: 0, end: 0, isOpen: false };
  const lanes = [lane("high", 36, 0), lane("low", 36, 50)];
  paintNotes(context, { startS: 10, seconds: 4 }, [{ note, startS: 11, seconds: 1 }], lanes, "#fff");
  return [[55, 55], [95, 70], [75, 25], [75, 87], [125, 62]].map(([x, y]) => context.getImageData(x, y, 1, 1).data[0]);
}"""
# Of a note that sounds: what is given while more is to be told of it, and where that does not come.
CUT_OFF = """async () => {
  const { NoteOut } = await import("./page/midi/note_out.js");
  const { SessionNotes } = await import("./page/midi/notes.js");
  const notes = new SessionNotes(1000), out = new NoteOut();
  notes.tell({ start_sample: 0, end_sample: 500, notes: [["pad", 60, 90, 100, null]], open: [] });
  return [0, 450, 510].map((playhead) => out.due(notes, () => 0, playhead, playhead + 100)
    .concat(playhead ? [] : out.due(notes, () => 0, 50, 150)).map(({ data, sample }) => [...data, sample]));
}"""
# What is due before a pause and behind it: a note was handed on that begins behind the pause.
PAUSED = """async () => {
  const { NoteOut } = await import("./page/midi/note_out.js");
  const { SessionNotes } = await import("./page/midi/notes.js");
  const notes = new SessionNotes(1000), out = new NoteOut();
  const told = [["pad", 60, 90, 10, 400], ["pad", 64, 90, 80, 400]];
  notes.tell({ start_sample: 0, end_sample: 500, notes: told, open: [] });
  const due = () => out.due(notes, () => 0, 20, 120).map(({ data }) => data);
  const before = due(), ended = out.stop(50).map(({ data, sample }) => [...data, sample]);
  out.clear(50);
  return [before, ended, due()];
}"""
# Pitches and places of what was played in a loop of 2 s, a note every half second, reported four times a second: of one
# pass and a half, and after a jump from there to 0.6 s.
PLACED = """async () => {
  const { PlacedNotes } = await import("./page/midi/placed_notes.js");
  const { SessionNotes } = await import("./page/midi/notes.js");
  const notes = new SessionNotes(1000), placed = new PlacedNotes();
  const told = Array.from({ length: 12 }, (_, i) => ["bass", 36 + i, 90, 500 * i + 100, 200]);
  notes.tell({ start_sample: 0, end_sample: 6000, notes: told, open: [] });
  for (let sample = 0; sample <= 3000; sample += 250)
    placed.follow({ sample, seconds: (sample / 1000) % 2 }, notes, 0);
  const shown = () => placed.passed.map(({ note, startS }) => [note.pitch, startS]).sort((a, b) => a[1] - b[1]);
  const loop = shown();
  placed.follow({ sample: 3250, seconds: 0.6 }, notes, 0);
  return [loop, shown()];
}"""
# Where the session plays and notes sound: does what is asked, and returns what sounded, and how much was sent then.
HELD = """([id, type, key]) => {
  const held = midiHeld(), count = midiSent.length;
  if (held.length < 2) return null;
  const target = id ? document.getElementById(id) : window;
  key ? target.dispatchEvent(new KeyboardEvent(type, { key, bubbles: true })) : target.dispatchEvent(new Event(type));
  return [held, count];
}"""
# Keeps what sounds right after the next session or epoch has begun.
HELD_AT_READY = """() => new MutationObserver(() => {
  if (document.getElementById("status").dataset.status === "live") window.heldAtReady = midiHeld();
}).observe(document.getElementById("status"), { attributes: true })"""
# Places in sixteenths and pitches: what is played in the last 0.3 s of a bar comes back later.
PLAYED = ((0, 36), (2, 40), (3, 43), (5, 36), (6, 43), (8, 40))


class Session(Traffic):
    """The page, its MIDI output, and the messages of its session."""

    def __init__(self, page: Any, server: Any = None) -> None:
        super().__init__()
        self.page, self.server = page, server
        self.listen(page)

    @property
    def beat(self) -> dict[str, Any] | None:
        """The newest bar line."""
        states = self.of("state")
        return states[-1]["beat"] if states else None

    def until(self, condition: Callable[[], Any]) -> None:
        until(self.page, condition)

    def midi(self) -> list[tuple[list[int], float]]:
        """What was sent to the output, with its times in ms."""
        return [(data, time_ms) for data, time_ms, _ in self.page.evaluate("midiSent")]

    def held(self, *event: str) -> tuple[set[tuple[int, int]], int]:
        """Let something happen while notes sound: their channels (from 0) and pitches, and how much was sent then."""
        done: list[Any] = []
        self.until(lambda: done.append(self.page.evaluate(HELD, [*event, ""][:3])) or done[-1])
        held, count = done[-1]
        return {(int(channel), int(pitch)) for channel, pitch in (one.split() for one in held)}, count

    def receive(self, data: list[int], time_ms: float) -> None:
        self.page.evaluate("([data, time]) => midiReceive(data, time)", [data, time_ms])


@pytest.fixture
def session(serve: Serve, built: Built, open_page: OpenPage) -> Session:
    """A planned session of a tiny model, without an end, that plays with its notes at the output."""
    planner = {"capacity": 1024, "plan": True}
    config = built(**SIZES, planner=planner, conditions=True, notes=True, more=FEW_VARIANTS).path
    server = serve(config=config)
    page = open_page(server.url, script=PORTS, allowed=("WebSocket connection", "ERR_CONNECTION_REFUSED"))
    session = Session(page, server)
    page.get_by_text("Extend", exact=True).click()
    page.click("#midi-panel-button")
    page.select_option("#midi-out", label="synth")
    play(page)
    session.until(lambda: session.beat)
    return session


def notes_on(session: Session) -> list[tuple[int, int, float]]:
    """Channel (from 1), pitch and time in ms of the note-ons."""
    return [(data[0] % 16 + 1, data[1], ms) for data, ms in session.midi() if data[0] & 0xF0 == NOTE_ON]


def test_a_bar_that_is_played_comes_back_a_bar_later(session: Session) -> None:
    page = session.page
    page.select_option("#keys", label="keys")
    page.select_option("#keys-layer", "drums")
    session.until(lambda: session.of("state")[-1]["playhead_sample"] > 4 * RATE)
    # One short note of another layer tells which time of the page a sample has.
    now_ms = page.evaluate("performance.now()")
    session.receive([NOTE_ON, 36, 100], now_ms - 60)
    session.receive([NOTE_OFF, 36, 0], now_ms - 10)
    session.until(lambda: session.of("notes", session.sent))
    offset_s = session.of("notes", session.sent)[0]["at"] - (now_ms - 60) / 1000
    page.select_option("#keys-layer", "bass")
    beat = session.beat
    assert beat is not None
    bar_s = beat["beats"] * 60 / beat["bpm"]
    sixteenth_s = bar_s / (4 * beat["beats"])
    line_s = beat["sample"] / RATE
    while line_s < page.evaluate("performance.now()") / 1000 + offset_s:
        line_s += bar_s
    for place, pitch in PLAYED:
        began_ms = 1000 * (line_s + place * sixteenth_s + 0.012 - offset_s)
        ended_ms = began_ms + 900 * sixteenth_s
        page.wait_for_function("(end) => performance.now() > end", arg=ended_ms)
        session.receive([NOTE_ON, pitch, 96], began_ms)
        session.receive([NOTE_OFF, pitch, 0], ended_ms)
    session.until(lambda: len(session.of("notes", session.sent)) == 1 + len(PLAYED))
    messages = session.of("notes", session.sent)[1:]
    assert {(one["mode"], one["layer"], one["bars"]) for one in messages} == {("echo", "bass", 1)}
    assert [one["items"][0]["pitch"] for one in messages] == [pitch for _, pitch in PLAYED]
    channel = int(page.locator("#midi-channels select[data-layer=bass]").input_value())
    line_s += bar_s
    page.wait_for_function("(end) => performance.now() > end", arg=1000 * (line_s + bar_s - offset_s))
    expected = [(pitch, line_s + place * sixteenth_s) for place, pitch in PLAYED]
    all_heard = [(pitch, ms / 1000 + offset_s) for its, pitch, ms in notes_on(session) if its == channel]
    heard = [one for one in all_heard if line_s - TOLERANCE_S <= one[1] < line_s + bar_s - TOLERANCE_S]
    # What begins shortly before the bar line is of the bar before, but for the first note that was played.
    heard = [one for one in heard if one[1] >= line_s or one[0] == PLAYED[0][1]]
    hits = sum(
        any(pitch == other and abs(time_s - other_s) <= TOLERANCE_S for other, other_s in heard)
        for pitch, time_s in expected
    )
    assert 2 * hits / (len(expected) + len(heard)) >= 0.9, (expected, heard)
    assert page.inner_text("#messages") == ""


def test_notes_go_out_on_the_channels_of_their_layers_and_end_at_a_pause(session: Session) -> None:
    page = session.page
    session.until(lambda: len(notes_on(session)) >= 12)
    channels = {
        select.get_attribute("data-layer"): int(select.input_value())
        for select in page.locator("#midi-channels select").all()
    }
    assert channels["drums"] == 10
    assert len(set(channels.values())) == len(channels)
    told = {(channels[note[0]], note[1]) for message in session.of("notes") for note in message["notes"]}
    assert {(channel, pitch) for channel, pitch, _ in notes_on(session)} <= told
    early_ms = page.evaluate("Math.max(...midiSent.map(([, due, sent]) => due - sent))")
    assert early_ms <= 105
    page.click("#play")

    def are_all_ended() -> bool:
        sounding: Counter[tuple[int, int]] = Counter()
        for data, _ in session.midi():
            if data[0] & 0xF0 in (NOTE_ON, NOTE_OFF):
                sounding[data[0] & 0x0F, data[1]] += 1 if data[0] & 0xF0 == NOTE_ON else -1
        return set(sounding.values()) == {0}

    session.until(lambda: page.get_attribute("#play", "aria-label") == "Play" and are_all_ended())
    count = len(session.midi())
    page.wait_for_timeout(500)
    assert len(session.midi()) == count


def test_a_seek_ends_what_sounds(session: Session) -> None:
    session.page.uncheck("#at-bar")
    held, count = session.held("stage", "keydown", "ArrowLeft")
    session.until(lambda: len(session.midi()) >= count + len(held))
    # Before anything else goes out, so not because they are over.
    following = [data for data, _ in session.midi()[count : count + len(held)]]
    assert {(data[0] & 0x0F, data[1]) for data in following if data[0] & 0xF0 == NOTE_OFF} == held
    session.until(lambda: session.of("seek", session.sent))
    assert "at" not in session.of("seek", session.sent)[0]


def test_another_session_ends_what_sounds(session: Session) -> None:
    session.page.evaluate(HELD_AT_READY)
    session.page.evaluate("document.getElementById('mode-loop').checked = true")
    session.held("mode-loop", "change")
    session.until(lambda: session.page.evaluate("window.heldAtReady") is not None)
    assert session.page.evaluate("heldAtReady") == []


def test_the_page_that_is_closed_ends_what_sounds(session: Session) -> None:
    held, count = session.held("", "pagehide")
    ended = [(data[0] & 0x0F, data[1]) for data, _ in session.midi()[count:] if data[0] & 0xF0 == NOTE_OFF]
    assert held <= set(ended), "besides what was handed on since"


def test_it_plays_on_where_the_output_is_unplugged(session: Session) -> None:
    page = session.page
    session.held("midi-out", "focus")
    page.evaluate("midiUnplug()")
    assert page.input_value("#midi-out") == ""
    page.click("#play")
    session.until(lambda: not session.of("state")[-1]["playing"])
    assert page.get_attribute("#play", "aria-label") == "Play"


def test_a_note_ends_where_the_session_falls_silent(server: Any, open_page: OpenPage) -> None:
    struck, going_on, ended = open_page(server.url).evaluate(CUT_OFF)
    assert struck == [[NOTE_ON, 60, 90, 100]]
    assert going_on == []
    assert ended == [[NOTE_OFF, 60, 0, 510]]


def test_what_was_handed_on_at_a_pause_is_played_behind_it(server: Any, open_page: OpenPage) -> None:
    before, ended, behind = open_page(server.url).evaluate(PAUSED)
    assert before == [[NOTE_ON, 60, 90], [NOTE_ON, 64, 90]]
    assert ended == [[NOTE_OFF, 60, 0, 50], [NOTE_OFF, 64, 0, 81]]
    assert behind == [[NOTE_ON, 64, 90]]


def test_the_notes_of_a_loop_are_those_of_one_pass(server: Any, open_page: OpenPage) -> None:
    loop, jumped = open_page(server.url).evaluate(PLACED)
    assert loop == [[pitch, pytest.approx(place)] for pitch, place in ((40, 0.1), (41, 0.6), (38, 1.1), (39, 1.6))]
    # A quarter of a second was heard: what lay there goes, and nothing else.
    assert jumped == [[pitch, pytest.approx(place)] for pitch, place in ((40, 0.1), (42, 0.45), (41, 0.6), (39, 1.6))]


def test_the_clock_has_24_pulses_a_beat(session: Session) -> None:
    page = session.page
    page.check("#clock-out")
    session.until(lambda: sum(data == [CLOCK] for data, _ in session.midi()) > 120)
    system = [(data, ms) for data, ms in session.midi() if data[0] >= 0xF0]
    assert system[0][0] == [START] or (system[0][0][0], system[1][0]) == (0xF2, [CONTINUE])
    times = [ms for data, ms in system if data == [CLOCK]]
    assert times == sorted(times)
    assert session.beat is not None
    pulse_ms = 60_000 / (24 * session.beat["bpm"])
    assert abs((times[-1] - times[0]) / pulse_ms - (len(times) - 1)) < 1
    page.click("#play")
    session.until(lambda: session.midi()[-1][0] == [STOP])
    count = len(session.midi())
    page.click("#play")
    session.until(lambda: len(session.midi()) > count + 24)
    system = [data for data, _ in session.midi()[count:] if data[0] >= 0xF0]
    assert [system[0][0], system[1]] == [0xF2, [CONTINUE]]


def test_it_follows_the_clock_of_others(session: Session) -> None:
    page = session.page
    page.select_option("#clock-in", label="keys")
    session.until(lambda: session.of("state")[-1]["playhead_sample"] > 2 * RATE)
    now_ms = page.evaluate("performance.now()")
    pulse_ms = 60_000 / (24 * 110.5)
    session.receive([START], now_ms - 60 * pulse_ms)
    for number in range(60):
        session.receive([CLOCK], now_ms - (60 - number) * pulse_ms)
    session.until(lambda: session.of("clock", session.sent))
    assert session.of("clock", session.sent)[0]["bpm"] == pytest.approx(110.5, abs=0.05)
    assert page.inner_text("#clock-tempo") == "110.5 bpm"
    session.until(lambda: session.beat and abs(session.beat["bpm"] - 110.5) < 0.3)
    # Without another beat it is not told again.
    page.wait_for_timeout(1500)
    assert len(session.of("clock", session.sent)) == 1


def test_of_a_clock_that_ran_already_the_tempo_is_followed(session: Session) -> None:
    page = session.page
    page.select_option("#clock-in", label="keys")
    session.until(lambda: session.of("state")[-1]["playhead_sample"] > 2 * RATE)
    now_ms, pulse_ms = page.evaluate("performance.now()"), 60_000 / (24 * 110.5)
    for number in range(60):
        session.receive([CLOCK], now_ms - (60 - number) * pulse_ms)
    session.until(lambda: session.of("clock", session.sent))
    told = session.of("clock", session.sent)[0]
    assert told == {"type": "clock", "seq": told["seq"], "bpm": pytest.approx(110.5, abs=0.05), "sample": None}
    assert page.inner_text("#clock-tempo") == "110.5 bpm"
    session.until(lambda: session.beat and abs(session.beat["bpm"] - 110.5) < 0.3)
    session.receive([STOP], now_ms)
    session.until(lambda: page.inner_text("#clock-tempo") == "110.5 bpm, stopped")


def test_the_clock_stops_where_the_server_is_gone_and_goes_on_with_it(session: Session) -> None:
    page = session.page
    page.check("#clock-out")
    session.until(lambda: sum(data == [CLOCK] for data, _ in session.midi()) > 24)
    session.server.kill()
    session.until(lambda: page.get_attribute("#status", "data-status") != "live")
    session.until(lambda: [STOP] in [data for data, _ in session.midi()])
    count = len(session.midi())
    page.wait_for_timeout(500)
    assert len(session.midi()) == count
    assert page.evaluate("midiHeld()") == []
    session.server.start()
    session.until(lambda: any(data[0] in (START, CONTINUE) for data, _ in session.midi()[count:]))


def test_changes_begin_with_a_bar_where_that_is_on(session: Session) -> None:
    page = session.page
    page.get_by_role("button", name="Model", exact=True).click()
    guidance = page.get_by_role("slider", name="guidance", exact=True)
    guidance.press("PageUp")
    session.until(lambda: any("at_sample" in one for one in session.of("applied")))
    assert session.of("set", session.sent)[-1]["at"] == "bar"
    at_sample = next(one["at_sample"] for one in session.of("applied") if one.get("at_sample"))
    beats = [one["beat"] for one in session.of("state") if one["beat"]]
    bar = RATE * beats[-1]["beats"] * 60 / beats[-1]["bpm"]
    off = min((at_sample - beat["sample"]) % bar for beat in beats)
    assert min(off, bar - off) < 0.03 * RATE
    page.uncheck("#at-bar")
    guidance.press("PageDown")
    session.until(lambda: len(session.of("set", session.sent)) == 2)
    assert "at" not in session.of("set", session.sent)[-1]


def test_a_held_chord_is_the_harmony_and_the_computers_keys_play(session: Session) -> None:
    page = session.page
    page.select_option("#keys", label="computer keys")
    page.select_option("#keys-mode", "hold")
    page.locator("#keys-mode").evaluate("(node) => node.blur()")
    for key in ("a", "d", "g"):
        page.keyboard.down(key)
    # A slow machine presses them one after the other.
    session.until(lambda: any(len(one["items"]) == 3 for one in session.of("notes", session.sent)))
    for key in ("a", "d", "g"):
        page.keyboard.up(key)
    message = session.of("notes", session.sent)[-1]
    lowest = min(item["pitch"] for item in message["items"])
    assert message["mode"] == "hold"
    assert sorted(item["pitch"] - lowest for item in message["items"]) == [0, 4, 7]
    # As short as a key can be.
    page.keyboard.press("f")
    session.until(lambda: session.of("notes", session.sent)[-1] != message)
    assert [item["pitch"] - lowest for item in session.of("notes", session.sent)[-1]["items"]] == [5]
    page.fill("#prompt-b", "asdf")
    page.click("#keys-forget")
    session.until(lambda: session.of("notes", session.sent)[-1]["items"] == [])


def test_the_passage_is_saved_as_midi(session: Session) -> None:
    page = session.page
    session.until(lambda: len(notes_on(session)) >= 20)
    with page.expect_download() as download:
        page.click("#midi-save")
    file = mido.MidiFile(file=io.BytesIO(Path(download.value.path()).read_bytes()))
    assert session.beat is not None
    tempo = next(message.tempo for message in file.tracks[0] if message.type == "set_tempo")
    assert 60e6 / tempo == pytest.approx(session.beat["bpm"], abs=0.01)
    told = {(note[0], note[1]) for message in session.of("notes") for note in message["notes"]}
    saved = {(track.name, message.note) for track in file.tracks[1:] for message in track if message.type == "note_on"}
    assert saved
    assert saved <= told
    drums = [m.channel for track in file.tracks if track.name == "drums" for m in track if m.type == "note_on"]
    assert set(drums) <= {9}


@pytest.mark.parametrize("mode", ["Loop", "Extend"])
def test_stems_of_what_plays_are_an_archive(serve: Serve, built: Built, open_page: OpenPage, mode: str) -> None:
    page = open_page(serve(config=built(**SIZES, stems=True, more=FEW_VARIANTS).path).url, allowed=("503",))
    session = Session(page)
    page.get_by_text("Extend" if mode == "Loop" else "Loop", exact=True).click()
    page.get_by_text(mode, exact=True).click()
    page.click("#midi-panel-button")
    refused = {"detail": "the session does not answer now", "fix": "try later"}
    page.route("**/stems", lambda route: route.fulfill(status=503, json=refused))
    page.click("#stems-save")
    page.wait_for_selector("#messages :text('The stems cannot be saved: the session does not answer now — try later')")
    page.unroute("**/stems")
    play(page)
    session.until(lambda: session.of("state")[-1]["playhead_sample"] > RATE)
    with page.expect_download() as download:
        page.click("#stems-save")
    assert download.value.suggested_filename == "tickrt-stems.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        pcm = {name: archive.read(f"{name}.flac") for name in ("mix", "bass", "drums")}
        assert mido.MidiFile(file=io.BytesIO(archive.read("notes.mid"))).length > 0.5
    mix, bass, drums = (soundfile.read(io.BytesIO(data))[0] for data in pcm.values())
    # A layer may be louder than all together: a file cuts it off at full scale.
    is_whole = np.maximum(np.abs(bass), np.abs(drums)) < 1.0 - 2**-22
    assert np.abs(bass + drums - mix)[is_whole].max() < 3 * 2**-23
    assert len(mix) == SIZES["canvas_frames"] * RATE // 25 if mode == "Loop" else len(mix) >= RATE // 2
    assert not page.is_disabled("#stems-save")
    assert page.inner_text("#stems-save-note") == ""


def test_a_layer_that_is_off_is_saved_on_a_channel_of_its_own(session: Session) -> None:
    page = session.page
    selects = page.locator("#midi-channels select")
    layers = [select.get_attribute("data-layer") for select in selects.all()]
    others = [layer for layer in layers if layer != "drums"]
    for layer, channel in zip(others, ("0", "1"), strict=False):
        page.select_option(f"#midi-channels select[data-layer={layer}]", channel)
    page.select_option("#midi-channels select[data-layer=drums]", "0")
    session.until(lambda: {note[0] for message in session.of("notes") for note in message["notes"]} == set(layers))
    session.until(lambda: session.of("state")[-1]["playhead_sample"] > 8 * RATE)
    with page.expect_download() as download:
        page.click("#midi-save")
    file = mido.MidiFile(file=io.BytesIO(Path(download.value.path()).read_bytes()))
    channels = {track.name: {m.channel for m in track if m.type == "note_on"} for track in file.tracks[1:]}
    assert len(channels) == len(layers)
    assert channels["drums"] == {9}
    if len(others) > 1:
        assert channels[others[1]] == {0}
    assert all(len(each) == 1 for each in channels.values())
    assert len(set.union(*channels.values())) == len(layers)


def test_a_loop_has_a_length_in_bars(server: Any, open_page: OpenPage) -> None:
    page = open_page(server.url)
    session = Session(page)
    page.get_by_role("button", name="Clockwork").click()
    page.reload()
    page.wait_for_selector("#status[data-status=live]")
    page.fill("#prompt-a", "house drums and synth bass, 124 bpm")
    play(page)
    session.until(lambda: session.beat)
    assert not page.is_disabled("#at-bar")
    page.uncheck("#at-bar")
    page.locator("#bars input").fill("4")
    page.locator("#bars input").press("Enter")
    session.until(lambda: session.of("set", session.sent))
    assert session.of("set", session.sent)[-1]["values"] == {"loop_bars": 4}
    assert page.inner_text("#messages") == ""


def test_notes_lie_in_their_lane_at_the_height_of_their_key(server: Any, open_page: OpenPage) -> None:
    assert open_page(server.url).evaluate(PAINTED) == [255, 255, 0, 0, 0]


def test_it_says_what_cannot_be_used(serve: Serve, built: Built, open_page: OpenPage) -> None:
    page = open_page(serve(config=built(more=FEW_VARIANTS).path).url, script=NO_PORTS)
    page.click("#midi-panel-button")
    assert page.is_disabled("#midi-out")
    assert "no Web MIDI" in page.inner_text("#midi-out-note")
    assert "does not tell its notes" in page.inner_text("#midi-save-note")
    assert page.is_disabled("#stems-save")
    assert "does not tell its layers apart" in page.inner_text("#stems-save-note")
    assert "does not play notes" in page.inner_text("#keys-note")
    assert page.is_disabled("#at-bar")
