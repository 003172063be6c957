"""The shipped bundle: complete, small, clean, and a decoder that padding cannot change."""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from helpers.paths import ROOT

from configs.demo.recipe.bundle_text import (
    BUNDLE_FILE,
    SIZE_LIMIT_BYTES,
    bundle_size_bytes,
    read_bundle_file,
    rewrite_bundle_file,
)
from configs.demo.recipe.bundle_text import write_bundle_file as write_file
from configs.demo.recipe.latents import CHANNELS, SILENCE
from runtime.config.bundle import load_bundle

FOLDER = ROOT / "configs" / "demo"
GRAPHS = (
    "decoder.onnx",
    "codec_decode.onnx",
    "codec_encode.onnx",
    "text_encoder.onnx",
    "timbre_encoder.onnx",
    "structure_encode.onnx",
    "structure_decode.onnx",
)
PATH_MARKS = (b"site-packages", b"stack_trace", b"/home/", b"/root/", b"/tmp/", b"/work/", b'.py"')

Feed = dict[str, npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def decoder() -> ort.InferenceSession:
    return ort.InferenceSession(str(FOLDER / "decoder.onnx"), providers=["CPUExecutionProvider"])


def feed_of(rows: int, frames: int, tokens: int, seed: int = 0) -> Feed:
    rng = np.random.default_rng(seed)
    context = np.ones((rows, frames, 2 * CHANNELS), np.float32)
    context[:, :, :CHANNELS] = SILENCE
    return {
        "hidden_states": rng.standard_normal((rows, frames, CHANNELS), np.float32),
        "timestep": rng.random(rows, np.float32),
        "encoder_hidden_states": condition_of(rows, tokens, rng),
        "condition_mask": np.ones((rows, tokens), np.float32),
        "context_latents": context,
    }


def condition_of(rows: int, tokens: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Random tokens `[rows, tokens, D]`; the columns of tempo and meter are those of 120 bpm in 4/4."""
    condition = rng.standard_normal((rows, tokens, 96), np.float32)
    condition[:, :, :3] = 0.0
    condition[:, 0, :2] = 120 / 1500, 1 / 4
    return condition


def padded(feed: Feed, tokens: int, value: float) -> Feed:
    """The same rows with more condition tokens, all of them masked."""
    extra = tokens - feed["condition_mask"].shape[1]
    condition = np.pad(feed["encoder_hidden_states"], ((0, 0), (0, extra), (0, 0)), constant_values=value)
    return feed | {
        "encoder_hidden_states": condition,
        "condition_mask": np.pad(feed["condition_mask"], ((0, 0), (0, extra))),
    }


def joined(first: Feed, second: Feed) -> Feed:
    """The rows of both."""
    return {name: np.concatenate([array, second[name]]) for name, array in first.items()}


def run(session: ort.InferenceSession, feed: Feed) -> npt.NDArray[np.float32]:
    velocity: npt.NDArray[np.float32] = session.run(None, feed)[0]
    return velocity


def test_the_runtime_reads_the_bundle() -> None:
    bundle = load_bundle(FOLDER)
    assert bundle.latents.canvas_frames == 256
    assert bundle.context_channels == 2 * CHANNELS
    assert all(bundle.graph_path(graph).is_file() for graph in GRAPHS)


def test_the_bundle_is_small() -> None:
    assert bundle_size_bytes(FOLDER) < SIZE_LIMIT_BYTES
    assert not (FOLDER / "samples.png").exists() or (FOLDER / "samples.png").stat().st_size < 500_000


def test_the_figures_are_there() -> None:
    tables = read_bundle_file(FOLDER)
    assert tables["training"]["parameters"] == pytest.approx(4.7e6, rel=0.02)
    names = {"in_key", "tempo", "absent_worst_layer", "cover_1_chroma", "instruments", "true_peak_dbtp"}
    assert names <= set(tables["evaluation"])


@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_valid_and_hold_no_paths(graph: str) -> None:
    onnx.checker.check_model(onnx.load(FOLDER / graph), full_check=True)
    text = (FOLDER / graph).read_bytes()
    assert not [mark for mark in PATH_MARKS if mark in text]


def test_the_decoder_keeps_its_module_scopes() -> None:
    nodes = onnx.load(FOLDER / "decoder.onnx", load_external_data=False).graph.node
    scopes = [entry.value for node in nodes for entry in node.metadata_props if entry.key.endswith("name_scopes")]
    assert len(scopes) > len(nodes) / 2
    assert any("layers.3.cross_attn" in scope for scope in scopes)


@pytest.mark.parametrize(("rows", "frames", "tokens"), [(1, 2, 1), (1, 512, 24), (5, 64, 3)])
def test_the_decoder_takes_every_size(decoder: ort.InferenceSession, rows: int, frames: int, tokens: int) -> None:
    velocity = run(decoder, feed_of(rows, frames, tokens))
    assert velocity.shape == (rows, frames, CHANNELS)
    assert np.isfinite(velocity).all()


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_padding_changes_nothing(decoder: ort.InferenceSession, value: float) -> None:
    feed = feed_of(2, 64, 5)
    assert np.abs(run(decoder, padded(feed, 40, value)) - run(decoder, feed)).max() < 1e-6


def test_rows_of_other_lengths_change_nothing(decoder: ort.InferenceSession) -> None:
    short, long = feed_of(1, 64, 3, seed=1), feed_of(1, 64, 30, seed=2)
    mixed = run(decoder, joined(padded(short, 30, 7.0), long))
    assert np.abs(mixed[:1] - run(decoder, joined(short, short))[:1]).max() < 1e-6
    assert np.abs(mixed[1:] - run(decoder, joined(long, long))[1:]).max() < 1e-6
    assert np.abs(mixed[:1] - run(decoder, short)).max() < 1e-5  # another number of rows rounds otherwise


def test_a_bundle_file_is_read_as_written(tmp_path: Path) -> None:
    training, evaluation = {"steps": 3, "note": "kept", "rate": 1e-3}, {"in_key": 0.5, "done": True}
    write_file(tmp_path, training, evaluation)
    tables = read_bundle_file(tmp_path)
    assert (tables["training"], tables["evaluation"]) == (training, evaluation)
    assert tables["context"]["silence"] == [SILENCE] * CHANNELS
    assert (tmp_path / BUNDLE_FILE).is_file()


def test_the_shipped_file_is_the_one_that_is_written_from_its_graphs(tmp_path: Path) -> None:
    """What codes sound is read from the structure graphs."""
    for name in (BUNDLE_FILE, "planner.onnx", "structure_encode.onnx", "structure_decode.onnx"):
        shutil.copy(FOLDER / name, tmp_path)
    rewrite_bundle_file(tmp_path)
    assert (tmp_path / BUNDLE_FILE).read_text(encoding="utf-8") == (FOLDER / BUNDLE_FILE).read_text(encoding="utf-8")
