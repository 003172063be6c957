"""Reports of a session: layout, controls, state, picture."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_parts import session_core
from helpers.live_simulation import CHANNELS, MODEL, PLANNING, Simulation, new_session
from helpers.simulated_form import FACTS, SimulatedForm

from runtime.base.errors import RequestError
from runtime.config.notes import NoteLayerSpec, NotesSpec
from runtime.config.option_ranges import ControlsSpec
from runtime.live.hosting.work import make_part
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.song import SongMaker
from runtime.live.playback.bars import BarLines
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, PlacedSource, Placement
from runtime.live.playback.playhead import SessionClock
from runtime.live.protocol.actions import NoteFacts
from runtime.live.protocol.messages import Ack, LivePrompt, Open, SetBand, SetSource
from runtime.live.session import reports
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptWords

CLOCK = SessionClock(0.0)


def canvas(frames: int) -> Canvas:
    """A ramp over frames in the first of two channels; its second half is newer."""
    latents = np.zeros((frames, 2), np.float32)
    latents[:, 0] = np.linspace(-1, 1, frames)
    piece, half = Piece("p", latents), frames // 2
    return Canvas((CanvasPart(piece, 0, 0, half, 1, 1), CanvasPart(piece, half, half, frames, 2, 2)))


def test_controls_name_the_source() -> None:
    state = ControlState(MODEL, CLOCK, {"guidance": 4.0}, [], "tokens", 9)
    source = PlacedSource("abc", 0.5, Piece("s", np.zeros((4, 2), np.float32)))
    found = reports.controls(MODEL, state, source, [])
    assert (found.source_id, found.source_strength, found.seed, found.blend) == ("abc", 0.5, 9, "tokens")
    assert found.values["guidance"] == 4.0


@pytest.mark.parametrize(("words", "texts"), [(lambda texts: PromptWords((), (), {}), ("a", "b")), (None, ())])
def test_texts_are_those_that_say_something_to_a_model_that_reads(words: Any, texts: tuple[str, ...]) -> None:
    prompts = [LivePrompt(text="a"), LivePrompt(text="")]
    state = ControlState(MODEL, CLOCK, {"negative_prompt": "b"}, prompts, "tokens", 9)
    assert reports.texts(replace(MODEL, words=words), state) == texts


def test_musical_controls_are_those_that_the_bundle_offers() -> None:
    music = ControlsSpec.model_validate(
        {"meter": {"option": "time_signature", "values": [4, 3]}, "density": {"words": ["sparse", "", "dense"]}}
    )
    state = ControlState(MODEL, CLOCK, {}, [], "velocity", 9)
    found = reports.controls(replace(MODEL, music=music), state, None, [])
    assert {name: item.model_dump() for name, item in found.music.items()} == {
        "meter": {"words": [], "option": "time_signature", "values": [4, 3]},
        "density": {"words": ["sparse", "", "dense"], "option": None, "values": []},
    }
    assert reports.controls(MODEL, state, None, []).music == {}


def test_values_are_all_that_a_client_may_have_changed() -> None:
    prompts = [{"text": "a", "weight": 0.5}]
    simulation = Simulation(new_session(controls={"guidance": 4.0}, prompts=prompts, blend="tokens", seed=9))
    simulation.run(0.5)
    assert simulation.session.values()["band"] is None
    simulation.handle(SetSource(seq=1, id="abc", strength=0.5), np.zeros((4, CHANNELS), np.float32))
    simulation.handle(SetBand(seq=2, start_s=0.4, end_s=0.8))
    found = simulation.session.values()
    assert (found["guidance"], found["seed"], found["blend"], found["prompts"]) == (4.0, 9, "tokens", prompts)
    assert (found["source"], found["timbre"]) == ({"id": "abc", "strength": 0.5}, None)
    assert (found["band"], found["playing"], found["mode"]) == ([0.4, 0.8], True, "loop")


def test_the_position_on_the_canvas_is_that_of_the_playhead() -> None:
    core = session_core()
    core.timeline.place(Placement(0, canvas(10), 0, 4, (0, 10)))
    core.playhead.send(1000)
    core.playhead.ack(Ack(playhead_sample=500))
    state = reports.state(core, BarLines(MODEL, core.timeline, list))
    assert state.beat is None
    assert state.canvas_position_s == (4 + 12.5 - 10) / 25
    assert state.loop == [0, 10 / 25]
    assert (state.playhead_sample, state.generations_in_flight) == (500, 0)


def test_a_picture_has_a_row_per_channel_and_the_seqs_of_its_columns() -> None:
    picture = reports.picture(MODEL, canvas(600), 0)
    assert (picture.width, picture.height) == (512, 2)
    pixels = np.frombuffer(base64.b64decode(picture.data), np.uint8).reshape(2, 512)
    assert (np.diff(pixels[0].astype(int)) >= 0).all()
    assert (pixels[0, 0], pixels[0, -1]) == (0, 255)
    assert (picture.seqs[0], picture.seqs[-1]) == (1, 2)
    assert (picture.start_s, picture.seconds) == (0.0, 24.0)
    later = reports.picture(MODEL, canvas(600), 500)
    assert (later.start_s, later.seconds, later.width) == (20.0, 4.0, 100)
    assert reports.picture(MODEL, Canvas(), 0).width == 0


def test_levels_of_notes_are_as_light_as_they_are_whatever_else_there_is() -> None:
    spec = NotesSpec(scale=2.0, on=0.2, off=0.1, layers=(NoteLayerSpec(name="a", channels=(1,), keys=(60,)),))
    noted = replace(MODEL, notes=NoteFacts(spec, np.array([0.5, 0.5], np.float32)))
    levels = np.array([[9, 0.5], [-9, 1.5], [0, 2.5], [0, 7]], np.float32)  # [T, C]
    known = Canvas((CanvasPart(Piece("a", levels), 0, 0, 4, 1, 1),))
    picture = reports.picture(noted, known, 0)
    pixels = np.frombuffer(base64.b64decode(picture.data), np.uint8).reshape(2, 4)
    assert pixels[1].tolist() == [0, 127, 255, 255]


def test_a_plan_has_the_sections_from_a_frame_on_at_their_place_on_the_canvas() -> None:
    song = SongMaker(PLANNING, CLOCK, 64)
    song.restart(GenerationOptions(prompt=""), 1, 10)
    work = song.work(0, 0)
    form = SimulatedForm(work.begin)
    song.made(work.number, make_part(form, work))
    found = reports.plan(song.outline, 23, 25.0)
    assert found.header == {"bpm": 100}
    assert [(section.index, section.start_s) for section in found.sections] == [(1, 0.88), (2, 1.84)]


def test_who_asks_for_a_plan_gets_one_where_there_is_one() -> None:
    default = replace(PLANNING, plan=replace(FACTS, is_default=True))
    extend, loop = Open(mode="extend"), Open(mode="loop")
    assert [reports.has_plan(model, extend) for model in (MODEL, PLANNING, default)] == [False, False, True]
    assert not reports.has_plan(default, loop)
    assert not reports.has_plan(default, Open(mode="extend", plan=False))
    for model, opened in ((MODEL, Open(mode="extend", plan=True)), (default, Open(mode="loop", plan=True))):
        with pytest.raises(RequestError, match="plan"):
            reports.has_plan(model, opened)
