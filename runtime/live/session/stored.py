"""A session as JSON values and named arrays, and back; and when it is stored."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.config.deployment import ModelIdentity
from runtime.live.parts.base import Generations
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.extend import ExtendGenerations
from runtime.live.parts.loop import LoopGenerations, PassNoise
from runtime.live.parts.plan import SessionPlan
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, PlacedSource, Placement, Timeline
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import LiveModel
from runtime.live.protocol.messages import AudioFormat, EventKind, Mode
from runtime.live.session.waiting import WaitingMessages
from runtime.live.storage.document import LONGEST_S, damaged, parse_session
from runtime.live.storage.store import SessionSnapshot
from runtime.music.part_moods import PartMoods
from runtime.music.tempo import Tempo

VERSION = 1
# Latents that the client has sent, which another model cannot read.
REFERENCES = ("source", "structure", "timbre")
PLAIN_PARTS = ("id", "mode", "format", "slots", "frames", "token_sha256", "events")
# The playhead is stored now and then; changes while it plays together, as a turned control makes many.
COMMIT_INTERVAL_S, CHANGE_COMMIT_INTERVAL_S = 1.0, 0.05


class Pieces:
    """The arrays of a snapshot by name; equal names are one piece."""

    def __init__(self, arrays: Mapping[str, Latents] | None = None) -> None:
        self.arrays = dict(arrays or {})
        self._pieces: dict[str, Piece] = {}

    def store(self, piece: Piece) -> str:
        """Add a piece; returns its name."""
        self.arrays[piece.name] = piece.latents
        return piece.name

    def load(self, name: str) -> Piece:
        """The piece of a name. Raises StoreError where there are no latents of it."""
        latents = self.arrays.get(name)
        if latents is None or latents.dtype.kind != "f" or latents.ndim != 2 or not latents.size:
            raise damaged(f"{name!r:.60} are no latents")
        return self._pieces.setdefault(name, Piece(name, latents))


@dataclass(eq=False)
class SessionParts:
    """What a session begins with, or goes on from. token_sha256: of the token that resumes it.

    notice: what is new in it for the client that resumes it, in plain words. events: what else its client is told.
    """

    id: str
    mode: Mode
    format: AudioFormat
    slots: int
    frames: int
    controls: ControlState
    timeline: Timeline
    playhead: Playhead
    epoch: int = 0
    token_sha256: str = ""
    notice: str = ""
    waiting: WaitingMessages = field(default_factory=WaitingMessages)
    events: Sequence[EventKind] = ()

    def set_token(self, token: str) -> bool:
        """Let a token resume the session; returns whether another one did."""
        had_token, self.token_sha256 = bool(self.token_sha256), _sha256(token)
        return had_token

    def has_token(self, token: str) -> bool:
        """Whether a token resumes the session; compared in constant time."""
        return hmac.compare_digest(self.token_sha256, _sha256(token))

    def snapshot(self, model: LiveModel, generations: Generations, epoch: int) -> SessionSnapshot:
        """Everything as of now. Its arrays do not change later."""
        pieces = Pieces()
        meta = {
            "version": VERSION,
            **{name: getattr(self, name) for name in PLAIN_PARTS},
            "signal": signal_of(model),
            "made_by": asdict(model.identity()),
            "epoch": epoch,
            "controls": self.controls.snapshot(),
            "playhead": self.playhead.snapshot(),
            "timeline": store_timeline(self.timeline, pieces),
            "generations": store_generations(generations, pieces),
            "muted": list(self.timeline.muted),
            "waiting": self.waiting.stored(pieces.store),
        }
        return SessionSnapshot(meta, pieces.arrays)

    @classmethod
    def restore(cls, meta: Mapping[str, Any], pieces: Pieces, model: LiveModel, clock: SessionClock) -> SessionParts:
        """Those of a document that `check_fits` has passed. Raises RequestError and StoreError."""
        return cls(
            **{name: meta[name] for name in PLAIN_PARTS},
            epoch=meta["epoch"],
            controls=ControlState.restore(meta["controls"], model, clock),
            timeline=load_timeline(meta, pieces, model),
            playhead=Playhead.restore(meta["playhead"], clock, model.sample_rate_hz),
            waiting=WaitingMessages.restored(meta["waiting"], pieces.load),
        )

    @classmethod
    def renew(cls, meta: Mapping[str, Any], model: LiveModel, clock: SessionClock, notice: str) -> SessionParts:
        """Those of a document that another model made: prompts, controls and seed go on, with a new canvas.

        The playhead begins anew. Raises RequestError where the prompts do not fit the model.
        """
        controls, lost = ControlState.renew(meta["controls"], model, clock)
        playhead = Playhead(clock, model.sample_rate_hz)
        playhead.is_playing = meta["playhead"]["is_playing"]
        return cls(
            **{name: meta[name] for name in PLAIN_PARTS if name != "frames"},
            frames=meta["frames"] if meta["frames"] in model.lengths_of(meta["mode"]) else model.lengths[-1],
            epoch=meta["epoch"],
            controls=controls,
            timeline=Timeline(muted=set(meta["muted"]) & model.layers.keys()),
            playhead=playhead,
            notice=f"{notice}; this model does not take {', '.join(lost)}" if lost else notice,
        )


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


def parsed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The meta of a snapshot as `parse_session` gives it.

    Raises StoreError where it is damaged, RequestError where it is of another version.
    """
    if stored.get("version", VERSION) != VERSION:
        raise RequestError(f"the session was stored in format {stored['version']!r:.60}, expected {VERSION}")
    return parse_session(stored)


def new_canvas_notice(meta: Mapping[str, Any], model: LiveModel) -> str:
    """Why a session goes on with a new canvas, in plain words; "" where it goes on as it was."""
    made_by = model.identity().difference(ModelIdentity(**meta["made_by"]))
    if not made_by:
        return ""
    generations = meta["generations"]
    lost = [name for name in REFERENCES if generations[name] is not None]
    if generations["notes"] is not None and any(generations["notes"].values()):
        lost.append("notes")
    again = f"; the {' and the '.join(lost)} can be sent again" if lost else ""
    return f"the canvas was made by {made_by}: prompts, controls and seed go on with a new one{again}"


def check_fits(meta: Mapping[str, Any], model: LiveModel) -> None:
    """Whether the model can go on from a snapshot of its own.

    Raises StoreError where it is damaged, RequestError where it is of a model with other lengths, codec or parts.
    """
    if meta["signal"] != signal_of(model):
        raise RequestError("the session was stored with a model of other latents or audio", fix="open a new session")
    if meta["frames"] not in (lengths := model.lengths_of(meta["mode"])):
        raise RequestError(f"the session has a canvas of {meta['frames']} frames, the model makes {lengths}")
    for name in ("timbre", "structure"):
        if meta["generations"][name] is not None and f"{name}_strength" in model.untaken:
            raise RequestError(f"the session has a {name}, the bundle has no [{name}]", fix="open a new session")
    if meta["generations"]["plan"] is not None and model.plan is None:
        raise RequestError("the session has a plan, the bundle has no [planner.plan]", fix="open a new session")
    if meta["generations"]["is_current"] and meta["mode"] == "loop" and not meta["timeline"]:
        raise damaged("generations.is_current without a canvas")
    plan, known = meta["generations"]["plan"], [part for item in meta["timeline"] for part in item["parts"]]
    if plan is not None and plan["values"]["end"] > max([part[3] for part in (*known, *plan["hints"])], default=0):
        raise damaged("generations.plan.values.end is too far ahead")
    # Frames up to there are gone through one by one.
    if meta["controls"]["from_sample"] > meta["playhead"]["position"] + LONGEST_S * model.sample_rate_hz:
        raise damaged("controls.from_sample is too far ahead")


def store_timeline(timeline: Timeline, pieces: Pieces) -> list[dict[str, Any]]:
    """Every placement."""
    return [
        {
            "from_sample": placement.from_sample,
            "play_frame": placement.play_frame,
            "canvas_frame": placement.canvas_frame,
            "band": None if placement.band is None else list(placement.band),
            "is_chosen": placement.is_chosen,
            "tempo": placement.canvas.tempo,
            "muted": list(placement.muted),
            "levels_db": dict(placement.canvas.moods.level_db),
            "parts": _store_parts(placement.canvas.parts, pieces),
        }
        for placement in timeline.placements
    ]


def load_timeline(meta: Mapping[str, Any], pieces: Pieces, model: LiveModel) -> Timeline:
    """The timeline of `store_timeline`. Raises StoreError."""
    placements = [
        Placement(
            from_sample=values["from_sample"],
            canvas=Canvas(
                _load_parts(values["parts"], pieces, model.latent_channels),
                values["tempo"] and Tempo(*values["tempo"]),
                PartMoods(values["levels_db"]),
            ),
            play_frame=values["play_frame"],
            canvas_frame=values["canvas_frame"],
            band=values["band"],
            # Of a document without it, what is not the whole loop was chosen.
            is_chosen=values["band"] not in (None, (0, meta["frames"]))
            if values["is_chosen"] is None
            else values["is_chosen"],
            muted=tuple(values["muted"]),
        )
        for values in meta["timeline"]
    ]
    starts = [item.from_sample for item in placements]
    if starts != sorted(set(starts)) or (placements and not placements[-1].canvas.parts):
        raise damaged("timeline: placements without an order, or without a canvas")
    loop = {(0, meta["frames"])} if meta["mode"] == "loop" else None
    for item in placements:
        first, end = (item.canvas.start, item.canvas.end) if loop else (0, math.inf)
        if loop and ((first, end) not in loop or item.band is None):
            raise damaged("timeline: not the canvas of a loop")
        if item.band is not None and not first <= item.band[0] < item.band[1] <= end:
            raise damaged("timeline: a band without frames")
    if unknown := {*meta["muted"], *(name for item in placements for name in item.muted)} - model.layers.keys():
        raise damaged(f"muted: there is no layer {min(unknown)!r:.60}")
    return Timeline(placements, meta["muted"])


def store_generations(generations: Generations, pieces: Pieces) -> dict[str, Any]:
    """Counters, source, timbre, structure, and what the mode keeps. What is in flight starts again after a restore."""
    given = generations.references
    return {
        "num_started": generations.num_started,
        "num_placed": generations.num_placed,
        "is_current": generations.is_current(),
        "times_s": list(generations.times.newest_s),
        "source": _store_source(given.source, pieces),
        "timbre": given.timbre and pieces.store(given.timbre.piece),
        "structure": _store_source(given.structure, pieces),
        "plan": given.plan and _store_plan(given.plan, pieces),
        "notes": given.notes and given.notes.store(),
        **_store_mode(generations, pieces),
    }


def load_generations(
    generations: Generations, stored: Mapping[str, Any], pieces: Pieces, model: LiveModel, clock: SessionClock
) -> None:
    """Go on as the generations of `store_generations`."""
    given = generations.references
    given.put("source", _load_source(stored["source"], pieces))
    given.put("structure", _load_source(stored["structure"], pieces))
    if (plan := stored["plan"]) is not None:
        hints = _load_parts(plan["hints"], pieces)
        if hints and hints[-1].end != plan["values"]["end"]:
            raise damaged("generations.plan.values.end is not that of its hints")
        given.plan = SessionPlan.restored(model, clock, generations.frames, plan["values"], hints)
    if given.notes is not None and stored["notes"] is not None:
        given.notes.restore(stored["notes"])
    timbre = stored["timbre"]
    given.put("timbre", _load_source(timbre and [None, None, timbre, 0], pieces))
    generations.times.newest_s.extend(stored["times_s"])
    if isinstance(generations, LoopGenerations) and stored["noise"] is not None:
        seed, index, name = stored["noise"]
        noise = None if name is None else pieces.load(name)
        if noise is not None and noise.latents.shape != (generations.frames, model.latent_channels):
            raise damaged("generations.noise is not that of the canvas")
        generations.restore_noise(PassNoise(seed, index, noise))
    if isinstance(generations, ExtendGenerations):
        generations.played_frame = stored["heard_frame"]
        generations.context_frame = stored["context_frame"]
    generations.restore(stored["num_started"], stored["num_placed"], stored["is_current"])


def _store_parts(parts: Iterable[CanvasPart], pieces: Pieces) -> list[list[Any]]:
    return [[pieces.store(part.piece), part.row, part.start, part.end, part.first_seq, part.full_seq] for part in parts]


def _load_parts(stored: Iterable[Iterable[Any]], pieces: Pieces, channels: int | None = None) -> tuple[CanvasPart, ...]:
    """Parts that follow each other, of pieces with so many channels; None: any. Raises StoreError."""
    parts = tuple(CanvasPart(pieces.load(name), *rest) for name, *rest in stored)
    ends = (*(part.start for part in parts[1:]), parts[-1].end) if parts else ()
    for part, end in zip(parts, ends, strict=True):
        rows, width = part.piece.latents.shape
        is_inside = part.start < part.end == end and part.row + part.end - part.start <= rows
        if not is_inside or channels not in (None, width):
            raise damaged(f"the parts of {part.piece.name!r:.60} do not fit")
    return parts


def _store_plan(plan: SessionPlan, pieces: Pieces) -> dict[str, Any]:
    values, parts = plan.store()
    return {"values": values, "hints": _store_parts(parts, pieces)}


def _store_source(source: PlacedSource | None, pieces: Pieces) -> list[Any] | None:
    return None if source is None else [source.id, source.strength, pieces.store(source.piece), source.start]


def _load_source(stored: Iterable[Any] | None, pieces: Pieces) -> PlacedSource | None:
    if stored is None:
        return None
    source_id, strength, name, start = stored
    return PlacedSource(source_id, strength, pieces.load(name), start)


def _store_mode(generations: Generations, pieces: Pieces) -> dict[str, Any]:
    if isinstance(generations, ExtendGenerations):
        return {"heard_frame": generations.played_frame, "context_frame": generations.context_frame}
    assert isinstance(generations, LoopGenerations)
    noise = generations.placed_noise
    return {"noise": noise and [noise.seed, noise.index, noise.piece and pieces.store(noise.piece)]}


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
