"""Plans with sections, by a tiny planner with random weights in a running loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Built

from runtime.pipeline.form.plan import FormPlan
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options

RATE_HZ, SIZE = 25, 3


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(planner={"capacity": 1024, "plan": True}, structure=True)) as opened:
        yield opened


def planned(pipeline: Pipeline, total_frames: int | None = None, seed: int = 1, **options: Any) -> FormPlan:
    assert pipeline.planner is not None
    return pipeline.planner.form_plan(parse_options({"prompt": "calm", **options}), seed, total_frames)


def test_sections_follow_each_other_and_have_codes(pipeline: Pipeline) -> None:
    plan = planned(pipeline, 1000, bpm=120)
    assert plan.sections == ()
    codes = plan.finish()
    assert len(codes) == -(-1000 // SIZE)
    sections = plan.sections
    print(plan.header, [(s.kind, s.layers, s.bars, s.start_frame, s.end_frame) for s in sections])
    assert [each.start_frame for each in sections] == [0, *[each.end_frame for each in sections[:-1]]]
    assert sections[-1].end_frame == 1000
    assert [code for each in sections for code in each.codes or ()] == codes
    assert plan.header["bpm"] == 120
    assert planned(pipeline, 1000, bpm=120).finish() == codes


def test_endless(pipeline: Pipeline) -> None:
    plan = planned(pipeline)
    hints = [plan.hints(start, 50) for start in range(0, 6000, 50)]
    print([(s.index, s.kind, s.layers, s.bars, s.start_frame, s.end_frame) for s in plan.sections])
    again = planned(pipeline)
    assert np.array_equal(np.concatenate(hints[:8]), again.hints(0, 400))
    state = again.state()
    values = json.loads(json.dumps(state.values))
    restored = pipeline.planner.form_plan(parse_options({"prompt": "calm"}), 1, None, state=state._replace(values=values))
    assert np.array_equal(restored.hints(400, 400), np.concatenate(hints[8:16]))
