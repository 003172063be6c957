"""Fitted steps: `ab2` at first, nearer to the converged solutions afterwards, and numbers that a bundle takes."""

from __future__ import annotations

import pytest
from helpers.paths import ROOT

from runtime.config.sampler import FittedSteps

torch = pytest.importorskip("torch")

from configs.demo.recipe import fit, teacher  # noqa: E402

pytestmark = pytest.mark.export
BUNDLE = ROOT / "configs/demo"
CONFIG = fit.FitConfig(updates=3, num_sets=1, rows=2, frames=64, threads=1, compiled=False)


@pytest.fixture(scope="module")
def parts() -> teacher.Parts:
    return teacher.read_parts(BUNDLE)


def test_it_begins_as_the_solver_that_it_replaces(parts: teacher.Parts) -> None:
    rows = fit.solved(parts, CONFIG, 5, 1)
    times = teacher.shifted(torch.linspace(1.0, 0.0, 5)[:, None].expand(-1, rows.given.size))
    wanted = teacher.solve(parts, rows.given, times, rows.given.noise).states[-1]
    with torch.no_grad():
        found = fit.BespokeSolver(4)(parts, rows.given)
    assert (found - wanted).abs().max() < 1e-4


def test_it_comes_nearer_and_a_bundle_takes_its_numbers(parts: teacher.Parts) -> None:
    said: list[str] = []
    found = fit.fit(BUNDLE, [3], CONFIG, said.append)
    (rows,) = (fit.solved(parts, CONFIG, fit.FIT_SEED, seed) for seed in range(CONFIG.num_sets))
    with torch.no_grad():
        before, after = (rows.distance(each(parts, rows.given)) for each in (fit.BespokeSolver(3), found[3]))
    assert after < before
    table = found[3].table()
    assert (said[-1], len(FittedSteps.model_validate(table).times)) == (f"3 = {table}", 3)
