"""Exported bundles end to end: generations against diffusers' own pipeline, for both samplers, several in one batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from helpers.tiny_acestep import tiny_tokenizer
from helpers.tiny_stable_audio_3 import CHANNELS, tiny_parts
from numpy.typing import NDArray

from engine_build.compile.builder import build_deployment
from runtime.config.deployment import load_deployment
from runtime.errors import RequestError
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.request import GenerationRequest
from runtime.requests.timesteps import Purpose, noise
from runtime.tick.events import Event, Finished
from tickrt import Model

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

PROMPT = "Warm piano, slow {braces} and Ümläute"
FRAME_RATE_HZ = 11_025 / 1024


@pytest.fixture(scope="module", params=["small", "medium"])
def opened(request: pytest.FixtureRequest, bundles: dict[str, Path], tmp_path_factory: Any) -> Iterator[Pipeline]:
    path = tmp_path_factory.mktemp(request.param) / "tiny.toml"
    path.write_text(
        f"""[deployment]
bundle = "{bundles[request.param]}"
[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = 2, opt = 98, max = 98 }}
tokens = {{ min = 257, opt = 257, max = 257 }}
[runtime]
depth = 4
threads = 1
[build]
step_variants = ["plain", "sde"]
"""
    )
    deployment = load_deployment(path)
    build_deployment(deployment)
    with open_pipeline(deployment) as opened:
        yield opened


@pytest.fixture(scope="module")
def model(opened: Pipeline) -> Model:
    return Model(opened)


@pytest.fixture(scope="module")
def pipeline(opened: Pipeline) -> Any:
    """diffusers' pipeline, with the authors' norms for small, and the authors' local condition of zeros."""
    from diffusers import FlowMatchEulerDiscreteScheduler, StableAudio3Pipeline

    size = opened.bundle.name.removeprefix("tiny-")
    parts = tiny_parts(size)
    transformer = parts["transformer"]
    if size == "small":
        for name, module in transformer.named_modules():
            if name.rpartition(".")[2] in ("pre_norm", "cross_attend_norm", "ff_norm"):
                module.eps = 1e-5
    forward = transformer.forward

    def with_zeros(latents: Any, time: Any, **more: Any) -> Any:
        local = torch.zeros(latents.shape[0], 1 + CHANNELS, latents.shape[2])
        return forward(latents, time, local_add_cond=local, **more)

    transformer.forward = with_zeros
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = FlowMatchEulerDiscreteScheduler(1, shift=1.0, stochastic_sampling=size == "small")
        found = StableAudio3Pipeline(**parts, tokenizer=tiny_tokenizer(), scheduler=scheduler)
    found.set_progress_bar_config(disable=True)
    return found


def generate(opened: Pipeline, *requests: GenerationRequest) -> list[NDArray[np.float32]]:
    """The latents of requests that are in flight together."""
    events: SimpleQueue[Event] = SimpleQueue()
    for request in requests:
        opened.loop.submit(request, events.put)
    done: dict[str, NDArray[np.float32]] = {}
    while len(done) < len(requests):
        event = events.get(timeout=60)
        assert not hasattr(event, "error"), event
        if isinstance(event, Finished):
            done[event.request_id] = event.latents
    return [done[request.id] for request in requests]


def expected(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, *, frames: int, seed: int, steps: int, start: Any = None
) -> Any:
    """diffusers' latents `[T, C]`, with TickRT's noise of the seed in every step. start: default, noise."""
    from diffusers.schedulers import scheduling_flow_match_euler_discrete as module

    calls = iter(range(steps))

    def step_noise(*_: object, **__: object) -> Any:
        return torch.from_numpy(noise(frames, CHANNELS, seed, Purpose.STEP, next(calls)).T.copy())[None]

    monkeypatch.setattr(module, "randn_tensor", step_noise)
    first = noise(frames, CHANNELS, seed) if start is None else start
    latents = torch.from_numpy(first.T.copy())[None]
    seconds = frames / FRAME_RATE_HZ
    found = pipeline(PROMPT, seconds, num_inference_steps=steps, latents=latents, output_type="latent").audios
    return found[0].T.numpy()


def test_generations_in_flight_together_equal_diffusers_pipeline(
    opened: Pipeline, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four lengths, whose rows share ticks where lengths are equal."""
    asked = [(9.0, 1, 8), (4.1, 2, 30), (9.0, 3, 5), (2.0, 4, 8)]
    requests = [
        opened.request(PROMPT, seconds=seconds, seed=seed, steps=steps, guidance=1.0) for seconds, seed, steps in asked
    ]
    frames = [request.frames for request in requests]
    assert frames[0] == frames[2] == opened.bundle.latents.canvas_frames
    assert len(set(frames)) == 3
    for found, request, (seconds, seed, steps) in zip(generate(opened, *requests), requests, asked, strict=True):
        assert 0 <= request.frames - seconds * FRAME_RATE_HZ < 0.1 * request.frames + 1
        wanted = expected(pipeline, monkeypatch, frames=request.frames, seed=seed, steps=steps)
        assert np.abs(wanted).max() > 0.5
        assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


def test_the_defaults_are_those_of_the_checkpoint(opened: Pipeline, model: Model) -> None:
    sampler = opened.bundle.sampler
    if opened.bundle.name == "tiny-small":
        assert (sampler.solver, sampler.steps, sampler.guidance) == ("sde", 8, 1.0)
        with pytest.raises(RequestError, match="guidance is in its weights"):
            model.generate(PROMPT, guidance=3.0)
    else:
        assert (sampler.solver, sampler.steps, sampler.guidance) == ("ode", 100, 7.0)
        guided, plain = generate(
            opened,
            opened.request(PROMPT, seed=1, steps=4, guidance=3.0),
            opened.request(PROMPT, seed=1, steps=4, guidance=1.0),
        )
        assert np.abs(guided - plain).max() > 1e-3


def test_text_and_length_matter(opened: Pipeline) -> None:
    asked: dict[str, Any] = {"seed": 3, "steps": 4, "guidance": 1.0}
    one, other = generate(opened, opened.request(PROMPT, **asked), opened.request("Distorted guitars", **asked))
    assert np.abs(one - other).max() > 1e-3


def test_a_second_segment_continues_the_first(opened: Pipeline, model: Model) -> None:
    """14 s on a canvas of 9 s: the audio of both, of the first canvas that of its frames alone."""
    asked: dict[str, Any] = {"seed": 1, "steps": 4, "guidance": 1.0, "finish": False}
    long, first = model.generate(PROMPT, seconds=14.0, **asked), model.generate(PROMPT, **asked)
    canvas = opened.bundle.latents.canvas_frames
    assert long.latents.shape[0] >= 14.0 * FRAME_RATE_HZ
    np.testing.assert_array_equal(long.latents[:canvas], first.latents)
    assert np.isfinite(long.pcm).all()
    assert len(long.pcm) == 14 * 11_025


@pytest.mark.parametrize("denoise", [0.6, 0.25])
def test_a_variation_of_a_source_starts_at_its_share_of_the_schedule(
    opened: Pipeline, pipeline: Any, monkeypatch: pytest.MonkeyPatch, denoise: float
) -> None:
    """(1 - s) source + s noise, then the times of 8 steps, all times s: they descend."""
    from diffusers.pipelines.stable_audio_3.pipeline_stable_audio_3 import logsnr_sigma_schedule

    frames = opened.bundle.latents.canvas_frames
    source = np.random.default_rng(1).standard_normal((frames, CHANNELS)).astype(np.float32)
    request = opened.request(
        PROMPT, GenerationInputs(source=source), seed=5, steps=8, guidance=1.0, denoise=denoise, task="text2music"
    )
    (found,) = generate(opened, request)
    times = [float(np.float32(time) * np.float32(denoise)) for time in logsnr_sigma_schedule(8, -6.2, 2.0)]
    assert all(after < before for before, after in pairwise(times))
    module = "diffusers.pipelines.stable_audio_3.pipeline_stable_audio_3.logsnr_sigma_schedule"
    monkeypatch.setattr(module, lambda *_, **__: times)
    start = np.float32(denoise) * noise(frames, CHANNELS, 5) + np.float32(1 - denoise) * source
    wanted = expected(pipeline, monkeypatch, frames=frames, seed=5, steps=8, start=start)
    assert np.abs(wanted - source).max() > 0.1
    assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
