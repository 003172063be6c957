"""The player of plans: forms and codes of an untrained model are well formed and the same for a seed."""

import numpy as np
import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from engine_build.demo_model.corpus.songs import draw_song  # noqa: E402
from engine_build.demo_model.instruments import LAYERS  # noqa: E402
from engine_build.demo_model.latents import NUM_CODES  # noqa: E402
from engine_build.demo_model.planner.arrangement import Arrangement, Section  # noqa: E402
from engine_build.demo_model.planner.model import Planner, PlannerShape  # noqa: E402
from engine_build.demo_model.planner.pages import StructureCodes  # noqa: E402
from engine_build.demo_model.planner.player import MOST_SECTIONS, write_piece, write_sections  # noqa: E402
from engine_build.demo_model.planner.tokens import TOKEN_IDS, code_tokens  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Planner:
    torch.manual_seed(0)
    return Planner(PlannerShape(hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=16)).eval()


def test_a_piece_has_codes_for_all_bars_and_is_the_same_for_a_seed(model: Planner) -> None:
    verse = Section("verse", 4, frozenset({"pad"}))
    arrangement = Arrangement(draw_song(np.random.default_rng(1)), (verse, verse))
    structure = StructureCodes(ROOT / "configs/demo")
    piece = write_piece(model, structure, arrangement, (), seed=3)
    assert len(piece.codes) == len(piece.rhythm.code_range(0, 8))
    assert 0 <= piece.codes.min() <= piece.codes.max() < NUM_CODES
    tokens = code_tokens(piece.codes)
    assert [bool((tokens[:, i] == structure.silent[layer]).all()) for i, layer in enumerate(LAYERS)] == [
        layer != "pad" for layer in LAYERS
    ]
    assert np.array_equal(piece.codes, write_piece(model, structure, arrangement, (), seed=3).codes)
    assert not np.array_equal(piece.codes, write_piece(model, structure, arrangement, (), seed=4).codes)


def test_a_plan_has_sections_and_ends(model: Planner) -> None:
    prompt = [TOKEN_IDS["start"], TOKEN_IDS["plan"]]
    plans = [write_sections(model, prompt, seed) for seed in range(4)]
    assert all(1 <= len(plan) <= MOST_SECTIONS for plan in plans)
    assert plans[0] == write_sections(model, prompt, 0) != plans[1]


def test_a_plans_layers_are_those_that_the_prompt_leaves(model: Planner) -> None:
    prompt = [TOKEN_IDS[name] for name in ("start", "no:pad", "no:drums", "plan")]
    for seed in range(4):
        layers = frozenset().union(*(section.layers for section in write_sections(model, prompt, seed)))
        assert layers <= {"arp", "bass", "melody"}
