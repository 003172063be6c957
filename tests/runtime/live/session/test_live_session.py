"""LiveSession by a simulated clock, engine, codec and client."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from helpers.live_simulation import (
    CHANNELS,
    FRAME,
    GUIDANCE,
    HOP,
    LENGTHS,
    MODEL,
    NUMBER,
    RATE,
    SEQ,
    Simulation,
    new_session,
    playing,
)

from runtime.base.errors import RequestError, StaleSeqError
from runtime.engines.adapters import Adapter, AdapterCatalog
from runtime.live.playback.playhead import REACH_S
from runtime.live.protocol import messages
from runtime.live.protocol.actions import DecodeWindow, End, FindWords, LiveModel
from runtime.live.protocol.messages import LivePrompt
from runtime.live.protocol.server_messages import Applied, CanvasPicture, Problem, State, TextWords
from runtime.live.session.live_session import LiveSession
from runtime.live.session.reports import prompt_words
from runtime.requests.options import GenerationOptions, StepOptions
from runtime.requests.prompt_words import PromptMeaning, PromptWords


def reached_s(simulation: Simulation, seq: int, since: int) -> float:
    """Seconds from sample `since` to the first heard sample that is complete up to `seq`."""
    full = np.flatnonzero(simulation.seqs[since : simulation.playhead, 1] >= seq)
    assert len(full), f"seq {seq} was not heard"
    return float(full[0]) / RATE


def test_a_loop_repeats_its_canvas_without_gaps_and_without_generations() -> None:
    simulation = playing(6.0)
    assert len(simulation.jobs) == 1
    frames = simulation.heard[::HOP, FRAME]
    assert np.array_equal(frames, np.arange(len(frames)) % LENGTHS[-1])


def test_the_words_of_the_prompts_are_reported_where_they_change() -> None:
    def words(texts: Iterable[str]) -> PromptWords:
        return PromptWords(tuple(texts), ("jazz",))

    model = dataclasses.replace(MODEL, words=words)
    simulation = Simulation(new_session(model=model, prompts=[LivePrompt(text="a")]))
    session = simulation.session
    assert found_words(session, messages.SetControls(seq=1, values={"bpm": 120})) is None
    first = TextWords(text="a", understood=["a"], unknown=["jazz"])
    assert session.attach("token", 0.0, keep_s=60.0).controls.prompt_words == [first]

    def reported(message: messages.ClientMessage) -> list[Applied]:
        simulation.messages.clear()
        simulation.handle(message)
        simulation.advance()
        return simulation.of(Applied)

    items = [LivePrompt(text="a", weight=0.5)]
    assert reported(messages.SetPrompts(seq=2, items=items)) == []
    (applied,) = reported(messages.SetControls(seq=3, values={"negative_prompt": "b"}))
    assert (applied.seq, applied.first_sample) == (3, None)
    second = TextWords(text="b", understood=["b"], unknown=["jazz"])
    assert applied.prompt_words == [first, second]
    assert reported(messages.SetPrompts(seq=4, items=[]))[0].prompt_words == [second]


def telling_model() -> LiveModel:
    """A model whose prompts mean themselves and the tempo that is set; "long" cannot be encoded."""

    def meaning(text: str, options: GenerationOptions, seed: int) -> PromptMeaning:
        if text == "long":
            raise RequestError("too long")
        return PromptMeaning(
            text, {"tempo": (f"{options.bpm:g} bpm" if options.bpm else "no bpm",)}, ("genre", f"seed {seed}")
        )

    return dataclasses.replace(MODEL, words=lambda texts: PromptWords(tuple(texts)), meaning=meaning)


def found_words(session: LiveSession, message: messages.ClientMessage) -> list[TextWords] | None:
    """What a message lets the session report of its texts."""
    session.handle(message, 0.0)
    for action in session.advance(0.0):
        if isinstance(action, FindWords):
            return prompt_words(session.model, action.texts, action.options, action.seed)
    return None


def test_what_prompts_mean_follows_their_options_and_not_the_control_seed() -> None:
    opened = messages.Open(prompts=[LivePrompt(text="a")], controls={"bpm": 100}, seed=5)
    session = LiveSession("s", telling_model(), opened, 0.0)
    (first,) = session.attach("token", 0.0, keep_s=60.0).controls.prompt_words
    assert first.meaning == {"tempo": ["100 bpm"]}
    assert (first.plays, first.drawn) == ("100 bpm · genre drawn by the seed: seed 5", {"genre": "seed 5"})
    assert found_words(session, messages.SetControls(seq=1, values={"seed": 9})) is None
    assert found_words(session, messages.SetControls(seq=2, values={"guidance": 2.0})) is None
    assert found_words(session, messages.SetPrompts(seq=3, items=[LivePrompt(text="a", weight=0.5)])) is None
    (faster,) = found_words(session, messages.SetControls(seq=4, values={"bpm": 120, "seed": 7})) or []
    assert (faster.meaning, faster.drawn) == ({"tempo": ["120 bpm"]}, first.drawn)
    assert LiveSession.restore(session.snapshot(0.0), session.model, 0.0).seed == session.seed == 5


def test_what_prompts_mean_is_told_when_a_change_begins_that_has_waited() -> None:
    """Not before: then their words are still the old ones."""
    prompts, controls = [LivePrompt(text="a")], {"bpm": 100}
    simulation = Simulation(new_session(model=telling_model(), prompts=prompts, controls=controls))

    def told() -> list[tuple[int, str]]:
        return [(told.seq, words.plays) for told in simulation.of(Applied) for words in told.prompt_words or ()]

    simulation.run(1.0)
    change = messages.SetControls(seq=1, values={"bpm": 120}, at=simulation.playhead / RATE + 2.0)
    simulation.session.handle(change, simulation.now_s)
    simulation.run(1.0)
    assert told() == []
    simulation.run(2.0)
    assert told() == [(1, "120 bpm · genre drawn by the seed: seed 1")]


@pytest.mark.parametrize("opening", [{"seed": 5}, {"controls": {"seed": 5}}, {"seed": 5, "controls": {"seed": 6}}])
def test_the_seed_of_a_session_is_the_one_that_it_is_opened_with(opening: dict[str, Any]) -> None:
    session = LiveSession("s", MODEL, messages.Open(**opening), 0.0)
    assert session.seed == 5
    assert session.attach("token", 0.0, keep_s=60.0).controls.seed == opening.get("controls", opening)["seed"]


def test_a_prompt_that_cannot_be_encoded_has_words_and_no_meaning() -> None:
    session = LiveSession("s", telling_model(), messages.Open(prompts=[LivePrompt(text="a")]), 0.0)
    items = [LivePrompt(text="long"), LivePrompt(text="b")]
    first, second = found_words(session, messages.SetPrompts(seq=1, items=items)) or []
    assert (first.understood, first.plays, first.meaning) == (["long"], "", {})
    assert second.meaning == {"tempo": ["no bpm"]}


def test_a_picture_is_made_once_for_all_that_ask_for_it() -> None:
    simulation = playing()
    for _ in range(5):
        simulation.session.handle(messages.GetCanvas(), simulation.now_s)
    sent = [action for action in simulation.session.advance(simulation.now_s) if isinstance(action, messages.Message)]
    (picture,) = [message for message in sent if isinstance(message, CanvasPicture)]
    assert (picture.width, picture.height, len(picture.seqs)) == (LENGTHS[-1], CHANNELS, LENGTHS[-1])


def test_extension_goes_on_without_repetition() -> None:
    simulation = playing(8.0, mode="extend")
    frames = simulation.heard[::HOP, FRAME]
    assert np.array_equal(frames, np.arange(len(frames)))
    assert len({job.options.seed for job in simulation.jobs}) == len(simulation.jobs)
    assert all(job.segment.keep_frames == MODEL.overlap_frames for job in simulation.jobs[1:])


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_generation_parameter_is_heard_after_one_generation_and_the_reach(mode: str) -> None:
    simulation = playing(mode=mode)
    since = simulation.playhead
    simulation.set(1, shift=2.0)
    simulation.run(1.0)
    assert reached_s(simulation, 1, since) <= simulation.generation_s + 0.06 + 0.03
    assert not np.isnan(simulation.heard).any()


def test_a_step_parameter_reaches_the_generation_in_flight() -> None:
    simulation = playing()
    simulation.set(1, shift=2.0)
    simulation.run(0.05)
    simulation.set(2, guidance=7.0)
    simulation.run(0.5)
    assert simulation.updates[0].patch == {"guidance": 7.0}
    replaced = [chunk for chunk, _ in simulation.chunks if chunk.is_replacing]
    assert (replaced[0].first_seq, replaced[0].full_seq) == (2, 1)
    assert replaced[0].pcm[0, GUIDANCE] == 7.0
    assert simulation.chunks[-1][0].full_seq == 2


def test_the_newest_value_wins_and_a_turning_knob_is_heard_all_the_time() -> None:
    simulation = playing()
    since = simulation.playhead
    for seq in range(1, 101):
        simulation.set(seq, shift=1.0 + seq / 100)
        simulation.run(0.02)
    simulation.run(0.5)
    assert simulation.cancelled == []
    heard = np.unique(simulation.seqs[since : simulation.playhead, 1])
    assert len(heard) > 15
    assert simulation.chunks[-1][0].full_seq == 100
    assert simulation.jobs[-1].options.shift == 2.0


def test_a_ramp_moves_step_parameters_in_small_steps_and_ends_complete() -> None:
    simulation = playing(slots=1)
    simulation.set(1, ramp_ms=400, guidance=7.0)
    simulation.run(0.3)
    assert simulation.chunks[-1][0].full_seq == 0
    simulation.run(1.0)
    values = [update.patch["guidance"] for update in simulation.updates]
    assert values == sorted(values)
    assert len(values) <= 0.5 / 0.02
    assert simulation.chunks[-1][0].full_seq == 1
    assert simulation.chunks[-1][0].pcm[0, GUIDANCE] == 7.0


def test_a_ramp_validates_nothing_after_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = playing(slots=1)
    simulation.set(1, ramp_ms=400, guidance=7.0)

    def refuse(*values: object, **members: object) -> None:
        raise AssertionError("a value is validated again")

    monkeypatch.setattr(StepOptions, "__init__", refuse)  # of GenerationOptions, too
    monkeypatch.setattr(StepOptions, "model_validate", refuse)
    simulation.run(1.3)
    assert simulation.updates[-1].patch == {"guidance": 7.0}
    assert simulation.jobs[-1].options.guidance == 7.0
    with pytest.raises(AssertionError, match="validated again"):
        simulation.set(2, guidance=5.0)


def test_an_interval_that_would_end_before_it_begins_is_refused() -> None:
    simulation = playing()
    simulation.set(1, cfg_interval_start=0.6)
    with pytest.raises(RequestError, match="cfg_interval_start <= cfg_interval_end") as caught:
        simulation.set(2, cfg_interval_end=0.5)
    assert caught.value.field == "values"
    simulation.set(2, cfg_interval_start=None, cfg_interval_end=0.5)
    simulation.run(1.0)
    assert simulation.jobs[-1].options.cfg_interval_end == 0.5


def test_one_adapter_changes_and_ramps_to_null_while_others_stay() -> None:
    factors = np.zeros((4, 8), np.float32)
    catalog = AdapterCatalog({name: Adapter(name, factors, factors) for name in ("soft", "hard")}, 8)
    both = [{"id": "soft", "strength": 1.0}, {"id": "hard", "strength": 0.5}]
    model = dataclasses.replace(MODEL, catalog=lambda: catalog)
    simulation = playing(1.0, model=model, slots=1, controls={"adapters": both})
    with pytest.raises(RequestError, match="no adapter 'sofd'"):
        simulation.handle(messages.SetAdapter(seq=1, id="sofd", strength=1.0))
    simulation.handle(messages.SetAdapter(seq=1, id="soft", strength=None, ramp_ms=400.0))
    simulation.run(1.5)
    used = [update.patch["adapters"] for update in simulation.updates]
    strengths = [{item.id: item.strength for item in items or ()} for items in used]
    assert all(found["hard"] == 0.5 for found in strengths)
    fading = [found["soft"] for found in strengths if "soft" in found]
    assert len(fading) > 4
    assert fading == sorted(fading, reverse=True)
    last = simulation.jobs[-1].options.adapters
    assert last is not None
    assert [item.id for item in last] == ["hard"]


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_change_for_later_is_heard_from_its_sample_on(mode: str) -> None:
    simulation = playing(mode=mode)
    simulation.set(1, at=4.01, shift=2.0)
    simulation.run(3.0)
    full = simulation.seqs[: simulation.playhead, 1]
    assert int(np.argmax(full >= 1)) == round(4.01 * RATE)
    assert not np.isnan(simulation.heard).any()


def test_a_change_for_the_past_is_heard_at_once() -> None:
    simulation = playing()
    since = simulation.playhead
    simulation.set(1, at=0.5, shift=2.0)
    simulation.run(0.5)
    assert reached_s(simulation, 1, since) < 0.3


def test_applied_names_the_samples_that_the_client_hears() -> None:
    simulation = playing()
    simulation.set(1, shift=2.0)
    simulation.run(1.0)
    applied = simulation.applied(1)
    assert applied.tick == 7
    assert int(np.argmax(simulation.seqs[:, 1] >= 1)) == applied.full_sample == applied.first_sample


def test_a_loop_without_variation_keeps_its_noise() -> None:
    simulation = playing()
    simulation.set(1, shift=2.0)
    simulation.run(0.5)
    assert [job.noise for job in simulation.jobs] == [None, None]
    assert simulation.jobs[0].options.seed == simulation.jobs[1].options.seed == 1


def test_variation_generates_without_end_with_related_noise() -> None:
    simulation = playing(controls={"variation": 0.3})
    starts = len(simulation.jobs)
    assert starts > 2.0 / simulation.generation_s
    noises = [job.noise for job in simulation.jobs[1:4] if job.noise is not None]
    assert len(noises) == 3
    assert np.std(noises[2]) == pytest.approx(1.0, abs=0.15)
    assert np.corrcoef(noises[0].ravel(), noises[1].ravel())[0, 1] == pytest.approx(np.sqrt(1 - 0.3**2), abs=0.1)
    simulation.set(1, variation=0.0)
    simulation.run(1.0)
    starts = len(simulation.jobs)
    simulation.run(1.0)
    assert len(simulation.jobs) == starts


def test_a_paused_session_does_nothing() -> None:
    simulation = playing(controls={"variation": 0.3})
    simulation.handle(messages.Pause())
    simulation.run(0.5)
    counts = len(simulation.jobs), len(simulation.chunks), len(simulation.messages), simulation.commits
    simulation.run(5.0)
    assert counts == (len(simulation.jobs), len(simulation.chunks), len(simulation.messages), simulation.commits)
    assert simulation.session.due_s() is None or not simulation.session.playhead.is_active
    simulation.handle(messages.Play())
    simulation.run(1.0)
    assert len(simulation.jobs) > counts[0]
    assert not np.isnan(simulation.heard).any()


def test_a_client_that_does_not_report_gets_no_more_audio() -> None:
    simulation = playing()
    simulation.is_acking = False
    simulation.run(6.0)
    sent = simulation.chunks[-1][0].end_sample
    simulation.run(3.0)
    assert simulation.chunks[-1][0].end_sample == sent
    simulation.is_acking = True
    simulation.run(1.0)
    assert simulation.chunks[-1][0].end_sample > sent
    assert simulation.session.playhead.underruns == 1


def test_an_underrun_skips_the_axis_but_no_music() -> None:
    simulation = Simulation(new_session(mode="extend", seconds=0.6), generation_s=1.2)
    simulation.run(6.0)
    assert simulation.session.playhead.underruns > 0
    flagged = [chunk for chunk, _ in simulation.chunks if chunk.is_after_underrun]
    assert simulation.session.playhead.underruns - len(flagged) in (0, 1)
    heard = simulation.heard[:, FRAME]
    known = heard[~np.isnan(heard)]
    assert set(np.diff(known)) <= {0.0, 1.0}


def test_a_band_repeats_a_part_and_seek_jumps_within_it() -> None:
    simulation = playing()
    simulation.handle(messages.SetBand(seq=1, start_s=0.4, end_s=0.8))
    simulation.run(2.0)
    frames = simulation.heard[-RATE::HOP, FRAME]
    assert set(frames) == set(range(10, 20))
    assert simulation.chunks[-1][0].full_seq == 1
    simulation.handle(messages.Seek(to_s=0.6))
    simulation.run(0.5)
    with pytest.raises(RequestError, match=r"from 0\.40 to 0\.80 s"):
        simulation.handle(messages.Seek(to_s=2.0))
    simulation.handle(messages.SetBand(seq=2, start_s=None, end_s=None))
    simulation.run(3.0)
    assert len(set(simulation.heard[-2600::HOP, FRAME])) == LENGTHS[-1]
    assert len(simulation.jobs) == 1


def test_a_session_that_is_opened_paused_generates_nothing_before_play() -> None:
    simulation = Simulation(new_session(paused=True))
    simulation.run(1.0)
    assert not simulation.jobs
    simulation.handle(messages.Play())
    simulation.run(1.0)
    assert simulation.chunks


def test_a_reset_is_heard_with_its_seq_and_a_loop_has_none() -> None:
    simulation = playing(1.0, mode="extend")
    simulation.handle(messages.Reset(seq=1))
    simulation.run(0.5)
    chunk, _ = next(item for item in simulation.chunks if item[0].full_seq == 1)
    assert chunk.pcm[0, NUMBER] == 1
    assert not np.isnan(simulation.heard).any()
    with pytest.raises(RequestError, match="open the session with mode extend"):
        playing().handle(messages.Reset(seq=1))


def test_a_write_is_heard_as_it_is_and_becomes_the_source() -> None:
    simulation = playing()
    write = messages.WriteAudio(seq=1, at_s=0.41, samples=100)
    offset, before = simulation.session.write_region(write)
    assert (offset, len(before)) == (10, 3)
    simulation.handle(write, np.full((3, CHANNELS), -5.0, np.float32))
    simulation.run(3.0)
    assert len(simulation.jobs) == 1
    assert np.count_nonzero(simulation.heard[-64 * HOP :, NUMBER] == -5.0) == 3 * HOP
    simulation.set(2, shift=2.0)
    simulation.run(0.1)
    source = simulation.jobs[-1].source
    assert (source[10:13, NUMBER] == -5.0).all()


def test_a_write_is_encoded_in_whole_groups_of_the_codec() -> None:
    simulation = playing(1.0, model=dataclasses.replace(MODEL, align_frames=4, margin_frames=4))
    write = messages.WriteAudio(seq=1, at_s=0.25, samples=3 * HOP)  # frames 6 to 9
    offset, latents = simulation.session.write_region(write)
    assert latents[:, FRAME].tolist() == list(range(4, 12))
    assert offset == 250 - 4 * HOP
    simulation.handle(write, np.full((8, CHANNELS), -5.0, np.float32))
    simulation.run(3.0)
    assert np.count_nonzero(simulation.heard[-64 * HOP :, NUMBER] == -5.0) == 8 * HOP


def test_what_was_heard_stays_when_a_write_comes_late() -> None:
    simulation = playing(mode="extend")
    simulation.handle(messages.WriteAudio(seq=1, at_s=0.0, samples=60 * HOP), np.full((60, CHANNELS), -5.0, np.float32))
    simulation.handle(messages.Seek(to_s=0.0))
    simulation.run(2.6)
    frames = simulation.heard[-2500::HOP, NUMBER]
    assert (frames[:40] == 0.0).all()
    assert (frames == -5.0).any()


def test_a_failed_generation_is_reported_once_and_tried_again() -> None:
    simulation = playing()
    simulation.fails_next = True
    simulation.set(1, shift=2.0)
    simulation.run(0.5)
    assert len(simulation.jobs) == 2
    assert [problem.code for problem in simulation.of(Problem)] == ["engine_error"]
    simulation.run(2.0)
    assert simulation.chunks[-1][0].full_seq == 1


def test_wrong_messages_change_nothing() -> None:
    simulation = playing()
    simulation.set(5, shift=2.0)
    wrong: list[messages.ClientMessage] = [
        messages.SetControls(seq=6, values={"guidance": 99}),
        messages.SetControls(seq=6, values={"guidnce": 1}),
        messages.SetBand(seq=6, start_s=0.0, end_s=99.0),
        messages.SetSource(seq=6, id="missing"),
        messages.SetTimbre(seq=6, id="x"),
        messages.WriteAudio(seq=6, at_s=0.0, samples=100 * HOP),
        messages.Ack(playhead_sample=10**9),
        messages.Open(),
    ]
    before = simulation.session.snapshot(simulation.now_s).meta
    for message in wrong:
        with pytest.raises(RequestError):
            simulation.session.handle(message, simulation.now_s)
    with pytest.raises(StaleSeqError):
        simulation.set(5, shift=3.0)
    assert simulation.session.snapshot(simulation.now_s).meta == before


def test_a_timbre_reaches_the_next_generations_until_it_is_removed() -> None:
    simulation = playing()
    reference = np.ones((12, CHANNELS), np.float32)
    simulation.handle(messages.SetTimbre(seq=1, id="x", strength=0.5), reference)
    simulation.run(0.5)
    assert simulation.jobs[-1].timbre is reference
    assert simulation.jobs[-1].options.timbre_strength == 0.5
    snapshot = simulation.session.snapshot(simulation.now_s)
    restored = LiveSession.restore(snapshot, MODEL, 0.0).snapshot(0.0)
    assert restored.meta["generations"]["timbre"] == snapshot.meta["generations"]["timbre"] == "timbre/1/x"
    simulation.handle(messages.SetTimbre(seq=2, id=None))
    simulation.run(0.5)
    assert simulation.jobs[-1].timbre is None


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_structure_reaches_the_next_generations_until_it_is_removed(mode: str) -> None:
    simulation = playing(mode=mode)
    hints = np.arange(10.0)[:, None] + np.zeros((10, CHANNELS), np.float32)
    simulation.handle(messages.SetStructure(seq=1, id="x", strength=0.5), hints)
    simulation.run(0.5)
    job = simulation.jobs[-1]
    start, frames = job.segment.start_frame, job.segment.frames
    assert job.hints[:, 0].tolist() == [frame % 10 for frame in range(start, start + frames)]
    assert (job.source, job.options.structure_strength) == (None, 0.5)
    simulation.restart()
    simulation.set(2, shift=2.0)
    simulation.run(0.5)
    assert simulation.jobs[-1] is not job
    assert simulation.jobs[-1].hints is not None
    assert simulation.session.snapshot(0.0).meta["generations"]["structure"] == ["x", None, "structure/1/x", 0]
    simulation.handle(messages.SetStructure(seq=3, id=None))
    simulation.run(0.5)
    assert simulation.jobs[-1].hints is None
    assert simulation.jobs[-1].options.structure_strength is None


def test_a_model_without_text_refuses_prompts() -> None:
    with pytest.raises(RequestError, match="takes no text"):
        new_session(model=dataclasses.replace(MODEL, has_text=False), prompts=[LivePrompt(text="piano")])


def test_close_ends_the_session() -> None:
    simulation = playing()
    simulation.session.handle(messages.Close(), simulation.now_s)
    assert End() in simulation.session.advance(simulation.now_s)


def test_a_new_connection_begins_an_epoch_at_the_playhead() -> None:
    simulation = playing()
    simulation.session.detach(simulation.now_s)
    assert not simulation.session.playhead.is_active
    ready = simulation.session.attach("new", simulation.now_s, keep_s=60.0)
    assert (ready.resumed, ready.epoch) == (True, 2)
    assert abs(ready.next_sample - (simulation.playhead or 0)) < 100
    assert [simulation.session.has_token(token) for token in ("new", "token", "other")] == [True, False, False]


@pytest.mark.parametrize(
    "opened", [{"mode": "loop"}, {"mode": "loop", "controls": {"variation": 0.5}}, {"mode": "extend"}]
)
def test_nothing_is_in_flight_without_a_client_and_what_was_is_made_again(opened: dict[str, object]) -> None:
    simulation = playing(3.0, **opened)
    simulation.set(1, shift=2.0)
    while not simulation.flights:
        simulation.step()
    in_flight = [flight.job for flight in simulation.flights]
    simulation.session.detach(simulation.now_s)
    simulation.advance()
    assert simulation.cancelled[-len(in_flight) :] == [job.id for job in in_flight]
    assert simulation.session.core.flights.running == []
    num_jobs = len(simulation.jobs)
    simulation.run(1.0)
    assert len(simulation.jobs) == num_jobs
    simulation.connect()
    simulation.run(0.5)
    again, before = simulation.jobs[num_jobs], in_flight[0]
    assert again.options.seed == before.options.seed
    assert again.segment.keep_frames == before.segment.keep_frames
    assert np.array_equal(again.noise, before.noise) if before.noise is not None else again.noise is None


def test_audio_is_not_decoded_without_a_client() -> None:
    simulation = playing()
    window = next(each for _ in range(100) for each in windows_after_a_step(simulation))
    assert simulation.session.is_current(window)
    simulation.session.detach(simulation.now_s)
    assert not simulation.session.is_current(window)


def windows_after_a_step(simulation: Simulation) -> list[DecodeWindow]:
    simulation.now_s += 0.005
    return [each for each in simulation.session.advance(simulation.now_s) if isinstance(each, DecodeWindow)]


def test_a_change_without_effect_on_latents_is_complete_also_after_a_restart_in_a_pause() -> None:
    simulation = playing()
    simulation.handle(messages.Pause())
    simulation.handle(messages.SetBand(seq=1, start_s=0.0, end_s=0.2))
    simulation.session.detach(simulation.now_s)
    simulation.restart()
    simulation.handle(messages.Play())
    simulation.run(1.0)
    assert simulation.chunks[-1][0].full_seq == 1


def test_a_turned_control_is_reported_and_stored_no_more_than_needed() -> None:
    simulation = playing()
    commits, states = simulation.commits, len(simulation.of(State))
    for seq in range(1, 201):
        simulation.set(seq, guidance=1.0 + seq / 100)
        simulation.run(0.005)
    assert 5 <= simulation.commits - commits <= 25
    assert len(simulation.of(State)) - states <= 6
    simulation.run(0.1)
    assert LiveSession.restore(simulation.session.snapshot(simulation.now_s), MODEL, 0.0)


def test_changes_of_a_paused_session_are_stored_at_once() -> None:
    simulation = playing()
    simulation.handle(messages.Pause())
    commits = simulation.commits
    simulation.set(1, guidance=4.0)
    simulation.set(2, guidance=5.0)
    assert simulation.commits == commits + 2


def test_after_an_ack_a_session_is_due_when_the_first_of_its_parts_is() -> None:
    simulation = playing(1.0)
    session, due_parts = simulation.session, set[str]()
    for _ in range(30):
        simulation.run(0.02)
        session.handle(messages.Ack(playhead_sample=simulation.playhead), simulation.now_s)
        due_s = session.due_s()
        parts = {"audio": session.audio.due_s, "state": session.reporter.due_s}
        assert all(part_s is None or due_s <= part_s for part_s in parts.values())
        due_parts |= {name for name, part_s in parts.items() if part_s == due_s}
    assert "audio" in due_parts


class MarginSimulation(Simulation):
    """Its codec hears `margin_frames` on both sides: a sample is the oldest and the newest seq that it is made of."""

    def _finish_decodes(self) -> int:
        margin = self.session.model.margin_frames
        self._decodes, windows = [], [window for _, window in self._decodes]
        for window in windows:
            near = [window.values[max(0, i - margin) : i + margin + 1, SEQ] for i in range(len(window.values))]
            values = np.zeros_like(window.values)
            values[:, 0], values[:, 1] = [part.min() for part in near], [part.max() for part in near]
            pcm = np.repeat(values, self.session.model.hop_samples, axis=0)[window.trim_begin : window.trim_end]
            self.session.decoded(window, pcm)
        return len(windows)


@pytest.mark.parametrize(("margin", "align"), [(0, 1), (2, 2), (12, 1)])
@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_after_a_generation_a_change_waits_for_the_reach_and_is_complete_after_the_codec_s_margin(
    mode: str, margin: int, align: int
) -> None:
    """With long frames. A loop's canvas is new as a whole; in mode extend the frames before the change stay."""
    hop = 93
    model = dataclasses.replace(
        MODEL, hop_samples=hop, frame_rate_hz=RATE / hop, margin_frames=margin, align_frames=align, lengths=(64,)
    )
    simulation = MarginSimulation(new_session(model=model, mode=mode), decode_s=0.0, network_s=0.0)
    simulation.run(2.0)
    since = simulation.playhead
    simulation.handle(messages.SetPrompts(seq=1, items=[LivePrompt(text="b")]))
    simulation.run(4.0)
    heard = simulation.heard[since:, :2] >= 1
    assert heard[-1].all()
    complete, begun = (len(heard) - np.argmin(seqs[::-1]) for seqs in heard.T)
    reach = round((simulation.generation_s + REACH_S) * RATE)
    most = 10 + (hop if margin == 0 and mode == "extend" else 0)  # the simulation's own steps; a frame begins
    assert reach <= begun <= reach + most
    if mode == "loop" or margin == 0:
        assert complete == begun
    else:
        assert margin * hop <= complete - reach <= (margin + align + 1) * hop
