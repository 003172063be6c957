"""The student of the demo decoder: it begins as the bundle's own decoder, and learns from its guided solutions."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.paths import ROOT

from runtime.config.bundle import load_bundle

torch = pytest.importorskip("torch")

from configs.demo.recipe import bundle, bundle_text, distill, student, teacher  # noqa: E402
from configs.demo.recipe.corpus.batches import draw_batch, draw_songs, make_pool  # noqa: E402
from configs.demo.recipe.latents import SILENCE  # noqa: E402
from configs.demo.recipe.structure import hints_of  # noqa: E402

pytestmark = pytest.mark.export
BUNDLE, FRAMES = ROOT / "configs/demo", 64


@pytest.fixture(scope="module")
def parts() -> teacher.Parts:
    return teacher.read_parts(BUNDLE)


@pytest.fixture(scope="module")
def given(parts: teacher.Parts) -> teacher.Given:
    pool = make_pool(draw_songs(4, 5), 5, partial(hints_of, parts.tokenizer))
    return teacher.given_of(parts, draw_batch(pool, np.random.default_rng(1), 4, FRAMES), np.random.default_rng(2))


def way(given: teacher.Given, steps: int) -> torch.Tensor:
    """Times `[N + 1, B]` from each row's longest one to 0."""
    return teacher.shifted(torch.linspace(1.0, 0.0, steps + 1)[:, None] * given.start[None])


def test_the_weights_are_those_of_the_graph(parts: teacher.Parts, given: teacher.Given) -> None:
    ort = pytest.importorskip("onnxruntime")
    time = torch.full((4,), 0.6)
    inputs = given.noise, time, *given.condition
    with torch.no_grad():
        found = parts.velocity(*inputs).numpy()
    session = ort.InferenceSession(BUNDLE / "decoder.onnx")
    names = ("hidden_states", "timestep", "encoder_hidden_states", "condition_mask", "context_latents")
    arrays = dict(zip(names, (each.numpy() for each in inputs), strict=True))
    arrays["frame_numbers"] = np.tile(np.arange(given.noise.shape[1], dtype=np.float32), (4, 1))
    if bundle_text.jumps(onnx.load(BUNDLE / "decoder.onnx")):
        arrays |= {"timestep_r": time.numpy(), "guidance": np.ones(4, np.float32)}
    assert np.abs(session.run(None, arrays)[0] - found).max() < 1e-4


def test_a_new_student_has_the_velocities_of_its_teacher(parts: teacher.Parts, given: teacher.Given) -> None:
    jumping, time = student.new_student(parts.decoder), torch.full((4,), 0.6)
    with torch.no_grad():
        before = parts.clean(given.noise, time, *given.condition)
        found = jumping.jump_clean(given.noise, (time, time), torch.ones(4), *given.condition)
    assert torch.equal(before, found)


def test_a_student_takes_its_teachers_place_in_the_bundle(parts: teacher.Parts, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(BUNDLE, folder, ignore=shutil.ignore_patterns("recipe"))
    jumping = student.new_student(parts.decoder)
    with torch.no_grad():
        for parameter in jumping.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)
    torch.save({"average": jumping.state_dict(), "step": 2, "elapsed_s": 90.0}, tmp_path / "student.pt")
    bundle.export_student(tmp_path / "student.pt", folder)
    made = load_bundle(folder)
    assert (made.sampler.solver, made.decoder.jump_guidance) == ("jump", (1.0, teacher.MOST_GUIDANCE))
    assert made.sampler.velocity is not None
    assert made.sampler.velocity.solver == "ab2"
    assert made.training["student_steps"] == 2
    again = teacher.read_parts(folder).decoder.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in jumping.state_dict().items())


def test_known_frames_of_a_solution_are_those_that_were_given(parts: teacher.Parts, given: teacher.Given) -> None:
    times = way(given, 5)
    solved = teacher.solve(parts, given, times, given.noised(times[0]))
    known, generate = given.condition[2].chunk(2, dim=-1)
    assert torch.equal(solved.states[-1][generate == 0], known[generate == 0])
    assert torch.isfinite(solved.states).all()


def test_a_teacher_that_takes_more_steps_ends_nearby(parts: teacher.Parts, given: teacher.Given) -> None:
    """Of second order: half the length of the steps is a part of the error."""
    coarse, fine, finest = (
        teacher.solve(parts, given, way(given, steps), given.noised(way(given, 1)[0])).states[-1]
        for steps in (6, 12, 24)
    )
    assert (fine - finest).norm() < 0.7 * (coarse - finest).norm() < 0.5 * (finest - SILENCE).norm()


def test_a_step_brings_the_student_nearer_to_its_teacher(parts: teacher.Parts, given: teacher.Given) -> None:
    config = distill.DistillConfig(learning_rate=5e-5, threads=1, own_share=0.0, compiled=False)
    worker = distill.Distiller(config, BUNDLE)

    def loss() -> torch.Tensor:
        return worker.errors(worker.jumps(given, np.random.default_rng(4))).mean()

    first = loss().item()
    for _ in range(8):
        loss().backward()
        worker.optimizer.step()
        worker.optimizer.zero_grad()
    assert loss().item() < first
    played = distill.play(worker.student, given, way(given, 2))
    assert (played - SILENCE).abs().max() < 20
