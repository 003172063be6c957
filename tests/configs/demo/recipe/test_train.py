"""Training: the schedule, a step, a run that goes on where it was."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from configs.demo.recipe.corpus.batches import Pool, draw_songs, make_pool  # noqa: E402
from configs.demo.recipe.structure import StructureTokenizer, hints_of  # noqa: E402
from configs.demo.recipe.train import (  # noqa: E402
    SHORT_EVERY,
    TrainConfig,
    Trainer,
    learning_rate,
    train,
    training_batch,
)

CONFIG = TrainConfig(
    steps=4,
    num_songs=4,
    batch_size=2,
    checkpoint_every=2,
    log_every=2,
    warmup_steps=1,
    tokenizer_steps=2,
)


def pool(num_songs: int = 2) -> Pool:
    return make_pool(draw_songs(num_songs, 1), 1, partial(hints_of, StructureTokenizer()))


def test_the_learning_rate_warms_up_holds_and_falls_to_zero() -> None:
    config = TrainConfig(warmup_steps=10, decay_share=0.5, learning_rate=1.0)
    assert learning_rate(config, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(config, 100, 0.4) == 1.0
    assert learning_rate(config, 100, 0.75) == pytest.approx(0.5)
    assert learning_rate(config, 100, 1.0) == 0.0


def test_some_batches_are_short() -> None:
    songs = pool()
    shapes = [training_batch(songs, CONFIG, step).latents.shape[:2] for step in range(SHORT_EVERY)]
    assert shapes == [(2, 256)] * (SHORT_EVERY - 1) + [(4, 128)]


def test_steps_on_one_batch_lower_its_loss() -> None:
    trainer = Trainer(replace(CONFIG, steps=100), StructureTokenizer())
    batch = training_batch(pool(), CONFIG, 0)
    losses = [trainer.train_step(batch) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = train(CONFIG, tmp_path / "whole.pt")
    half = Trainer(CONFIG, whole.tokenizer)
    songs = make_pool(draw_songs(CONFIG.num_songs, CONFIG.seed), CONFIG.seed, partial(hints_of, whole.tokenizer))
    for step in range(2):
        half.train_step(training_batch(songs, CONFIG, step))
    half.save(tmp_path / "half.pt")
    resumed = train(CONFIG, tmp_path / "half.pt")
    assert resumed.step == whole.step == 4
    pairs = zip(whole.average.parameters(), resumed.average.parameters(), strict=True)
    assert max(float((one - other).abs().max()) for one, other in pairs) < 1e-3
    assert '"resumed_at": 2' in capsys.readouterr().out
    assert np.isfinite(whole.elapsed_s)
