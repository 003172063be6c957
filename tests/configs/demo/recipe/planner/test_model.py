"""The planner's model against transformers' Qwen3, whole and token by token."""

import numpy as np
import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from helpers.planner_session import PlannerSession, off  # noqa: E402

from configs.demo.recipe.latents import CODE_LEVELS  # noqa: E402
from configs.demo.recipe.planner.model import Cache, Planner, PlannerShape, checkpoint_tensors  # noqa: E402
from configs.demo.recipe.planner.tokens import FIRST_CODE_ID, GROUP_SIZE, NUM_TOKENS  # noqa: E402
from engine_build.graphs.planner_graph import Qwen3Sizes, planner_graph  # noqa: E402

SHAPE = PlannerShape(hidden_size=48, intermediate_size=96, num_hidden_layers=2, head_dim=16)


def tokens() -> torch.Tensor:
    return torch.randint(NUM_TOKENS, (2, 40), generator=torch.Generator().manual_seed(0))


def small_model() -> Planner:
    torch.manual_seed(1)
    model = Planner(SHAPE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_it_is_a_qwen3_of_a_million_parameters() -> None:
    model = small_model()
    config = transformers.Qwen3Config(
        **vars(SHAPE) | {"rope_parameters": {"rope_type": "default", "rope_theta": SHAPE.rope_theta}}
    )
    other = transformers.Qwen3ForCausalLM(config).eval()
    tensors = {name: torch.from_numpy(value) for name, value in checkpoint_tensors(model).items()}
    assert other.load_state_dict(tensors, strict=False).missing_keys == ["lm_head.weight"]
    with torch.no_grad():
        table = model.table()
        found, wanted = model(table[tokens()]) @ table.T, other(tokens()).logits
    assert torch.allclose(found, wanted, atol=1e-4)
    assert 0.9e6 < sum(value.size for value in checkpoint_tensors(Planner()).values()) < 1.4e6


def test_the_bundles_graph_is_written_from_its_tensors() -> None:
    model = small_model()
    graph = planner_graph(Qwen3Sizes.of(vars(SHAPE)), 64, checkpoint_tensors(model).__getitem__)
    session = PlannerSession(graph, rows=2)
    parts = [session.run(tokens()[:, start:end].numpy(), start) for start, end in ((0, 24), (24, 25), (25, 40))]
    with torch.no_grad():
        wanted = model(model.table()[tokens()]) @ model.table().T
    assert off(np.concatenate(parts, axis=1), wanted.numpy()) < 1e-4


def test_tokens_one_by_one_give_what_all_give_at_once() -> None:
    model, caches = small_model(), [Cache(keeps=True) for _ in range(SHAPE.num_hidden_layers)]
    with torch.no_grad():
        rows = model.table()[tokens()]
        whole = model(rows)
        parts = [model(rows[:, i:j], caches, i) for i, j in ((0, 17), (17, 18), (18, 21), (21, 40))]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


def test_codes_that_differ_in_one_digit_have_rows_that_differ_by_those_of_the_digit() -> None:
    table = Planner(SHAPE).table
    rows = table()[FIRST_CODE_ID : FIRST_CODE_ID + GROUP_SIZE].detach()
    steps = rows.unflatten(0, (-1, CODE_LEVELS)).diff(dim=1)
    assert torch.allclose(steps, steps[:1].expand_as(steps), atol=1e-6)
    assert float(steps.abs().mean()) > 0
