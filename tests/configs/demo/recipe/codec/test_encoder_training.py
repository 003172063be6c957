"""The encoder's training: it learns, is the network that the graph has, and hears gain and tone as audio has them."""

import itertools
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

torch = pytest.importorskip("torch")

from configs.demo.recipe.codec import encoder_training  # noqa: E402
from configs.demo.recipe.codec.encoder import NUM_NOTES, build_encoder, load_weights  # noqa: E402
from configs.demo.recipe.instruments import INSTRUMENTS  # noqa: E402
from configs.demo.recipe.latents import HOP_SAMPLES, levels_from_latents  # noqa: E402

pytestmark = pytest.mark.export

CONFIG = encoder_training.EncoderConfig(steps=40, minutes=60.0, num_clips=8, clip_frames=48, batch_size=4, threads=1)


def test_training_learns_and_writes_weights_that_the_graph_takes(tmp_path: Path) -> None:
    path = tmp_path / "encoder.npz"
    network = encoder_training.train_encoder(CONFIG, path)
    clips = encoder_training.make_clips(CONFIG)
    features, notes = (torch.from_numpy(array.astype(np.float32)) for array in (clips.features, clips.notes))
    instruments = torch.from_numpy(clips.instruments)
    torch.manual_seed(5)
    with torch.no_grad():
        outputs = network(features)
        loss = encoder_training.encoder_loss(outputs, notes, instruments)
        untrained = encoder_training.encoder_loss(encoder_training.EncoderNetwork()(features), notes, instruments)
    assert loss < 0.5 * untrained
    levels, _ = encoder_training.draw_clip(np.random.default_rng([CONFIG.seed, 0]), 48)
    assert levels.shape == (48, 64)
    check_graph(path, network)


def check_graph(path: Path, network: "encoder_training.EncoderNetwork") -> None:
    audio = 0.1 * np.random.default_rng(3).standard_normal((1, 2, 16 * HOP_SAMPLES), np.float32)
    features, encoder = (
        ort.InferenceSession(model.SerializeToString())
        for model in (encoder_training.build_features(), build_encoder(load_weights(path)))
    )
    with torch.no_grad():
        expected = network(torch.from_numpy(features.run(None, {"audio": audio})[0])).numpy()[..., :NUM_NOTES]
    found = levels_from_latents(encoder.run(None, {"audio": audio})[0])[..., :NUM_NOTES]
    expected = np.where(expected > 0.06, np.minimum(expected, 1.2), 0.0)
    near = np.abs(expected - 0.06) > 1e-3  # the gate's edge may fall either way
    np.testing.assert_allclose(found[near], expected[near], atol=1e-4)


def test_clips_have_layers_and_instruments() -> None:
    clips = encoder_training.make_clips(CONFIG)
    assert clips.features.shape[0] == clips.notes.shape[0] == len(clips.instruments) == CONFIG.num_clips
    assert set(np.unique(clips.instruments >= 0)) == {False, True}
    for layer, names in zip(clips.instruments.T, INSTRUMENTS.values(), strict=True):
        assert layer.max() < len(names)


def test_recolouring_is_seeded_and_changes_the_level() -> None:
    features = np.random.default_rng(0).random((4, encoder_training.NUM_FEATURES, 8), np.float32)
    first, second = (encoder_training.recoloured(features, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    means = (first - features).mean(axis=(1, 2))
    assert all(abs(a - b) > 1e-3 for a, b in itertools.combinations(means, 2))
    assert (first >= 0).all()
