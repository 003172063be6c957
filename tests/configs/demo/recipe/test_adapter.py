"""Adapters: terms that change nothing at first, learn a style, and are read by the runtime."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from configs.demo.recipe.adapter import (  # noqa: E402
    PLAIN_IDS,
    RANK,
    STYLES,
    AdapterConfig,
    adapter_batch,
    add_terms,
    save_adapter,
    styled_pool,
    train_terms,
)
from configs.demo.recipe.corpus.batches import Pool  # noqa: E402
from configs.demo.recipe.corpus.songs import draw_song  # noqa: E402
from configs.demo.recipe.model import new_model  # noqa: E402
from configs.demo.recipe.structure import StructureTokenizer, hints_of  # noqa: E402
from configs.demo.recipe.train import flow_loss  # noqa: E402
from runtime.config.decoder import AdapterMatrix, AdapterSpec  # noqa: E402
from runtime.engines.adapter_files import read_adapter  # noqa: E402

CONFIG = AdapterConfig(steps=3, batch_size=2, num_songs=4, learning_rate=1e-2)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return styled_pool("music box", CONFIG, partial(hints_of, StructureTokenizer()))


@pytest.mark.parametrize("style", STYLES)
def test_a_style_keeps_key_and_tempo(style: str) -> None:
    song = draw_song(np.random.default_rng(3))
    styled = STYLES[style](song)
    assert (styled.root, styled.mode, styled.bpm, styled.seed) == (song.root, song.mode, song.bpm, song.seed)
    assert styled.instruments != song.instruments


def test_prompts_name_nothing_of_the_style(pool: Pool) -> None:
    batch = adapter_batch(pool, CONFIG, 0)
    assert set(batch.token_ids[batch.mask > 0]) <= set(PLAIN_IDS)


def test_terms_start_at_nothing_and_learn(pool: Pool) -> None:
    model = new_model(0)
    batch = adapter_batch(pool, CONFIG, 0)
    before = flow_loss(model, batch).item()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    terms = add_terms(model, 1)
    assert flow_loss(model, batch).item() == pytest.approx(before, rel=1e-6)
    assert len(terms) == 4 * 11
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_runtime_reads_what_was_trained(pool: Pool, tmp_path: Path) -> None:
    model = new_model(0)
    terms = add_terms(model, CONFIG.seed)
    steps = list(train_terms(model, terms, pool, CONFIG))
    save_adapter(tmp_path / "music-box.safetensors", terms)
    matrices = {
        path: AdapterMatrix(weight=path, inputs=term.a.shape[1], outputs=len(term.b)) for path, term in terms.items()
    }
    adapter = read_adapter(tmp_path / "music-box.safetensors", AdapterSpec(matrices=matrices))
    assert [step for step, *_ in steps] == [1, 2, 3]
    assert (adapter.id, adapter.rank, adapter.base_model) == ("music-box", RANK, "tickrt-demo")
    first = terms["layers.0.self_attn.to_q"]
    assert np.allclose(adapter.a[:, : first.a.shape[1]], first.a.detach().numpy(), atol=1e-3)
    assert np.abs(adapter.b).max() > 0
