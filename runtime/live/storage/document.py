"""The state of a session as data, and the document that it is stored as: the one schema of both.

A session's parts make these values, unchecked, and go on from them; `parse_session` checks what was stored. The limits
are those that any model has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from runtime.base.errors import RequestError, StoreError
from runtime.live.protocol.messages import (
    MAX_RAMP_MS,
    MAX_SEQ,
    MAX_SLOTS,
    AudioFormat,
    Blend,
    EventKind,
    Identifier,
    Layers,
    Mode,
)
from runtime.requests.option_types import Share, Text
from runtime.requests.request import MAX_SEED

VERSION = 1
# Larger than any frame, sample or count of a session, and small enough for sums of them in 64 bits.
MAX_NUMBER = 2**53
# Connections of one session, far from the limit of the audio's header.
MAX_EPOCH = 2**31
# Longer than a generation takes, or a change waits for its effect.
LONGEST_S = 3600.0

Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
SignedNumber = Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
SeqOrNone = Annotated[int, Field(ge=0, le=MAX_SEQ)]  # 0: none
Duration = Annotated[float, Field(ge=0.0, le=LONGEST_S)]
Time = Annotated[float, Field(ge=-float(MAX_NUMBER), le=float(MAX_NUMBER))]
Weight = Annotated[float, Field(ge=0.0, le=10.0)]
StoredBpm = Annotated[float, Field(ge=0.0, le=1000.0)]
StoredBeats = Annotated[int, Field(ge=0, le=64)]
# piece, row, start, end, first_seq, full_seq
StoredPart = tuple[str, Number, Number, Number, SeqOrNone, SeqOrNone]
# id, strength, piece, start
StoredSource = tuple[Identifier | None, Share | None, str, Number]


@dataclass(frozen=True, kw_only=True)
class StoredRamp:
    """See Ramp; times are relative to that of the snapshot."""

    start: Any
    end: Any
    start_s: Time
    end_s: Time
    seq_before: SeqOrNone


@dataclass(frozen=True, kw_only=True)
class StoredWeightRamp:
    """That of a prompt's weight."""

    start: Weight
    end: Weight
    start_s: Time
    end_s: Time
    seq_before: SeqOrNone


@dataclass(frozen=True, kw_only=True)
class StoredSchedule:
    """See ScheduledChange."""

    at_sample: Number
    seq: SeqOrNone
    seq_before: SeqOrNone
    patch: dict[str, Any]
    ramp_s: Annotated[float, Field(ge=0.0, le=MAX_RAMP_MS / 1e3)]


@dataclass(frozen=True, kw_only=True)
class StoredControls:
    """See ControlState."""

    seed: Seed
    values: dict[str, Any]
    weights: dict[Text, Weight]
    blend: Blend
    seqs: tuple[SeqOrNone, SeqOrNone]
    client_seqs: tuple[Number, list[SeqOrNone]] = field(default_factory=lambda: (0, []))
    from_sample: Number
    ramps: dict[str, StoredRamp]
    weight_ramps: dict[Text, StoredWeightRamp]
    scheduled: list[StoredSchedule]


@dataclass(frozen=True, kw_only=True)
class StoredPlayhead:
    """See Playhead."""

    position: Number
    lead_s: Annotated[float, Field(ge=0.0, le=10.0)]
    is_playing: bool
    underruns: Number


@dataclass(frozen=True, kw_only=True)
class StoredPlacement:
    """See Placement."""

    from_sample: Number
    play_frame: Number
    canvas_frame: Number
    band: tuple[Number, Number] | None
    is_chosen: bool | None = None
    tempo: tuple[Annotated[float, Field(ge=1.0, le=1000.0)], Annotated[int, Field(ge=1, le=64)]] | None = None
    muted: Layers = field(default_factory=list)
    levels_db: Annotated[dict[Identifier, Annotated[float, Field(ge=-96.0, le=48.0)]], Field(max_length=64)] = field(
        default_factory=dict
    )
    parts: list[StoredPart]


@dataclass(frozen=True, kw_only=True)
class StoredSection:
    """See SongSection."""

    index: Number
    kind: Identifier
    layers: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=64)]
    bars: Annotated[int, Field(ge=1, le=1024)]
    start_frame: SignedNumber
    end_frame: SignedNumber
    codes: tuple[Number, ...] | None
    others: Annotated[tuple[Identifier, ...], Field(max_length=64)] = ()
    bpm: StoredBpm = 0.0
    beats: StoredBeats = 0
    first_bar: SignedNumber = 0
    offset: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.0
    sixteenths: StoredBeats = 0


@dataclass(frozen=True, kw_only=True)
class StoredChange:
    """See SongEdit."""

    from_frame: SignedNumber
    sections: list[tuple[str, tuple[str, ...], Number]] | None
    codes: list[Number] | None
    options: dict[str, Any] | None
    seq: Number | None = None


@dataclass(frozen=True, kw_only=True)
class StoredPlanValues:
    """See SongFollower."""

    origin: SignedNumber | None
    header: dict[str, Any]
    sections: list[StoredSection]
    options: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    number: Number
    state: tuple[dict[str, Any], list[Number]] | None
    end: Number
    is_idle: bool
    changes: list[StoredChange]


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """A plan and the parts of its hints."""

    values: StoredPlanValues
    hints: list[StoredPart]


Velocity = Annotated[int, Field(ge=1, le=127)]
Key = Annotated[int, Field(ge=0, le=127)]
# A note's frames are gone through one by one.
NoteFrames = Annotated[int, Field(ge=1, le=2**20)]


@dataclass(frozen=True, kw_only=True)
class StoredNotes:
    """See GivenNotes."""

    given: list[
        tuple[Identifier, SignedNumber, SignedNumber, bool, bool, list[tuple[Key, Velocity, SignedNumber, NoteFrames]]]
    ]
    held: list[tuple[SignedNumber, list[Key], Velocity, Identifier | None, bool]]


@dataclass(frozen=True, kw_only=True)
class StoredGenerations:
    """See Generations. noise: a loop's; heard_frame, context_frame: those of music without an end."""

    num_started: Number
    num_placed: Number
    is_current: bool
    times_s: list[Duration]
    source: StoredSource | None
    timbre: str | None = None
    structure: StoredSource | None = None
    plan: StoredPlan | None = None
    notes: StoredNotes | None = None
    noise: tuple[Seed, Number, str | None] | None = None
    heard_frame: Number = 0
    context_frame: Number | None = 0


@dataclass(frozen=True, kw_only=True)
class StoredIdentity:
    """See ModelIdentity."""

    bundle_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    precision: Annotated[str, Field(max_length=64)] = ""


@dataclass(frozen=True, kw_only=True)
class StoredSession:
    """See LiveSession. signal: what its arrays and sample numbers depend on."""

    id: str
    mode: Mode
    format: AudioFormat
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)]
    frames: Number
    token_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
    events: list[EventKind] = field(default_factory=list)
    signal: list[int]
    made_by: StoredIdentity = StoredIdentity()
    epoch: Annotated[int, Field(ge=0, le=MAX_EPOCH)]
    controls: StoredControls
    playhead: StoredPlayhead
    timeline: list[StoredPlacement]
    muted: Layers = field(default_factory=list)
    generations: StoredGenerations
    waiting: list[tuple[Number, dict[str, Any], str | None]] = field(default_factory=list)


_SESSION = TypeAdapter(StoredSession)


def parse_session(meta: Mapping[str, Any]) -> StoredSession:
    """The state of a document. Raises StoreError where it is not one of this version, RequestError of another one."""
    if meta.get("version", VERSION) != VERSION:
        raise RequestError(f"the session was stored in format {meta['version']!r:.60}, expected {VERSION}")
    try:
        return _SESSION.validate_python(meta)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise damaged(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def document_of(session: StoredSession) -> dict[str, Any]:
    """What `parse_session` takes, as JSON values."""
    document: dict[str, Any] = _SESSION.dump_python(session, mode="json", warnings=False)
    return {"version": VERSION, **document}


def damaged(what: str) -> StoreError:
    """The error of a document that no session can go on from."""
    return StoreError(f"its document is damaged: {what}")
