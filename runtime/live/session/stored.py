"""Whether a model goes on from a stored session, its timeline as data, and when a session is stored."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from runtime.base.errors import RequestError
from runtime.config.deployment import ModelIdentity
from runtime.live.parts.controls import check_controls
from runtime.live.parts.pieces import Pieces
from runtime.live.playback.canvas import Canvas, Placement, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import LiveModel
from runtime.live.storage.document import (
    LONGEST_S,
    StoredGenerations,
    StoredPlacement,
    StoredPlayhead,
    StoredSession,
    damaged,
)
from runtime.music.part_moods import PartMoods
from runtime.music.tempo import Tempo

# Latents that the client has sent, which another model cannot read.
REFERENCES = ("source", "structure", "timbre")
# The playhead is stored now and then; changes while it plays together, as a turned control makes many.
COMMIT_INTERVAL_S, CHANGE_COMMIT_INTERVAL_S = 1.0, 0.05


class CommitTimer:
    """When a session is to be stored. is_changed: something has changed since it was."""

    def __init__(self, playhead: Playhead) -> None:
        self.is_changed = False
        self._playhead = playhead
        self._committed_s = -math.inf

    @property
    def due_s(self) -> float:
        """When it is due; changes of a session that does not play are stored at once."""
        if not self._playhead.is_active:
            return -math.inf if self.is_changed else math.inf
        return self._committed_s + (CHANGE_COMMIT_INTERVAL_S if self.is_changed else COMMIT_INTERVAL_S)

    def take(self) -> bool:
        """Whether it is due now; it counts as done then."""
        if self._playhead.clock.now_s < self.due_s:
            return False
        self.is_changed, self._committed_s = False, self._playhead.clock.now_s
        return True


def signal_of(model: LiveModel) -> list[int]:
    """What the arrays and sample numbers of a snapshot depend on."""
    return [model.latent_channels, model.hop_samples, model.sample_rate_hz]


def new_canvas_notice(stored: StoredSession, model: LiveModel) -> str:
    """Why a session goes on with a new canvas, in plain words; "" where it goes on as it was."""
    made_by = model.identity().difference(ModelIdentity(**vars(stored.made_by)))
    if not made_by:
        return ""
    generations = stored.generations
    lost = [name for name in REFERENCES if getattr(generations, name) is not None]
    if generations.notes is not None and (generations.notes.given or generations.notes.held):
        lost.append("notes")
    again = f"; the {' and the '.join(lost)} can be sent again" if lost else ""
    return f"the canvas was made by {made_by}: prompts, controls and seed go on with a new one{again}"


def renewed(stored: StoredSession, model: LiveModel, notice: str) -> tuple[StoredSession, str]:
    """The state that this model goes on with where another made it, and the notice with what it does not take.

    Prompts, controls and seed go on, with all changes made; canvas and playhead begin anew.
    """
    controls, lost = stored.controls, list[str]()
    values = controls.values | {name: value for change in controls.scheduled for name, value in change.patch.items()}
    for name, value in list(values.items()):
        try:
            check_controls({name: value}, model)
        except RequestError:
            lost.append(name)
            del values[name]
    newest = controls.seqs[1]
    made: dict[str, Any] = {"values": values, "seqs": (newest, newest), "from_sample": 0}
    playhead = Playhead(SessionClock(0.0), model.sample_rate_hz)
    playhead.is_playing = stored.playhead.is_playing
    state = replace(
        stored,
        frames=stored.frames if stored.frames in model.lengths_of(stored.mode) else model.lengths[-1],
        controls=replace(controls, **made, ramps={}, weight_ramps={}, scheduled=[]),
        playhead=StoredPlayhead(**playhead.snapshot()),
        timeline=[],
        muted=[name for name in stored.muted if name in model.layers],
        generations=StoredGenerations(num_started=0, num_placed=0, is_current=False, times_s=[], source=None),
        waiting=[item for item in stored.waiting if item[1].get("type") == "prompts"],
    )
    return state, f"{notice}; this model does not take {', '.join(lost)}" if lost else notice


def check_fits(stored: StoredSession, model: LiveModel) -> None:
    """Whether the model can go on from a state of its own.

    Raises StoreError where it is damaged, RequestError where it is of a model with other lengths, codec or parts.
    """
    generations, plan = stored.generations, stored.generations.plan
    if stored.signal != signal_of(model):
        raise RequestError("the session was stored with a model of other latents or audio", fix="open a new session")
    if stored.frames not in (lengths := model.lengths_of(stored.mode)):
        raise RequestError(f"the session has a canvas of {stored.frames} frames, the model makes {lengths}")
    for name in ("timbre", "structure"):
        if getattr(generations, name) is not None and f"{name}_strength" in model.untaken:
            raise RequestError(f"the session has a {name}, the bundle has no [{name}]", fix="open a new session")
    if plan is not None and model.plan is None:
        raise RequestError("the session has a plan, the bundle has no [planner.plan]", fix="open a new session")
    if generations.is_current and stored.mode == "loop" and not stored.timeline:
        raise damaged("generations.is_current without a canvas")
    known = [part for item in stored.timeline for part in item.parts]
    if plan is not None and plan.values.end > max([part[3] for part in (*known, *plan.hints)], default=0):
        raise damaged("generations.plan.values.end is too far ahead")
    # Frames up to there are gone through one by one.
    if stored.controls.from_sample > stored.playhead.position + LONGEST_S * model.sample_rate_hz:
        raise damaged("controls.from_sample is too far ahead")


def stored_timeline(timeline: Timeline, pieces: Pieces) -> list[StoredPlacement]:
    """Every placement."""
    return [
        StoredPlacement(
            from_sample=placement.from_sample,
            play_frame=placement.play_frame,
            canvas_frame=placement.canvas_frame,
            band=placement.band,
            is_chosen=placement.is_chosen,
            tempo=placement.canvas.tempo,
            muted=list(placement.muted),
            levels_db=dict[str, Any](placement.canvas.moods.level_db),
            parts=pieces.store_parts(placement.canvas.parts),
        )
        for placement in timeline.placements
    ]


def load_timeline(stored: StoredSession, pieces: Pieces, model: LiveModel) -> Timeline:
    """The timeline of `stored_timeline`. Raises StoreError."""
    placements = [
        Placement(
            from_sample=values.from_sample,
            canvas=Canvas(
                pieces.load_parts(values.parts, model.latent_channels),
                values.tempo and Tempo(*values.tempo),
                PartMoods(values.levels_db),
            ),
            play_frame=values.play_frame,
            canvas_frame=values.canvas_frame,
            band=values.band,
            # Of a document without it, what is not the whole loop was chosen.
            is_chosen=values.band not in (None, (0, stored.frames)) if values.is_chosen is None else values.is_chosen,
            muted=tuple(values.muted),
        )
        for values in stored.timeline
    ]
    starts = [item.from_sample for item in placements]
    if starts != sorted(set(starts)) or (placements and not placements[-1].canvas.parts):
        raise damaged("timeline: placements without an order, or without a canvas")
    is_loop = stored.mode == "loop"
    for item in placements:
        first, end = (item.canvas.start, item.canvas.end) if is_loop else (0, math.inf)
        if is_loop and ((first, end) != (0, stored.frames) or item.band is None):
            raise damaged("timeline: not the canvas of a loop")
        if item.band is not None and not first <= item.band[0] < item.band[1] <= end:
            raise damaged("timeline: a band without frames")
    if unknown := {*stored.muted, *(name for item in placements for name in item.muted)} - model.layers.keys():
        raise damaged(f"muted: there is no layer {min(unknown)!r:.60}")
    return Timeline(placements, stored.muted)
