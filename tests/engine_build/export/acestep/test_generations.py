"""Exported bundles end to end: generations of every task against AceStepPipeline, and the commands behind an export."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers.plans import plans_with_and_without_drafts
from helpers.tiny_acestep import CHANNELS, HOP_SAMPLES, SAMPLE_RATE_HZ, diffusers_pipeline
from helpers.tiny_exports import TinyExports
from numpy.typing import NDArray
from typer.testing import CliRunner

from engine_build.compile.builder import build_deployment
from engine_build.export.parity import generate_requests
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.config.sampler import DcwSpec
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.timesteps import Purpose, noise, schedule

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

FRAMES = 60
PROMPT = "Warm piano, slow {braces} and Ümläute"
WINDOW = (0.8, 1.6)


@pytest.fixture(scope="module")
def opened(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with open_pipeline(built_deployment(bundle, tmp_path_factory.mktemp("base"))) as opened:
        # AceStepPipeline has no DCW.
        sampler = opened.bundle.sampler.model_copy(update={"dcw": DcwSpec()})
        yield replace(opened, bundle=opened.bundle.model_copy(update={"sampler": sampler}))


@pytest.fixture(scope="module")
def pipeline(base: Path) -> Any:
    """diffusers' own, whose codec gives the mode of its posterior instead of a sample."""
    made = diffusers_pipeline(base)
    encode = made.vae.encode

    class Mode:
        def __init__(self, audio: Any) -> None:
            self.latent_dist = self
            self.sample = encode(audio).latent_dist.mode

    made.vae.encode = Mode
    return made


def built_deployment(bundle: Path, folder: Path) -> Deployment:
    path = folder / "tiny.toml"
    path.write_text(
        f"""[deployment]
bundle = "{bundle}"
[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = 2, opt = 60, max = 60 }}
tokens = {{ min = 1, opt = 64, max = 320 }}
[runtime]
depth = 4
threads = 1
[build]
step_variants = ["plain", "guidance"]
"""
    )
    deployment = load_deployment(path)
    build_deployment(deployment)
    return deployment


def source_audio() -> NDArray[np.float32]:
    """Stereo `[N, 2]`: two tones and some noise."""
    time_s = np.arange(FRAMES * HOP_SAMPLES) / SAMPLE_RATE_HZ
    tones = np.stack((np.sin(2 * np.pi * 220 * time_s), np.sin(2 * np.pi * 331 * time_s * time_s)), axis=1)
    return (0.4 * tones + 0.1 * np.random.default_rng(0).standard_normal(tones.shape)).astype(np.float32)


def expected(
    pipeline: Any, task: str = "text2music", *, seed: int = 3, steps: int = 5, guidance: float = 1.0, **more: Any
) -> NDArray[np.float32]:
    """The pipeline's latents `[T, C]`, or other output."""
    start = torch.from_numpy(noise(FRAMES, CHANNELS, seed))[None]
    how = {"num_inference_steps": steps, "guidance_scale": guidance, "shift": 3.0, "output_type": "latent"}
    if task != "text2music" and "audio_codes" not in more:
        how["src_audio"] = torch.from_numpy(source_audio().T.copy())
    made = pipeline(PROMPT, audio_duration=FRAMES / 25.0, task_type=task, **{"latents": start, **how, **more})
    found: NDArray[np.float32] = made.audios[0].numpy()
    return found


def generated(opened: Pipeline, task: str = "text2music", *, guidance: float = 1.0, **more: Any) -> NDArray[np.float32]:
    source = None
    if task != "text2music" and "codes" not in more:
        source = opened.inputs.encode_source(source_audio(), SAMPLE_RATE_HZ)
    how = {} if more.get("timesteps") is not None else {"steps": 5, "shift": 3.0}
    asked = {"seed": 3, "guidance": guidance, "task": task, **how, **more}
    (found,) = generate_requests(opened, [opened.request(PROMPT, GenerationInputs(source=source), **asked)])
    return found


def assert_equal(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert found.shape == wanted.shape
    assert np.abs(wanted).max() > 0.5
    assert np.abs(found - wanted).max() < 1e-4 * max(1.0, np.abs(wanted).max())


def test_generations_in_flight_together_each_equal_diffusers_pipeline(opened: Pipeline, pipeline: Any) -> None:
    asked = [(1, 1, 4.0, 2.0), (2, 9, 1.0, 3.0), (3, 6, 15.0, 1.0), (4, 4, 2.5, 3.0)]
    requests = [
        opened.request(PROMPT, seed=seed, steps=steps, guidance=scale, shift=shift)
        for seed, steps, scale, shift in asked
    ]
    for found, (seed, steps, scale, shift) in zip(generate_requests(opened, requests), asked, strict=True):
        wanted = expected(pipeline, seed=seed, steps=steps, guidance=scale, shift=shift)
        assert np.abs(wanted - noise(FRAMES, CHANNELS, seed)).max() > 0.5
        assert_equal(found, wanted)


def test_the_audio_equals_diffusers_pipeline_before_it_is_made_loud(opened: Pipeline, pipeline: Any) -> None:
    wanted = expected(pipeline, seed=5, steps=4, guidance=3.0, output_type="pt").T
    assert opened.codec is not None
    found = opened.codec.decode(generated(opened, seed=5, steps=4, guidance=3.0))
    loud = found * (np.abs(wanted).max() / np.abs(found).max())
    assert np.abs(loud - wanted).max() < 1e-3


def test_the_defaults_of_a_base_checkpoint_are_its_authors(opened: Pipeline, pipeline: Any) -> None:
    """diffusers' pipeline has turbo's defaults for every checkpoint."""
    (found,) = generate_requests(opened, [opened.request(PROMPT, seed=7)])
    assert_equal(found, expected(pipeline, seed=7, steps=50, guidance=7.0, shift=1.0))


def test_the_bundle_says_what_the_tokenizer_is(bundle: Path) -> None:
    structure, sampler = load_bundle(bundle).structure, load_bundle(bundle).sampler
    assert structure is not None
    assert (structure.frames_per_code, structure.num_codes) == (5, 64_000)
    assert sampler.dcw == DcwSpec()


@pytest.mark.parametrize("frames", [5, 100])
def test_codes_equal_and_hints_agree(bundle: Path, pipeline: Any, frames: int) -> None:
    latents = np.random.default_rng(frames).standard_normal((2, frames, CHANNELS)).astype(np.float32)
    with torch.no_grad():
        quantized, indices = pipeline.audio_tokenizer.tokenize(torch.from_numpy(latents))
        hints = pipeline.audio_token_detokenizer(quantized).numpy()
    (codes,) = onnxruntime.InferenceSession(str(bundle / "structure_encode.onnx")).run(None, {"latents": latents})
    assert np.array_equal(codes, indices[..., 0].numpy())
    assert len(np.unique(codes)) > 1
    (found,) = onnxruntime.InferenceSession(str(bundle / "structure_decode.onnx")).run(None, {"codes": codes})
    assert np.abs(found - hints).max() < 1e-4


def test_the_source_is_encoded_as_the_pipeline_does(opened: Pipeline, pipeline: Any) -> None:
    audio = torch.from_numpy(source_audio().T.copy())[None]
    with torch.no_grad():
        wanted = pipeline.vae.encode(audio).latent_dist.sample()[0].T.numpy()
    assert np.abs(opened.inputs.encode_source(source_audio(), SAMPLE_RATE_HZ) - wanted).max() < 1e-4


@pytest.mark.parametrize(
    ("task", "guidance"),
    [("text2music", 7.0), ("cover", 1.0), ("cover", 7.0), ("extract", 1.0), ("lego", 7.0), ("complete", 1.0)],
)
def test_a_task_equals_the_pipeline(opened: Pipeline, pipeline: Any, task: str, guidance: float) -> None:
    assert_equal(generated(opened, task, guidance=guidance), expected(pipeline, task, guidance=guidance))


def test_a_cover_of_strength_06_equals_the_pipeline(opened: Pipeline, pipeline: Any) -> None:
    wanted = expected(pipeline, "cover", audio_cover_strength=0.6)
    assert_equal(generated(opened, "cover", cover_strength=0.6), wanted)
    assert np.abs(wanted - expected(pipeline, "cover")).max() > 1e-3


def test_a_cover_of_codes_equals_the_pipeline(opened: Pipeline, pipeline: Any) -> None:
    codes = "".join(f"<|audio_code_{number}|>" for number in range(100, 64_000, 5400))
    assert_equal(generated(opened, "cover", codes=codes), expected(pipeline, "cover", audio_codes=codes))


def test_a_lego_in_a_window_equals_the_pipeline(opened: Pipeline, pipeline: Any) -> None:
    wanted = expected(pipeline, "lego", repainting_start=WINDOW[0], repainting_end=WINDOW[1])
    assert_equal(generated(opened, "lego", repaint=[{"start_s": WINDOW[0], "end_s": WINDOW[1]}]), wanted)


def test_a_repaint_equals_the_pipeline_with_the_source_held_outside(opened: Pipeline, pipeline: Any) -> None:
    """The pipeline only shows the source in the context; a callback holds it in the latents, as masks are defined."""
    kept = torch.ones(FRAMES, 1, dtype=torch.bool)
    kept[int(WINDOW[0] * 25) : int(WINDOW[1] * 25)] = False
    source = torch.from_numpy(opened.inputs.encode_source(source_audio(), SAMPLE_RATE_HZ))
    held, times = torch.from_numpy(noise(FRAMES, CHANNELS, 3, Purpose.MASK)), schedule(5, shift=3.0)

    def hold(_: Any, step: int, time: float, values: dict[str, Any]) -> dict[str, Any]:
        after = float(times[step + 1])
        return {"latents": torch.where(kept, after * held + (1 - after) * source, values["latents"])}

    start = torch.where(kept, held, torch.from_numpy(noise(FRAMES, CHANNELS, 3)))[None]
    window = {"repainting_start": WINDOW[0], "repainting_end": WINDOW[1]}
    wanted = expected(pipeline, "repaint", latents=start, callback_on_step_end=hold, **window)
    assert_equal(generated(opened, "repaint", repaint=[{"start_s": WINDOW[0], "end_s": WINDOW[1]}]), wanted)


def test_a_guidance_interval_equals_the_pipeline(opened: Pipeline, pipeline: Any) -> None:
    interval = {"cfg_interval_start": 0.1, "cfg_interval_end": 0.6}
    wanted = expected(pipeline, "text2music", guidance=7.0, **interval)
    assert_equal(generated(opened, "text2music", guidance=7.0, **interval), wanted)
    assert np.abs(wanted - expected(pipeline, "text2music", guidance=7.0)).max() > 1e-3


def test_timesteps_and_the_noise_of_torch_s_generator_equal_the_pipeline(opened: Pipeline, pipeline: Any) -> None:
    times = [1.0, 0.95, 0.7, 0.2]
    generator = torch.Generator().manual_seed(42)
    wanted = expected(pipeline, "text2music", timesteps=times, latents=None, generator=generator)
    assert_equal(generated(opened, "text2music", timesteps=times, noise="torch", seed=42), wanted)


def test_a_smaller_language_model_drafts_and_changes_no_plan(tiny: TinyExports, tmp_path: Path) -> None:
    """Language models of random weights beside the exported parts."""
    deployment = built_deployment(tiny.acestep_planned(), tmp_path)
    for temperature in (0.0, 0.85):
        asked = {"seconds": 2.4, "plan_temperature": temperature}
        drafted, plain, num_drafted = plans_with_and_without_drafts(deployment, **asked)
        assert drafted == plain
        assert len(drafted["codes"]) == 12
        assert num_drafted > 0


def run(app: Any, *arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout
