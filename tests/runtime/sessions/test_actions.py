"""What a session knows of a pipeline, and the arithmetic of windows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from conftest import Built

from runtime.errors import ConfigError
from runtime.pipeline.pipeline import open_pipeline
from runtime.sessions.actions import DecodeWindow, LiveModel


def test_the_facts_of_a_pipeline(built: Built) -> None:
    with open_pipeline(built()) as pipeline:
        model = LiveModel.of(pipeline)
        assert model.hop_samples * model.frame_rate_hz == pytest.approx(model.sample_rate_hz)
        assert model.lengths == pipeline.lengths
        assert model.defaults["guidance"] == pipeline.bundle.sampler.guidance
        assert model.defaults["steps"] == pipeline.bundle.sampler.live_steps
        with pytest.raises(ConfigError, match="codec"):
            LiveModel.of(dataclasses.replace(pipeline, codec=None))


def test_a_windows_samples() -> None:
    window = DecodeWindow(0, 1, np.zeros((9, 1), np.float32), 4, 80, 280, 240, 1, 1)
    assert (window.num_samples, window.end_sample) == (200, 440)
