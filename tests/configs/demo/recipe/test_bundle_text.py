"""The bundle's texts: names, words, latents, the command."""

from __future__ import annotations

import doctest
import itertools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from helpers.paths import DEMO_BUNDLE, ROOT
from typer.testing import CliRunner

from configs.demo.recipe import __main__ as main
from configs.demo.recipe.binding import binding_tables
from configs.demo.recipe.bundle_text import (
    BUNDLE_FILE,
    SIZE_LIMIT_BYTES,
    bundle_size_bytes,
    read_bundle_file,
    rewrite_bundle_file,
    write_bundle_file,
)
from configs.demo.recipe.bundle_text import write_bundle_file as write_file
from configs.demo.recipe.corpus.genres import GENRES
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.corpus.vocabulary import (
    BPM_CONCEPTS,
    FRACTION_CONCEPTS,
    KEY_CONCEPTS,
    NO_INSTRUMENT_CONCEPTS,
    NO_LAYER_CONCEPTS,
    PAIR_CONCEPTS,
    WORD_CONCEPTS,
)
from configs.demo.recipe.corpus.vocabulary import MOODS as CONCEPTS
from configs.demo.recipe.evaluation.report import Measured
from configs.demo.recipe.instruments import (
    INSTRUMENTS,
    LAYERS,
    REGISTERS,
    TIMBRE_CHANNELS,
    channels_of,
    keys_of,
    pitch_channels,
    program_of,
    timbre_levels,
)
from configs.demo.recipe.latents import (
    CHANNELS,
    FIRST_PITCH,
    NUM_PITCHES,
    SILENCE,
    latents_from_levels,
    levels_from_latents,
)
from configs.demo.recipe.text_encoder import meaning_names
from configs.demo.recipe.tokenizer import vocabulary
from configs.demo.recipe.words import FILLERS, WORDS
from engine_build.export.cleanup import paths_in
from runtime.base.errors import BuildError, ConfigError
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
        "frame_numbers": np.tile(np.arange(frames, dtype=np.float32), (rows, 1)),
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


def test_the_decoders_clocks_follow_the_numbers_of_the_frames(decoder: ort.InferenceSession) -> None:
    """Four bars later they are the same, half a beat later others: 120 bpm has 12.5 frames a beat, and bars of 50."""
    feed = feed_of(1, 64, 8)
    expected, changes = run(decoder, feed), []
    for later in (200, 6, 25):
        numbers = feed["frame_numbers"] + np.float32(later)
        changes.append(np.abs(run(decoder, feed | {"frame_numbers": numbers}) - expected).max())
    assert changes[0] < 1e-3
    assert min(changes[1:]) > 0.05


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
    assert paths_in(FOLDER / graph) == []


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


def test_words_are_tokens_and_names_are_said() -> None:
    tables, words, names = binding_tables(), vocabulary(), set(meaning_names()["layers"])
    assert tables["moods"].keys() <= CONCEPTS.keys()
    assert all(word in words for each in (*tables["moods"].values(), *tables["parts"]) for word in each["words"])
    assert {name for part in tables["parts"] for named in part["names"].values() for name in named} == names


def test_a_word_is_of_one_part() -> None:
    words = [word for part in binding_tables()["parts"] for word in part["words"]]
    assert len(words) == len(set(words))


def test_the_shipped_bundle_has_them() -> None:
    meaning = read_bundle_file(DEMO_BUNDLE)["text_encoder"]["meaning"]
    assert {name: meaning[name] for name in ("moods", "parts")} == binding_tables()


def test_every_channel_belongs_to_one_layer() -> None:
    channels = [channel for layer in LAYERS for channel in channels_of(layer)]
    assert sorted(channels) == list(range(CHANNELS))


def test_registers_follow_each_other() -> None:
    pitches = [p + FIRST_PITCH for layer in REGISTERS for p in pitch_channels(layer)]
    assert sorted(pitches) == list(range(FIRST_PITCH, FIRST_PITCH + NUM_PITCHES))
    assert [pitch_channels(layer)[0] + FIRST_PITCH for layer in REGISTERS] == [low for low, _ in REGISTERS.values()]


@pytest.mark.parametrize("layer", LAYERS)
def test_instruments_lie_apart(layer: str) -> None:
    places = [timbre_levels(layer, name) for name in INSTRUMENTS[layer]]
    assert all(len(place) == len(TIMBRE_CHANNELS[layer]) for place in places)
    assert all(np.linalg.norm(np.subtract(a, b)) > 0.24 for a, b in itertools.combinations(places, 2))
    assert min(min(place) for place in places) >= 0.25


def test_an_unknown_instrument_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        timbre_levels("pad", "kazoo")


def test_every_instrument_has_a_program_and_every_channel_a_key() -> None:
    assert [key for layer in ("bass", "pad", "arp", "melody") for key in keys_of(layer)] == list(range(36, 88))
    assert len(keys_of("drums")) == len(pitch_channels("drums"))
    programs = {(layer, name): program_of(layer, name) for layer in LAYERS for name in INSTRUMENTS[layer]}
    assert programs["pad", "synth"] != programs["arp", "synth"] == programs["melody", "synth"]
    assert all(0 <= program <= 127 for program in programs.values())


PHRASES = [phrase for listed in WORDS.values() for phrase in listed.split(", ")]


def test_every_concept_has_words_and_every_word_one_concept() -> None:
    by_rule = {*BPM_CONCEPTS, *FRACTION_CONCEPTS, *KEY_CONCEPTS, *NO_LAYER_CONCEPTS, *PAIR_CONCEPTS}
    by_rule |= set(NO_INSTRUMENT_CONCEPTS)
    assert set(WORDS) | by_rule == set(WORD_CONCEPTS)
    assert len(PHRASES) == len(set(PHRASES))
    assert not set(PHRASES) & set(FILLERS.split())


def test_words_are_plain_letters() -> None:
    assert all(re.fullmatch(r"[a-z0-9&-]+", phrase) for phrase in PHRASES)


def test_there_are_a_few_hundred_words() -> None:
    assert len(PHRASES) > 700


def test_the_readme_lists_every_genre_and_its_example_runs() -> None:
    path = DEMO_BUNDLE / "README.md"
    section = path.read_text(encoding="utf-8").partition("## What a prompt of the demo can say")[2]
    assert all(re.search(rf"\b{genre}\b", section) for genre in GENRES)
    found = doctest.testfile(str(path), module_relative=False)
    assert found.attempted >= 2
    assert not found.failed


def test_levels_survive_the_scaling() -> None:
    levels = np.random.default_rng(0).random((5, CHANNELS), np.float32)
    assert np.abs(levels_from_latents(latents_from_levels(levels)) - levels).max() < 1e-6


def test_silence_is_level_zero_and_below_is_clamped() -> None:
    assert np.all(latents_from_levels(np.zeros((3, CHANNELS))) == np.float32(SILENCE))
    assert not levels_from_latents(np.full((3, CHANNELS), SILENCE - 1.0)).any()


def test_the_corpus_is_of_unit_order() -> None:
    songs = [draw_song(np.random.default_rng(index)) for index in range(60)]
    latents = latents_from_levels(np.stack([render(song, 256, song.layers) for song in songs]))
    assert 0.5 < latents.std() < 1.5
    assert abs(latents.mean()) < 0.3


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(main.app, ["--help"]).output
    assert all(command in text for command in ("train", "train-encoder", "export", "evaluate", "plot"))


def test_evaluate_writes_the_figures_and_keeps_those_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    matrices = {"layers.0.self_attn.to_q": {"weight": "w", "inputs": 3, "outputs": 4}}
    write_bundle_file(tmp_path, {"steps": 5}, {}, matrices)
    monkeypatch.setattr("configs.demo.recipe.evaluation.player.open_player", lambda folder: Opened())
    monkeypatch.setattr("configs.demo.recipe.evaluation.evaluate.measure", lambda player: Measured({"in_key": 0.5}))
    result = CliRunner().invoke(main.app, ["evaluate", "--folder", str(tmp_path), "--write"])
    assert result.output.strip() == '{"in_key": 0.5}'
    tables = read_bundle_file(tmp_path)
    assert (tables["training"], tables["evaluation"]) == ({"steps": 5}, {"in_key": 0.5})
    assert tables["adapters"]["matrices"] == matrices


def test_evaluate_measures_the_groups_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def module(name: str) -> object:
        group = name.rsplit(".", 1)[1]
        return SimpleNamespace(measure=lambda player: Measured({group: 1.0}, {group: [{"row": group}]}))

    monkeypatch.setattr("configs.demo.recipe.evaluation.player.open_player", lambda folder: Opened())
    monkeypatch.setattr(main, "import_module", module)
    monkeypatch.setattr(main, "need_packages", lambda *names, extra: None)
    tables = tmp_path / "tables.md"
    result = CliRunner().invoke(main.app, ["evaluate", "tonic", "plans", "--tables", str(tables)])
    assert json.loads(result.output) == {"tonic": 1.0, "plans": 1.0}
    assert "| tonic |" in tables.read_text()
    everything = CliRunner().invoke(main.app, ["evaluate", "all"])
    assert list(json.loads(everything.output)) == list(main.GROUPS.values())
    with pytest.raises(ConfigError, match="no figures tonics"):
        main.evaluate(["tonics"])


def test_evaluate_without_librosa_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"librosa.*\n?.*tickrt\[recipe\]"):
        main.evaluate(["typed"])
