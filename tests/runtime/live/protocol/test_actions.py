"""What a session knows of a pipeline, and the arithmetic of windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.live_simulation import MODEL

from runtime.base.errors import ConfigError, RequestError
from runtime.config.bundle import load_bundle
from runtime.config.plan_spec import TokenRange
from runtime.live.hosting.services import live_model
from runtime.live.protocol.actions import DecodeWindow, SongFacts
from runtime.music.tempo import Tempo
from runtime.pipeline.pipeline import open_pipeline


def test_the_facts_of_a_pipeline(built: Built) -> None:
    with open_pipeline(built()) as pipeline:
        model = live_model(pipeline)
        assert model.identity() == pipeline.identity
        assert model.hop_samples * model.frame_rate_hz == pytest.approx(model.sample_rate_hz)
        assert model.lengths == pipeline.lengths.generations
        assert model.defaults["guidance"] == pipeline.bundle.sampler.guidance
        assert model.defaults["steps"] == pipeline.bundle.sampler.live_steps
        with pytest.raises(ConfigError, match="codec"):
            live_model(replace(pipeline, codec=None))


def test_a_canvas_is_the_first_length_that_holds_its_seconds() -> None:
    seconds = [frames / MODEL.frame_rate_hz for frames in MODEL.lengths]
    assert [MODEL.canvas_frames(each) for each in (None, *seconds)] == [MODEL.lengths[-1], *MODEL.lengths]
    assert [MODEL.canvas_frames(each + 0.001) for each in (0.0, *seconds[:-1])] == [*MODEL.lengths]
    with pytest.raises(RequestError, match=r"at most 2\.56 s"):
        MODEL.canvas_frames(seconds[-1] + 0.001)


def test_a_loop_may_be_longer_than_what_is_continued() -> None:
    longest = MODEL.lengths[-1]
    model = replace(MODEL, loop_lengths=(*MODEL.lengths, longest * 3 // 2, longest * 2))
    long_s = 1.4 * longest / model.frame_rate_hz
    assert model.canvas_frames(long_s) == model.canvas_frames(long_s, "loop") == longest * 3 // 2
    assert model.canvas_frames(None) == longest
    with pytest.raises(RequestError, match=r"at most 2\.56 s"):
        model.canvas_frames(long_s, "extend")
    with pytest.raises(RequestError, match=r"at most 5\.12 s"):
        model.canvas_frames(6.0)
    bar_s = longest / model.frame_rate_hz / 2
    tempo = Tempo(240.0 / bar_s, 4)
    assert [model.bars_frames(bars, tempo) for bars in (1, 2, 3, 4, 5)] == [
        longest, longest, longest * 3 // 2, longest * 2, longest,
    ]  # fmt: skip
    assert model.bars_frames(4, None) == longest


def test_codes_whose_silence_is_token_0_can_be_silenced(built: Built) -> None:
    bundle = load_bundle(built(planner={"capacity": 1024, "plan": True}, conditions=True, more=FEW_VARIANTS).bundle)
    facts, planner = SongFacts.of(bundle), bundle.planner
    assert facts.silent == (1, 2)
    bass = planner.codes.groups[1]
    codes = planner.codes.model_copy(update={"groups": (TokenRange(first=0, count=bass.count), bass)})
    plan = planner.plan.model_copy(update={"silent": {**planner.plan.silent, "drums": 0}})
    moved = bundle.model_copy(update={"planner": planner.model_copy(update={"codes": codes, "plan": plan})})
    assert SongFacts.of(moved) == replace(facts, spec=plan, silent=(0, 2))


def test_no_layer_can_be_silenced_where_the_silence_of_one_is_not_known(built: Built) -> None:
    bundle = load_bundle(built(planner={"capacity": 1024, "plan": True}, conditions=True, more=FEW_VARIANTS).bundle)
    plan = bundle.planner.plan.model_copy(update={"silent": {"bass": bundle.planner.plan.silent["bass"]}})
    facts = SongFacts.of(bundle.model_copy(update={"planner": bundle.planner.model_copy(update={"plan": plan})}))
    assert (facts.group_size, facts.silent) == (bundle.planner.codes.groups[0].count, ())


def test_groups_of_codes_that_differ_in_size_are_no_layers(built: Built) -> None:
    bundle = load_bundle(built(planner={"capacity": 1024, "plan": True}, conditions=True, more=FEW_VARIANTS).bundle)
    drums, bass = bundle.planner.codes.groups
    for groups in ((drums, TokenRange(first=bass.first, count=bass.count - 1)), (drums, bass, bass)):
        codes = bundle.planner.codes.model_copy(update={"groups": groups})
        planner = bundle.planner.model_copy(update={"codes": codes})
        facts = SongFacts.of(bundle.model_copy(update={"planner": planner}))
        assert (facts.group_size, facts.silent) == (0, ())


def test_a_windows_samples() -> None:
    window = DecodeWindow(0, 1, np.zeros((9, 1), np.float32), 4, 80, 280, 240, 1, 1)
    assert (window.num_samples, window.end_sample) == (200, 440)
