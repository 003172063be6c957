"""Structure of an exported bundle: codes, hints, and whole generations of every task against AceStepPipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers.generations import generate
from helpers.tiny_acestep import CHANNELS, HOP_SAMPLES, SAMPLE_RATE_HZ, diffusers_pipeline
from numpy.typing import NDArray

from engine_build.compile.builder import build_deployment
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment
from runtime.config.sampler import DcwSpec
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.timesteps import Purpose, noise, schedule

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

FRAMES = 60
PROMPT = "Warm piano"
WINDOW = (0.8, 1.6)


@pytest.fixture(scope="module")
def opened(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    path = tmp_path_factory.mktemp("structure") / "tiny.toml"
    path.write_text(
        f"""[deployment]
bundle = "{bundle}"
[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = 2, opt = 60, max = 60 }}
tokens = {{ min = 1, opt = 64, max = 320 }}
[runtime]
depth = 1
threads = 1
[build]
step_variants = ["plain"]
"""
    )
    build_deployment(load_deployment(path))
    with open_pipeline(load_deployment(path)) as found:
        yield found


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


def source_audio() -> NDArray[np.float32]:
    """Stereo `[N, 2]`: two tones and some noise."""
    time_s = np.arange(FRAMES * HOP_SAMPLES) / SAMPLE_RATE_HZ
    tones = np.stack((np.sin(2 * np.pi * 220 * time_s), np.sin(2 * np.pi * 331 * time_s * time_s)), axis=1)
    return (0.4 * tones + 0.1 * np.random.default_rng(0).standard_normal(tones.shape)).astype(np.float32)


def expected(pipeline: Any, task: str, *, guidance: float = 1.0, **more: Any) -> NDArray[np.float32]:
    start = torch.from_numpy(noise(FRAMES, CHANNELS, 3))[None]
    asked = {"num_inference_steps": 5, "guidance_scale": guidance, "latents": start, "output_type": "latent", **more}
    if task != "text2music" and "audio_codes" not in more:
        asked["src_audio"] = torch.from_numpy(source_audio().T.copy())
    made = pipeline(PROMPT, audio_duration=FRAMES / 25.0, task_type=task, **asked)
    found: NDArray[np.float32] = made.audios[0].numpy()
    return found


def generated(opened: Pipeline, task: str, *, guidance: float = 1.0, **more: Any) -> NDArray[np.float32]:
    """Without DCW, which AceStepPipeline does not have."""
    source = None
    if task != "text2music" and "codes" not in more:
        source = opened.inputs.encode_source(source_audio(), SAMPLE_RATE_HZ)
    schedule = {} if more.get("timesteps") is not None else {"steps": 5, "shift": 3.0}
    asked = {"seed": 3, "guidance": guidance, "dcw": {"low": 0.0, "high": 0.0}, "task": task, **schedule, **more}
    request = opened.request(PROMPT, GenerationInputs(source=source), **asked)
    return generate(opened.loop, request)


def assert_equal(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert found.shape == wanted.shape
    assert np.abs(wanted).max() > 0.5
    assert np.abs(found - wanted).max() < 1e-4 * max(1.0, np.abs(wanted).max())


def test_the_bundle_says_what_the_tokenizer_is(bundle: Path) -> None:
    structure, sampler = load_bundle(bundle).structure, load_bundle(bundle).sampler
    assert structure is not None
    assert (structure.frames_per_code, structure.num_codes) == (5, 64_000)
    assert sampler.dcw == DcwSpec()


@pytest.mark.parametrize("frames", [5, 60, 100])
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


@pytest.mark.parametrize("guidance", [1.0, 7.0])
@pytest.mark.parametrize("task", ["text2music", "cover", "extract", "lego", "complete"])
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
