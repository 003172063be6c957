"""Training of the planner: pages of a step, what is predicted, losses that fall, a run that goes on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from configs.demo.recipe.instruments import LAYERS  # noqa: E402
from configs.demo.recipe.planner.model import Planner  # noqa: E402
from configs.demo.recipe.planner.pages import (  # noqa: E402
    StructureCodes,
    draw_piece,
    recalled_codes,
    section_page,
    section_span,
)
from configs.demo.recipe.planner.tokens import NUM_TOKENS, TOKEN_IDS, TOKENS, code_tokens  # noqa: E402
from configs.demo.recipe.planner.train import (  # noqa: E402
    OPENING_TOKENS,
    PlannerConfig,
    PlannerTrainer,
    draw_pages,
    held_out_figures,
    is_predicted,
    muted,
    token_losses,
    train,
)

DEMO = ROOT / "configs/demo"
CONFIG = PlannerConfig(
    songs_per_step=1,
    sections_per_song=1,
    openings_per_step=1,
    plans_per_step=1,
    muted_share=0.0,
    silence_share=1.0,
    warmup_steps=1,
    threads=1,
    log_every=1,
)


@pytest.fixture(scope="module")
def pages() -> list[list[int]]:
    return draw_pages(StructureCodes(DEMO), CONFIG, 1, 0)


def test_a_step_has_the_same_pages_again(pages: list[list[int]]) -> None:
    assert pages == draw_pages(StructureCodes(DEMO), CONFIG, 1, 0) != draw_pages(StructureCodes(DEMO), CONFIG, 1, 1)
    assert [TOKENS[page[0]] for page in pages] == 4 * ["start"]


def test_codes_of_layers_that_sound_and_what_follows_a_plan_are_predicted(pages: list[list[int]]) -> None:
    plan, _, other_plan, opening = pages
    for page in (plan, other_plan):
        assert int(is_predicted(torch.tensor([page])).sum()) == len(page) - page.index(TOKEN_IDS["plan"]) - 1
    assert len(opening) == OPENING_TOKENS
    assert not {TOKEN_IDS["before"], TOKEN_IDS["recall"]} & set(opening)
    structure = StructureCodes(DEMO)
    piece = draw_piece(structure, 5, 0)
    for index, section in enumerate(piece.arrangement.sections):
        page = torch.tensor([section_page(piece, index, recalled_codes(structure, piece, index))])
        span = section_span(piece, index)
        own = code_tokens(piece.codes[span.start : span.stop])
        sounds = [layer in section.layers for layer in LAYERS]
        assert page[0, 1:][is_predicted(page)[0]].tolist() == own[:, sounds].ravel().tolist()


def test_a_muted_layer_is_silent_for_some_codes_which_are_not_predicted(pages: list[list[int]]) -> None:
    structure, page = StructureCodes(DEMO), pages[1]
    config = replace(CONFIG, muted_share=1.0)
    found = muted(structure, page, config, np.random.default_rng(0))
    given = [place for place, token in enumerate(found) if token != page[place]]
    assert {found[place] - NUM_TOKENS for place in given} <= set(structure.silent.values())
    before, after = (is_predicted(torch.tensor([tokens]))[0] for tokens in (page, found))
    assert sorted((before & ~after).nonzero()[:, 0].tolist()) == [place - 1 for place in given]
    assert not (after & ~before).any()
    assert bool(torch.isfinite(token_losses(Planner(), torch.tensor([found]))).all())
    assert muted(structure, pages[0], config, np.random.default_rng(0)) == pages[0], "a plan has no codes"


def test_some_silence_of_layers_that_sound_is_read_and_not_predicted(pages: list[list[int]]) -> None:
    structure, page = StructureCodes(DEMO), pages[1]
    silent = list(structure.silent.values())
    config = replace(CONFIG, silence_share=0.0)
    found = muted(structure, page, config, np.random.default_rng(0))
    wanted = is_predicted(torch.tensor([page]))[0].tolist()
    rests = [place for place, token in enumerate(page[1:], 1) if token in silent and wanted[place - 1]]
    assert [place for place in range(len(page)) if found[place] != page[place]] == rests
    assert rests
    assert not is_predicted(torch.tensor([found]))[0, [place - 1 for place in rests]].any()


def test_a_loss_is_the_entropy_among_the_tokens_that_may_stand_there(pages: list[list[int]]) -> None:
    torch.manual_seed(0)
    model, tokens = Planner(), torch.tensor(pages[1:2])
    with torch.no_grad():
        losses = token_losses(model, tokens)
    wanted = is_predicted(tokens)
    assert float(losses[wanted].mean()) == pytest.approx(6.44, abs=0.4)  # ln 625
    assert not losses[~wanted].any()


def test_steps_on_one_batch_lower_its_loss(pages: list[list[int]]) -> None:
    trainer = PlannerTrainer(CONFIG)
    losses = [trainer.train_step(pages) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.3
    assert held_out_figures(trainer.model, pages).keys() == {"nats_new", "nats_returning", "nats_opening", "nats_plan"}


def test_a_run_ends_after_its_steps_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = train(replace(CONFIG, steps=1), DEMO, tmp_path / "planner.pt")
    again = train(replace(CONFIG, steps=3), DEMO, tmp_path / "planner.pt")
    assert (first.step, again.step) == (1, 3)
    assert again.elapsed_s > first.elapsed_s
