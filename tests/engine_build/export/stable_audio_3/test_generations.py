"""Exported bundles end to end: generations against diffusers' own pipeline, for both samplers, several in one batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tiny_acestep import tiny_tokenizer
from helpers.tiny_stable_audio_3 import CHANNELS, bundled_parts, small_decode
from numpy.typing import NDArray

from engine_build.compile.builder import build_deployment
from engine_build.export.parity import generate_requests
from runtime.base.errors import RequestError
from runtime.config.deployment import load_deployment
from runtime.pipeline.compose import GenerationInputs, blend_tokens
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.request import Condition
from runtime.requests.seeds import segment_seed
from runtime.requests.timesteps import Purpose, noise
from tickrt import Model

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

PROMPT = "Warm piano, slow {braces} and Ümläute"
FRAME_RATE_HZ = 11_025 / 1024


@pytest.fixture(scope="module")
def opened(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    path = tmp_path_factory.mktemp("built") / "tiny.toml"
    path.write_text(
        f"""[deployment]
bundle = "{bundle}"
[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = 2, opt = 98, max = 98 }}
tokens = {{ min = 1, opt = 32, max = 257 }}
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
    """diffusers' pipeline, with the authors' norms for small, their local condition of zeros, and our features."""
    from diffusers import FlowMatchEulerDiscreteScheduler, StableAudio3Pipeline

    from engine_build.export.stable_audio_3.decoder import reduce_angles

    size = opened.bundle.name.removeprefix("tiny-")
    parts = bundled_parts(size)
    transformer = parts["transformer"]
    reduce_angles(transformer, parts["duration_embedder"])
    forward = transformer.forward

    def with_zeros(latents: Any, time: Any, **more: Any) -> Any:
        local = torch.zeros(latents.shape[0], 1 + CHANNELS, latents.shape[2])
        return forward(latents, time, **{"local_add_cond": local, **more})

    transformer.forward = with_zeros
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = FlowMatchEulerDiscreteScheduler(1, shift=1.0, stochastic_sampling=size == "small")
        found = StableAudio3Pipeline(**parts, tokenizer=tiny_tokenizer(), scheduler=scheduler)
    found.set_progress_bar_config(disable=True)
    return found


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
    for found, request, (seconds, seed, steps) in zip(
        generate_requests(opened, requests), requests, asked, strict=True
    ):
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
        assert (sampler.solver, sampler.steps, sampler.guidance) == ("ode", 50, 7.0)
        requests = [opened.request(PROMPT, seed=1, steps=4, guidance=guidance) for guidance in (3.0, 1.0)]
        guided, plain = generate_requests(opened, requests)
        assert np.abs(guided - plain).max() > 1e-3


def test_blended_tokens_and_negative_prompts_are_those_of_all_tokens(opened: Pipeline) -> None:
    """Of texts of different lengths: blended in their places, and only then is padding one token."""
    encoder, asked = opened.text_encoder, dict[str, Any](seconds=4.1, seed=3, steps=4)
    assert encoder is not None
    if not opened.bundle.sampler.guidance_reason:
        asked |= {"guidance": 3.0, "negative_prompt": "Hiss"}
    prompts, weights = (PROMPT, "Distorted guitars, louder and louder"), (0.75, 0.25)
    items = [{"text": text, "weight": weight} for text, weight in zip(prompts, weights, strict=True)]
    request = opened.request(items, blend="tokens", **asked)
    seconds = request.frames / FRAME_RATE_HZ
    tokens = blend_tokens([encoder.encode(text, seconds=seconds) for text in prompts], weights)
    (blended,) = request.conditions
    assert len(tokens) == 257 > 2 * len(blended.tokens)
    np.testing.assert_array_equal(np.repeat(blended.tokens, np.asarray(blended.counts, int), axis=0), tokens)
    negatives = (Condition(encoder.encode("Hiss" if "guidance" in asked else "", seconds=seconds)),)
    in_full = replace(request, id="in full", conditions=(Condition(tokens),), negatives=negatives)
    merged, wanted = generate_requests(opened, [request, in_full])
    assert np.abs(merged - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
    (alone,) = generate_requests(opened, [replace(request, id="alone")])
    assert np.abs(alone - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


def test_text_and_length_matter(opened: Pipeline) -> None:
    asked: dict[str, Any] = {"seed": 3, "steps": 4, "guidance": 1.0}
    one, other = generate_requests(opened, [opened.request(each, **asked) for each in (PROMPT, "Distorted guitars")])
    assert np.abs(one - other).max() > 1e-3


def continued(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, *, known: Any, kept: int, seed: int, steps: int
) -> NDArray[np.float32]:
    """Latents `[T, C]` of diffusers' inpainting with the first `kept` of these frames `[T, C]` known.

    After each step the known frames are set, noised to the next time: diffusers leaves them to the model.
    """
    from diffusers import StableAudio3InpaintPipeline
    from diffusers.schedulers import scheduling_flow_match_euler_discrete as module

    inpainting, frames = StableAudio3InpaintPipeline(**pipeline.components), len(known)
    inpainting.set_progress_bar_config(disable=True)
    original, mask = torch.from_numpy(known.T.copy())[None], torch.zeros(1, 1, frames)
    mask[..., :kept] = 1.0
    fixed = torch.from_numpy(noise(frames, CHANNELS, seed, Purpose.MASK).T.copy())[None]
    calls = iter(range(steps))

    def step_noise(*_: object, **__: object) -> Any:
        return torch.from_numpy(noise(frames, CHANNELS, seed, Purpose.STEP, next(calls)).T.copy())[None]

    def pinned(own: Any, index: int, _: object, values: dict[str, Any]) -> dict[str, Any]:
        time = own.scheduler.sigmas[index + 1]
        return {"latents": torch.where(mask > 0, (1 - time) * original + time * fixed, values["latents"])}

    monkeypatch.setattr(module, "randn_tensor", step_noise)
    monkeypatch.setattr(inpainting, "_encode_reference_audio", lambda *_: original)
    found = inpainting(
        PROMPT,
        frames / FRAME_RATE_HZ,
        audio=torch.zeros(1, 2, 1),
        mask=mask,
        num_inference_steps=steps,
        latents=torch.where(mask > 0, fixed, torch.from_numpy(noise(frames, CHANNELS, seed).T.copy())[None]),
        callback_on_step_end=pinned,
        output_type="latent",
    ).audios
    latents: NDArray[np.float32] = found[0].T.numpy()
    return latents


def test_a_second_segment_continues_the_first(
    opened: Pipeline, model: Model, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14 s on a canvas of 9 s: the second canvas is the model's inpainting behind the last frames of the first."""
    canvas, steps = opened.bundle.latents.canvas_frames, 4
    long = model.generate(PROMPT, seconds=14.0, seed=1, steps=steps, guidance=1.0, finish=False)
    total = len(long.latents)
    assert total >= 14.0 * FRAME_RATE_HZ
    assert len(long.pcm) == 14 * 11_025
    wanted = expected(pipeline, monkeypatch, frames=canvas, seed=1, steps=steps)
    known = np.zeros_like(wanted)
    kept = 2 * canvas - total  # of the first canvas, in the second
    known[:kept] = wanted[canvas - kept :]
    second = continued(pipeline, monkeypatch, known=known, kept=kept, seed=segment_seed(1, 1), steps=steps)
    np.testing.assert_array_equal(second[:kept], known[:kept])
    wanted = np.concatenate((wanted, second[kept:]))
    assert np.abs(long.latents - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
    alone = expected(pipeline, monkeypatch, frames=canvas, seed=segment_seed(1, 1), steps=steps)
    assert np.abs(second[kept:] - alone[kept:]).max() > 1e-2, "what is known has no effect"
    with torch.no_grad():
        values = torch.from_numpy(wanted)[None]
        if opened.bundle.name == "tiny-small":
            audio = small_decode(pipeline.vae, values)
        else:
            audio = pipeline.vae.decode(values.transpose(1, 2)).sample
    assert np.abs(long.pcm - audio[0].T.numpy()[: len(long.pcm)]).max() < 1e-4


def test_a_repaint_is_the_model_s_inpainting(opened: Pipeline, pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canvas, steps = opened.bundle.latents.canvas_frames, 4
    source = np.random.default_rng(2).standard_normal((canvas, CHANNELS)).astype(np.float32)
    kept = canvas // 2
    mask = [0.0] * kept + [1.0] * (canvas - kept)
    inputs = GenerationInputs(source=source)
    request = opened.request(PROMPT, inputs, seed=7, steps=steps, guidance=1.0, mask=mask, task="text2music")
    (found,) = generate_requests(opened, [request])
    wanted = continued(pipeline, monkeypatch, known=source, kept=kept, seed=7, steps=steps)
    np.testing.assert_array_equal(found[:kept], source[:kept])
    assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


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
    (found,) = generate_requests(opened, [request])
    times = [float(np.float32(time) * np.float32(denoise)) for time in logsnr_sigma_schedule(8, -6.2, 2.0)]
    assert all(after < before for before, after in pairwise(times))
    module = "diffusers.pipelines.stable_audio_3.pipeline_stable_audio_3.logsnr_sigma_schedule"
    monkeypatch.setattr(module, lambda *_, **__: times)
    start = np.float32(denoise) * noise(frames, CHANNELS, 5) + np.float32(1 - denoise) * source
    wanted = expected(pipeline, monkeypatch, frames=frames, seed=5, steps=8, start=start)
    assert np.abs(wanted - source).max() > 0.1
    assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
