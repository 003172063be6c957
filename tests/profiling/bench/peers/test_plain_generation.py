"""Text to audio as a short loop over the graphs gives what TickRT gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import Built

from profiling.bench.peers.onnxruntime_graph import OnnxRuntimeGraph
from profiling.bench.peers.plain_generation import PlainGeneration, can_run_plainly
from profiling.bench.peers.run import generate
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import parse_options


@pytest.mark.parametrize(
    ("guidance", "rule"),
    [
        (1.0, ""),
        (4.0, ""),
        (4.0, 'rule = "plain"\nrescale = 0.3'),
        (4.0, 'rescale = 0.7\nnorms = "all"\nparallel = 0.5\nnorm_limit = 0.0'),
    ],
)
def test_its_latents_and_audio_are_ours(built: Built, guidance: float, rule: str) -> None:
    with open_pipeline(built(**({"rule": rule} if rule else {}))) as pipeline, ThreadPoolExecutor(1) as pool:
        bundle = pipeline.bundle
        assert can_run_plainly(bundle)
        asked = {"prompt": "calm melody", "seed": 7, "steps": 5, "shift": 2.0, "guidance": guidance, "finish": False}
        options = parse_options(asked)
        (latents,) = generate(pipeline, pool, [options], "latents")
        (audio,) = generate(pipeline, pool, [options], "audio")
    plain = PlainGeneration(bundle, OnnxRuntimeGraph)
    found = plain.latents(options, len(latents))
    assert found.shape == latents.shape
    assert np.abs(found - latents).max() < 1e-4 < np.abs(latents).max()
    heard = plain.audio(options, len(latents))
    assert heard.shape == audio.shape
    assert np.abs(heard - audio).max() < 1e-4 < np.abs(audio).max()
    other = plain.latents(parse_options({**asked, "seed": 8}), len(latents))
    assert np.abs(other - latents).max() > 0.1
