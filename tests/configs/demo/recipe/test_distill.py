"""The student of the demo decoder: it begins as the bundle's own decoder, and learns from its guided solutions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from helpers.paths import ROOT

torch = pytest.importorskip("torch")

from configs.demo.recipe import distill, student, teacher  # noqa: E402
from configs.demo.recipe.corpus.batches import draw_batch, draw_songs, make_pool  # noqa: E402
from configs.demo.recipe.latents import SILENCE  # noqa: E402
from configs.demo.recipe.structure import hints_of  # noqa: E402

pytestmark = pytest.mark.export
BUNDLE, FRAMES = ROOT / "configs/demo", 64


@pytest.fixture(scope="module")
def parts() -> teacher.Parts:
    return teacher.read_parts(BUNDLE)


@pytest.fixture(scope="module")
def solutions(parts: teacher.Parts) -> teacher.Solutions:
    pool = make_pool(draw_songs(4, 5), 5, partial(hints_of, parts.tokenizer))
    return teacher.solve(parts, draw_batch(pool, np.random.default_rng(1), 4, FRAMES), 6, np.random.default_rng(2))


def test_the_weights_are_those_of_the_graph(parts: teacher.Parts, solutions: teacher.Solutions) -> None:
    ort = pytest.importorskip("onnxruntime")
    time = torch.full((4,), 0.6)
    given = solutions.noise, time, solutions.tokens, solutions.keep, solutions.context
    with torch.no_grad():
        found = parts.decoder(*given).numpy()
    session = ort.InferenceSession(BUNDLE / "decoder.onnx")
    names = ("hidden_states", "timestep", "encoder_hidden_states", "condition_mask", "context_latents")
    arrays = dict(zip(names, (each.numpy() for each in given), strict=True))
    assert np.abs(session.run(None, arrays)[0] - found).max() < 1e-4


def test_a_new_student_is_the_decoder_whatever_the_guidance(parts: teacher.Parts, solutions: teacher.Solutions) -> None:
    jumping, time = student.new_student(parts.decoder), torch.full((4,), 0.6)
    given = solutions.tokens, solutions.keep, solutions.context
    with torch.no_grad():
        before = parts.decoder.clean(solutions.noise, time, *given)
        found = jumping.jump_clean(solutions.noise, (time, time), torch.full((4,), 3.0), *given)
    assert torch.equal(before, found)


def test_known_frames_of_a_solution_are_those_that_were_given(solutions: teacher.Solutions) -> None:
    known, generate = solutions.context.chunk(2, dim=-1)
    assert torch.equal(solutions.states[-1][generate == 0], known[generate == 0])
    assert torch.isfinite(solutions.states).all()
    assert (solutions.times[:-1] > solutions.times[1:]).all()


def test_a_step_brings_the_student_nearer_to_its_teacher(parts: teacher.Parts, solutions: teacher.Solutions) -> None:
    worker = distill.Distiller(distill.DistillConfig(batch_size=4, learning_rate=5e-5, threads=1), BUNDLE)
    worker.held = [solutions]
    rng = np.random.default_rng(3)
    first = worker.jump_loss(solutions, np.random.default_rng(4), 4).item()
    for _ in range(12):
        worker.jump_loss(solutions, rng, 4).backward()
        worker.optimizer.step()
        worker.optimizer.zero_grad()
    assert worker.jump_loss(solutions, np.random.default_rng(4), 4).item() < first
    played = distill.play(worker.student, solutions, [1.0, 0.5])
    assert (played - SILENCE).abs().max() < 20
