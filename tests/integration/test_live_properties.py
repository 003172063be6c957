"""Live sessions under any order of controls, acknowledgements, finishes, failures, losses, restarts."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, FRAME, FRAME_RATE, HINT, HOP, NUMBER, RATE, Simulation, new_session
from helpers.simulated_form import FRAMES_PER_BAR, FRAMES_PER_CODE, SimulatedForm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.base.errors import RequestError
from runtime.live.parts.song import basis_of
from runtime.live.protocol import messages
from runtime.live.protocol.actions import SongBeginning
from runtime.live.protocol.messages import LivePrompt, NewSection, SetPlan
from runtime.live.protocol.server_messages import Plan, Problem, State
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.store import SessionSnapshot
from runtime.music.sections import SongState
from runtime.requests.options import GenerationOptions

LONGEST_S = 30.0
STATEFUL = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
# Of the slow variant; every run of it draws others, or those of --hypothesis-seed.
NUM_EXAMPLES = int(os.environ.get("LIVE_EXAMPLES", "500"))
LEAST_AND_UNIT = {"shift": (0.5, 1), "bpm": (90, 20)}  # of the values that are drawn
BREAK = ("break", "bass")
# Of an edit: its section, counted from the last; bars of new sections; codes.
EDITS = (
    st.tuples(st.integers(0, 5), st.sampled_from([None, [], [1], [4, 1], [3]]), st.lists(st.integers(0, 9), max_size=4))
    .filter(lambda edit: edit[1] is not None or edit[2] != [])
    .filter(lambda edit: edit[1] != [] or edit[2] == [])
)
TIMES_S = st.sampled_from([0.005, 0.02, 0.06, 0.15, 0.4, 1.0])


class LiveMachine(RuleBasedStateMachine):
    """One session; after each step everything that was sent and heard so far must hold."""

    @initialize(
        mode=st.sampled_from(["loop", "extend"]),
        seconds=st.sampled_from([None, 0.6]),
        generation_s=st.sampled_from([0.03, 0.14, 0.7]),
        slots=st.integers(1, 3),
        variation=st.sampled_from([0.0, 0.0, 0.4]),
        plan_s=st.sampled_from([None, 0.02, 0.3]),
    )
    def open(
        self,
        mode: str,
        seconds: float | None,
        generation_s: float,
        slots: int,
        variation: float,
        plan_s: float | None,
    ) -> None:
        """plan_s: how long a step of the plan takes; None: there is none."""
        plan = mode == "extend" and plan_s is not None
        controls = {"variation": variation}
        session = new_session(mode=mode, seconds=seconds, slots=slots, controls=controls, plan=plan)
        self.simulation = Simulation(session, generation_s=generation_s, plan_s=plan_s or 0.0)
        self.mode, self.seq = mode, 0
        self.num_checked = 0
        self.sent_until = 0
        self.epoch = 1
        self.heard_frames: dict[int, float] = {}
        self.num_heard = 0
        self.moved = self.was_silent = False
        # By their seq the edits that were taken: where they begin in the plan, bars of their sections, codes.
        self.edits: dict[int, tuple[int, list[int] | None, list[int]]] = {}
        self.basis: object = None
        self.simulation.run(0.1)

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def handle(self, message: messages.ClientMessage, latents: object = None) -> bool:
        """Send a message; a refused one does not take its seq, and is False."""
        seq = self.seq
        try:
            self.simulation.handle(message, latents)
        except RequestError:
            self.seq = seq - (getattr(message, "seq", None) is not None)
            return False
        self.forget_edits()
        return True

    def forget_edits(self) -> None:
        """Another prompt or tempo plans anew, a source plays without a plan."""
        session = self.simulation.session
        basis = basis_of(session.core.controls.final_options())
        if basis != self.basis or session.plan is None or session.plan.is_idle:
            self.basis, self.edits = basis, {}

    @precondition(lambda self: self.simulation.now_s < LONGEST_S)
    @rule(seconds=TIMES_S)
    def wait(self, seconds: float) -> None:
        self.simulation.run(seconds)

    @rule(
        name=st.sampled_from(["guidance", "shift", "variation", "bpm"]),
        value=st.sampled_from([0.0, 0.5, 1.0, None]),
        ramp_ms=st.sampled_from([0.0, 0.0, 100.0, 1000.0]),
        ahead_s=st.sampled_from([None, None, 0.1, 1.0]),
    )
    def set(self, name: str, value: float | None, ramp_ms: float, ahead_s: float | None) -> None:
        at = None if ahead_s is None else (self.simulation.playhead or 0) / RATE + ahead_s
        least, unit = LEAST_AND_UNIT.get(name, (0, 1))
        values = {name: value if value is None else least + unit * value}
        self.handle(messages.SetControls(seq=self.next_seq(), values=values, ramp_ms=ramp_ms, at=at))

    @rule(texts=st.lists(st.sampled_from("abc"), max_size=3), ramp_ms=st.sampled_from([0.0, 300.0]))
    def prompts(self, texts: list[str], ramp_ms: float) -> None:
        items = [LivePrompt(text=text) for text in texts]
        self.handle(messages.SetPrompts(seq=self.next_seq(), items=items, ramp_ms=ramp_ms))

    @rule(strength=st.sampled_from([None, 0.0, 0.5]), is_set=st.booleans())
    def source(self, strength: float | None, is_set: bool) -> None:
        latents = np.zeros((7, CHANNELS), np.float32)
        message = messages.SetSource(seq=self.next_seq(), id="x" if is_set else None, strength=strength)
        self.handle(message, latents if is_set else None)

    @rule(ahead_s=st.sampled_from([0.0, 0.2, 1.0]), frames=st.integers(1, 20))
    def write(self, ahead_s: float, frames: int) -> None:
        at_s = (self.simulation.playhead or 0) / RATE + ahead_s
        message = messages.WriteAudio(seq=self.next_seq(), at_s=int(at_s * 25) / 25, samples=frames * HOP)
        self.handle(message, np.full((frames, CHANNELS), -1.0 - self.seq, np.float32))

    @rule(start_s=st.sampled_from([0.0, 0.2]), seconds=st.sampled_from([0.04, 0.3]))
    def band(self, start_s: float, seconds: float) -> None:
        self.moved = True
        self.handle(messages.SetBand(seq=self.next_seq(), start_s=start_s, end_s=start_s + seconds))

    @rule(to_s=st.sampled_from([0.0, 0.3, 2.0]))
    def seek(self, to_s: float) -> None:
        self.moved = True
        self.handle(messages.Seek(to_s=to_s))

    @rule()
    def reset(self) -> None:
        if self.handle(messages.Reset(seq=self.next_seq())):
            self.edits.clear()

    @precondition(lambda self: self.can_edit)
    @rule(edits=st.lists(EDITS, min_size=1, max_size=3))
    def edit(self, edits: list[tuple[int, list[int] | None, list[int]]]) -> None:
        """Edit the plan where sections begin, counted from the last one; a refused edit changes nothing."""
        told = [message for message in self.simulation.messages if isinstance(message, Plan)][-1].sections
        kind, *layers = BREAK
        for place, bars, codes in edits:
            plan = self.simulation.session.plan
            if plan is None or plan.origin is None or not told:
                return
            start_s = told[max(0, len(told) - 1 - place)].start_s
            sections = None if bars is None else [NewSection(kind=kind, layers=layers, bars=count) for count in bars]
            message = SetPlan(seq=self.next_seq(), start_s=start_s, sections=sections, codes=codes or None)
            before = (plan.published, plan.end, self.num_edits)
            if self.handle(message):
                self.edits[self.seq] = (round(start_s * FRAME_RATE) - plan.origin, bars, codes)
            else:
                assert (plan.published, plan.end, self.num_edits) == before

    @property
    def num_edits(self) -> int:
        """How many edits are not made yet, as the session's document has them."""
        changes = self.snapshot()["generations"]["plan"]["values"]["changes"]
        return sum(change["options"] is None for change in changes)

    def snapshot(self) -> dict[str, Any]:
        return self.simulation.session.snapshot(self.simulation.now_s).meta

    @property
    def can_edit(self) -> bool:
        plan = self.simulation.session.plan
        return plan is not None and plan.is_known and not plan.is_idle

    @rule(plan_s=st.sampled_from([0.02, 0.3, 1.5]))
    def planner(self, plan_s: float) -> None:
        """How long a step of the plan takes from here on."""
        self.simulation.plan_s = plan_s

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        self.handle(messages.Pause() if is_paused else messages.Play())

    @rule()
    def fail(self) -> None:
        self.simulation.fails_next = SimulatedForm.fails_next = True

    @rule(is_acking=st.booleans(), is_lossy=st.booleans())
    def network(self, is_acking: bool, is_lossy: bool) -> None:
        self.was_silent |= not is_acking
        self.simulation.is_acking, self.simulation.is_lossy = is_acking, is_lossy

    @rule(is_restart=st.booleans())
    def reconnect(self, is_restart: bool) -> None:
        """The connection, or the process, ends; the client resumes."""
        self.check()
        self.simulation.session.detach(self.simulation.now_s)
        if is_restart:
            self.simulation.restart()
        else:
            self.simulation.connect()

    @invariant()
    def check(self) -> None:
        if hasattr(self, "simulation"):
            self.check_snapshot()
            self.forget_edits()
            self.check_chunks()
            self.check_heard()

    def check_snapshot(self) -> None:
        """What is stored is restored: it is stored again as it was, but for what is in flight."""
        session, now_s = self.simulation.session, self.simulation.now_s
        stored = session.snapshot(now_s)
        again = LiveSession.restore(SessionSnapshot(stored.meta, stored.pieces), session.model, now_s).snapshot(now_s)
        assert again.pieces.keys() == stored.pieces.keys()
        assert again.meta == stored.meta

    def check_chunks(self) -> None:
        """First-time chunks follow each other; what replaces lies between the playhead and the end of what was sent."""
        chunks = self.simulation.chunks
        for chunk, playhead in chunks[self.num_checked :]:
            self.num_checked += 1
            is_new_epoch, self.epoch = chunk.epoch != self.epoch, chunk.epoch
            assert len(chunk.pcm) > 0
            assert chunk.first_seq >= chunk.full_seq
            if chunk.is_replacing:
                assert playhead <= chunk.start_sample < chunk.end_sample <= self.sent_until
            elif is_new_epoch or chunk.is_after_underrun or self.sent_until == 0:
                assert is_new_epoch or chunk.start_sample >= self.sent_until
                self.sent_until = chunk.end_sample
            else:
                assert chunk.start_sample == self.sent_until
                self.sent_until = chunk.end_sample

    def check_heard(self) -> None:
        """In extend mode, a canvas frame that was heard sounds the same when it is heard again.

        A session does not know what a client that does not report has heard, nor that a replacement was lost.
        """
        end = len(self.simulation.heard) // HOP * HOP
        frames = self.simulation.heard[self.num_heard : end].reshape(-1, HOP, CHANNELS)
        self.num_heard = end
        if self.mode == "extend" and not self.was_silent and not self.simulation.has_old_audio:
            # A change that was asked for at a time may begin inside a frame, which then sounds so only once.
            for frame in frames[(frames == frames[:, :1]).all(axis=(1, 2))]:
                number = frame[0, NUMBER]
                assert self.heard_frames.setdefault(int(frame[0, FRAME]), number) == number

    def check_plan(self) -> None:
        """What is heard is what is planned, with every edit, where nothing else is played."""
        plan = self.simulation.session.plan
        if plan is None or plan.is_idle:
            return
        state = next(message for message in reversed(self.simulation.messages) if isinstance(message, State))
        hint = self.simulation.heard[state.playhead_sample - 1, HINT]
        if not np.isnan(hint):
            assert hint == self.simulation.planned(int((state.canvas_position_s - 1 / RATE) * RATE / HOP + 1e-6))

    def check_edits(self) -> None:
        """Every edit that was taken is in the plan, where nothing later says otherwise, or a problem has its seq."""
        refused = [m for m in self.simulation.messages if isinstance(m, Problem) and m.status < 500]
        for problem in refused:
            assert problem.seq is not None
            _, bars, codes = self.edits.pop(problem.seq, (0, [0], [0]))
            assert bars, "codes may be too many for their sections"
            assert codes
        all_bars, all_codes = dict[int, int](), dict[int, int]()
        for start, bars, codes in self.edits.values():
            first = start // FRAMES_PER_CODE
            if bars is not None:
                places = [start + sum(bars[:index]) * FRAMES_PER_BAR for index in range(len(bars))]
                all_bars = {place: count for place, count in all_bars.items() if place < start}
                all_bars |= dict(zip(places, bars, strict=True))
            all_codes = {place: code for place, code in all_codes.items() if place < first}
            all_codes |= {first + index: code for index, code in enumerate(codes)}
        if self.edits:
            values, codes = self.snapshot()["generations"]["plan"]["values"]["state"]
            state = SongState(values, np.array(codes, np.int64))
            form = SimulatedForm(SongBeginning(GenerationOptions(prompt=""), 1, state))
            made = {start: bars for _, kind, layers, bars, start in form._requests if (kind, *layers) == BREAK}
            assert {start: made.get(start) for start in all_bars} == all_bars
            assert {place: form._given.get(place) for place in all_codes} == all_codes

    def teardown(self) -> None:
        """With everything working again, the newest values are heard in full, and then no generations run."""
        if not hasattr(self, "simulation"):
            return
        self.network(True, False)
        self.planner(0.02)
        self.handle(messages.Play())
        self.simulation.fails_next = SimulatedForm.fails_next = False
        self.simulation.run(1.5)  # Changes for later have begun.
        self.handle(messages.SetControls(seq=self.next_seq(), values={"variation": 0.0}))
        self.simulation.run(1.0)
        if self.mode == "loop":
            self.handle(messages.SetBand(seq=self.next_seq(), start_s=None, end_s=None))
        self.simulation.run(8.0)
        self.check()
        self.check_edits()
        if self.mode == "extend" and self.moved:
            return
        assert self.simulation.chunks[-1][0].full_seq == self.seq
        self.check_plan()
        num_jobs, num_appended = len(self.simulation.jobs), sum(not job.is_refresh for job in self.simulation.jobs)
        self.simulation.run(2.0)
        appended = sum(not job.is_refresh for job in self.simulation.jobs) - num_appended
        assert len(self.simulation.jobs) - num_jobs == (appended if self.mode == "extend" else 0)


TestLiveMachine = LiveMachine.TestCase
TestLiveMachine.settings = STATEFUL


class ManyLiveMachines(LiveMachine):
    """The same, in more examples."""


TestManyLiveMachines = pytest.mark.slow(ManyLiveMachines.TestCase)
TestManyLiveMachines.settings = settings(STATEFUL, max_examples=NUM_EXAMPLES)


@settings(max_examples=15, deadline=None)
@given(script=st.lists(st.tuples(st.integers(0, 1), TIMES_S, st.floats(0.5, 4.0)), min_size=1, max_size=12))
def test_two_sessions_never_touch_each_other(script: list[tuple[int, float, float]]) -> None:
    """Interleaved with another session, a session sends what it sends alone."""
    together = [Simulation(new_session(name, seed=7)) for name in "ab"]
    for who, seconds, value in script:
        with suppress(RequestError):
            together[who].set(len(together[who].jobs) + 1, shift=value)
        for simulation in together:
            simulation.run(seconds)
    for who, name in enumerate("ab"):
        alone = Simulation(new_session(name, seed=7))
        for turn, seconds, value in script:
            if turn == who:
                with suppress(RequestError):
                    alone.set(len(alone.jobs) + 1, shift=value)
            alone.run(seconds)
        for (left, _), (right, _) in zip(alone.chunks, together[who].chunks, strict=True):
            assert (left.start_sample, left.first_seq, left.full_seq) == (
                right.start_sample,
                right.first_seq,
                right.full_seq,
            )
            assert np.array_equal(left.pcm, right.pcm)
