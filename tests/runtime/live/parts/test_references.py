"""What a session's generations are given: each reference, its strength, and what of it a segment takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, MODEL

from runtime.base.errors import RequestError
from runtime.live.parts.references import References
from runtime.live.protocol.messages import ReferenceKind
from runtime.requests.segments import Segment

LATENTS = np.arange(10.0, dtype=np.float32)[:, None] + np.zeros((10, CHANNELS), np.float32)


@pytest.mark.parametrize(
    ("kind", "controls"),
    [("source", {"denoise": 0.75}), ("timbre", {"timbre_strength": 0.25}), ("structure", {"structure_strength": 0.25})],
)
def test_a_strength_is_a_control(kind: ReferenceKind, controls: dict[str, float]) -> None:
    references = References(MODEL)
    assert references.take(kind, "x", None, LATENTS, 1) == {}
    assert references.take(kind, "x", 0.25, LATENTS, 2) == controls
    assert references.take(kind, None, None, None, 3) == {}
    assert (getattr(references, kind), references.version) == (None, 3)


def test_a_source_of_strength_0_is_none_a_timbre_of_strength_0_is_one() -> None:
    references = References(MODEL)
    assert references.take("source", "x", 0.0, LATENTS, 1) == {"denoise": 1.0}
    references.take("timbre", "x", 0.0, LATENTS, 2)
    assert references.source is None
    assert references.timbre is not None


def test_a_segment_takes_its_frames_of_source_and_structure_and_all_of_a_timbre() -> None:
    references = References(MODEL)
    nothing = {"source": None, "hints": None, "timbre": None, "sections": (), "phrases": (), "exact": ()}
    assert references.inputs(Segment(6, 8)) == nothing
    for seq, kind in enumerate(("source", "timbre", "structure")):
        references.take(kind, "x", None, LATENTS, seq)
    inputs = references.inputs(Segment(6, 8))
    frames = [6, 7, 8, 9, 0, 1, 2, 3]
    assert [inputs[name][:, 0].tolist() for name in ("source", "hints")] == [frames, frames]
    assert inputs["timbre"] is LATENTS


def test_what_is_refused_changes_nothing() -> None:
    references = References(replace(MODEL, untaken=frozenset({"timbre_strength"})))
    with pytest.raises(RequestError, match=r"the bundle has no \[timbre\]"):
        references.take("timbre", "x", 1.0, LATENTS, 1)
    with pytest.raises(RequestError, match="there is no source 'x'"):
        references.take("structure", "x", 1.0, None, 1)
    assert references.version == 0
