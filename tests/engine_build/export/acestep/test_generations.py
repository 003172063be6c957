"""Exported bundles end to end: generations against diffusers' own pipeline, and the commands that follow an export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.plans import plans_with_and_without_drafts
from helpers.tiny_acestep import CHANNELS, SMALLEST_TRANSFORMER, VAE, diffusers_pipeline
from helpers.tiny_planner import DRAFT_CONFIG
from helpers.tiny_planner import save_checkpoint as save_planner
from numpy.typing import NDArray
from typer.testing import CliRunner

from engine_build.compile.builder import build_deployment
from runtime.config.deployment import Deployment, load_deployment
from runtime.config.sampler import DcwSpec
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.request import GenerationRequest
from runtime.requests.timesteps import noise
from runtime.tick.loop.events import Event, Finished

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

FRAMES = 60
PROMPT = "Warm piano, slow {braces} and Ümläute"


@pytest.fixture(scope="module")
def opened(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with open_built(bundle, tmp_path_factory.mktemp("base")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pipeline(base: Path) -> Any:
    return diffusers_pipeline(base)


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


def open_built(bundle: Path, folder: Path) -> Pipeline:
    opened = open_pipeline(built_deployment(bundle, folder))
    # AceStepPipeline has no DCW.
    sampler = opened.bundle.sampler.model_copy(update={"dcw": DcwSpec()})
    return replace(opened, bundle=opened.bundle.model_copy(update={"sampler": sampler}))


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


def expected(pipeline: Any, *, seed: int, steps: int, guidance: float, shift: float = 3.0, **more: Any) -> Any:
    start = torch.from_numpy(noise(FRAMES, CHANNELS, seed))[None]
    return pipeline(
        PROMPT,
        audio_duration=FRAMES / 25.0,
        num_inference_steps=steps,
        guidance_scale=guidance,
        shift=shift,
        latents=start,
        **{"output_type": "latent", **more},
    ).audios


@pytest.mark.parametrize(
    ("steps", "guidance", "shift"), [(8, 7.0, 3.0), (5, 2.5, 1.0), (8, 1.0, 3.0), (1, 4.0, 2.0), (20, 15.0, 3.0)]
)
def test_a_guided_generation_equals_diffusers_pipeline(
    opened: Pipeline, pipeline: Any, steps: int, guidance: float, shift: float
) -> None:
    wanted = expected(pipeline, seed=3, steps=steps, guidance=guidance, shift=shift)[0].numpy()
    request = opened.request(PROMPT, seed=3, steps=steps, guidance=guidance, shift=shift)
    (found,) = generate(opened, request)
    assert np.abs(wanted - noise(FRAMES, CHANNELS, 3)).max() > 0.5
    assert np.abs(found - wanted).max() < 1e-4 * max(1.0, np.abs(wanted).max())


def test_guidance_and_text_matter(opened: Pipeline) -> None:
    asked = {"seed": 3, "steps": 6}
    plain, guided, other = generate(
        opened,
        opened.request(PROMPT, guidance=1.0, **asked),
        opened.request(PROMPT, guidance=7.0, **asked),
        opened.request("Distorted guitars", guidance=1.0, **asked),
    )
    assert np.abs(plain - guided).max() > 1e-2
    assert np.abs(plain - other).max() > 1e-3


def test_generations_in_flight_together_each_equal_diffusers_pipeline(opened: Pipeline, pipeline: Any) -> None:
    asked = [(1, 4, 3.0), (2, 9, 1.0), (3, 6, 8.0), (4, 4, 3.0)]
    requests = [
        opened.request(PROMPT, seed=seed, steps=steps, guidance=scale, shift=3.0) for seed, steps, scale in asked
    ]
    for found, (seed, steps, scale) in zip(generate(opened, *requests), asked, strict=True):
        wanted = expected(pipeline, seed=seed, steps=steps, guidance=scale)[0].numpy()
        assert np.abs(found - wanted).max() < 1e-4 * max(1.0, np.abs(wanted).max())


def test_the_audio_equals_diffusers_pipeline_before_it_is_made_loud(opened: Pipeline, pipeline: Any) -> None:
    wanted = expected(pipeline, seed=5, steps=4, guidance=3.0, output_type="pt")[0].numpy().T
    (latents,) = generate(opened, opened.request(PROMPT, seed=5, steps=4, guidance=3.0, shift=3.0))
    assert opened.codec is not None
    found = opened.codec.decode(latents)
    loud = found * (np.abs(wanted).max() / np.abs(found).max())
    assert np.abs(loud - wanted).max() < 1e-3


def test_the_defaults_of_a_base_checkpoint_are_its_authors(opened: Pipeline, pipeline: Any) -> None:
    """diffusers' pipeline has turbo's defaults for every checkpoint."""
    wanted = expected(pipeline, seed=7, steps=50, guidance=7.0, shift=1.0)[0].numpy()
    (found,) = generate(opened, opened.request(PROMPT, seed=7))
    assert np.abs(found - wanted).max() < 1e-4 * max(1.0, np.abs(wanted).max())


def test_a_turbo_checkpoint_runs_without_guidance(
    opened: Pipeline, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "is_turbo", True)
    wanted = expected(pipeline, seed=7, steps=8, guidance=7.0)[0].numpy()
    (found,) = generate(opened, opened.request(PROMPT, seed=7, steps=8, guidance=1.0, shift=3.0))
    assert np.abs(found - wanted).max() < 1e-4 * max(1.0, np.abs(wanted).max())


def test_a_smaller_language_model_drafts_and_changes_no_plan(bundle: Path, tmp_path: Path) -> None:
    """Language models of random weights beside the exported parts, as `--planner` and `--draft` export them."""
    from engine_build.export.acestep.planner import PlannerFolder, export_draft, export_planner
    from engine_build.export.toml_text import table_text

    folder = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    tables = export_planner(PlannerFolder(save_planner(tmp_path / "planner", positions=2048)), folder)
    draft = PlannerFolder(save_planner(tmp_path / "draft", DRAFT_CONFIG, positions=2048))
    tables |= export_draft(draft, folder, tables["planner"]["capacity"])
    with (folder / "bundle.toml").open("a", encoding="utf-8") as file:
        file.writelines(f"\n{table_text(name, values)}" for name, values in tables.items())
    deployment = built_deployment(folder, tmp_path)
    for temperature in (0.0, 0.85):
        asked = {"seconds": 2.4, "plan_temperature": temperature}
        drafted, plain, num_drafted = plans_with_and_without_drafts(deployment, **asked)
        assert drafted == plain
        assert len(drafted["codes"]) == 12
        assert num_drafted > 0


@pytest.fixture(scope="module")
def random_deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from engine_build.export.acestep.bundle_text import deployment_text
    from engine_build.export.acestep.export import export_bundle
    from engine_build.export.acestep.sources import RandomWeights
    from engine_build.export.bundle_export import ExportOptions

    folder = tmp_path_factory.mktemp("random")
    source = RandomWeights(transformer_changes=SMALLEST_TRANSFORMER, vae_changes=VAE)
    facts = export_bundle(source, folder / "x", ExportOptions(source.name, canvas_s=2.0), lambda text: None)
    (folder / "x.toml").write_text(deployment_text(facts, folder / "x", folder / "x.toml"))
    return folder / "x.toml"


def run(app: Any, *arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_build_bench_and_generate(random_deployment: Path, tmp_path: Path) -> None:
    from engine_build.cli import app as build
    from profiling.bench_cli import app as bench
    from runtime.commands.generate import app as generate

    run(build, random_deployment)
    for more in ([], ["--guidance", 3]):
        run(bench, random_deployment, "--depth", 2, "--ticks", 2, "--json", tmp_path / "card.json", *more)
        card = json.loads((tmp_path / "card.json").read_text())
        assert (card["bundle"], card["frames"], card["target"]) == ("acestep-random", 50, "cpu")
        assert card["shared_vs_alone"] < 1e-4
    run(generate, random_deployment, "--prompt", "", "--seconds", 3, "--out", tmp_path / "a.wav")
    assert len(soundfile.read(tmp_path / "a.wav")[0]) == 3 * 8000
    np.save(tmp_path / "tokens.npy", np.ones((4, 12), np.float32))
    run(generate, random_deployment, "--condition", tmp_path / "tokens.npy", "--out", tmp_path / "b.wav")
    assert (tmp_path / "b.wav").stat().st_size > 1000
