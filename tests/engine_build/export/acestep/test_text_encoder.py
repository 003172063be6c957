"""Condition tokens: ours against the pipeline's own encoding of prompt, lyrics, metadata, tasks and reference audio."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.graph_engine import GraphEngine
from helpers.paths import TESTS
from helpers.tiny_acestep import CONDITION_WIDTH, HOP_SAMPLES, SAMPLE_RATE_HZ, diffusers_pipeline
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.conditions import DEFAULTS, filled
from runtime.pipeline.text_encoder import TextEncoder
from runtime.pipeline.timbre import TimbreEncoder

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

PROMPTS = ["calm piano", "x", "  Drum & bass, 174 bpm\n# Caption\nwith {braces} and {seconds}", "鋼琴 Klavier"]
# Ours -> the pipeline's.
NAMES = {
    "bpm": "bpm", "key": "keyscale", "time_signature": "timesignature", "instruction": "instruction",
    "language": "vocal_language", "lyrics": "lyrics",
}  # fmt: skip
TRACKS = {"task": "task_type", "track": "track_name", "track_classes": "complete_track_classes"}
TEXTS = TESTS / "data" / "acestep_texts.json"


@pytest.fixture(scope="module")
def pipeline(base: Path) -> Any:
    return diffusers_pipeline(base)


@pytest.fixture(scope="module")
def loaded(bundle: Path) -> Bundle:
    return load_bundle(bundle)


@pytest.fixture(scope="module")
def text_encoder(loaded: Bundle) -> TextEncoder:
    engines = {name: GraphEngine(onnx.load(loaded.folder / f"{name}.onnx")) for name in loaded.condition_graphs}
    timbre = TimbreEncoder(loaded, engines["timbre_encoder"])
    return TextEncoder(loaded, engines["text_encoder"], engines["lyric_encoder"], timbre)


def pipeline_values(pipeline: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Our options as arguments of encode_prompt: the instruction is the task's, as in the pipeline's call."""
    found = {NAMES[name]: value for name, value in values.items() if name in NAMES and value is not None}
    if "timesignature" in found:
        found["timesignature"] = str(found["timesignature"])
    tracks = {TRACKS[name]: value for name, value in values.items() if name in TRACKS}
    return {"instruction": pipeline._get_task_instruction(**tracks), **found}


def expected(
    pipeline: Any, prompts: list[str], seconds: float, values: Mapping[str, Any] = {}, reference: Any = None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Steps 1, 3 and 4 of the pipeline's call. reference: audio `[channels, samples]`."""
    count, arguments = len(prompts), pipeline_values(pipeline, values)
    lyrics = [arguments.pop("lyrics", "")] * count
    with torch.no_grad():
        text, text_mask, lyric, lyric_mask = pipeline.encode_prompt(
            prompts, lyrics, torch.device("cpu"), audio_duration=seconds, **arguments
        )
        if reference is None:
            latents = pipeline.condition_encoder.silence_latent[:, : math.ceil(30 * pipeline.latents_per_second)]
            latents = latents.expand(count, -1, -1).contiguous()
        else:
            latents, _ = pipeline.prepare_reference_audio_latents(reference, count, torch.device("cpu"), torch.float32)
        tokens, mask = pipeline.condition_encoder(
            text_hidden_states=text,
            text_attention_mask=text_mask,
            lyric_hidden_states=lyric,
            lyric_attention_mask=lyric_mask,
            refer_audio_acoustic_hidden_states_packed=latents,
            refer_audio_order_mask=torch.arange(count),
        )
    return tokens.numpy(), mask.numpy()


def combinations() -> list[dict[str, Any]]:
    """Metadata, lyrics and tasks, each with and without its options."""
    metadata = [{}, {"bpm": 92}, {"bpm": 120, "key": "F# minor", "time_signature": 3}, {"key": "C major"}]
    lyrics = [{}, {"lyrics": "[verse]\nSoft {lyrics} at night\n", "language": "de"}]
    tasks: list[dict[str, Any]] = [
        {}, {"task": "text2music"}, {"task": "cover"}, {"task": "repaint"}, {"task": "extract"}, {"task": "lego"},
        {"task": "extract", "track": "drums"}, {"task": "lego", "track": "backing vocals"}, {"task": "complete"},
        {"task": "complete", "track_classes": ["drums"]}, {"task": "complete", "track_classes": ["drums", "bass"]},
        {"instruction": "Play it backwards"}, {"instruction": "Play {track}:", "task": "cover"},
    ]  # fmt: skip
    return [{**a, **b, **c} for a, b, c in product(metadata, lyrics, tasks)]


def test_texts_are_the_pipeline_s(pipeline: Any, loaded: Bundle) -> None:
    """Of every combination; and they are those of the file that the tests without torch read."""
    assert loaded.text_encoder is not None
    assert loaded.text_encoder.lyrics is not None
    found = []
    for prompt, seconds, values in product(PROMPTS[2:3], (2.4, 60.0), combinations()):
        arguments = pipeline_values(pipeline, values)
        texts = pipeline._format_prompt(prompt, audio_duration=seconds, **arguments)
        ours = loaded.text_encoder.text(prompt, seconds, values)
        lyrics = filled(loaded.text_encoder.lyrics.template, {**DEFAULTS, **values})
        assert (ours, lyrics) == texts
        found.append({"prompt": prompt, "seconds": seconds, "values": values, "texts": list(texts)})
    spec = loaded.text_encoder.model_dump(mode="json", exclude={"inputs", "outputs", "meaning"})
    spec["lyrics"] = {name: spec["lyrics"][name] for name in ("template", "max_tokens", "graph")}
    stored = json.loads(TEXTS.read_text(encoding="utf-8"))
    assert stored["text_encoder"] == spec
    assert all(case in found for case in stored["cases"])
    assert len(stored["cases"]) > 10


def test_the_graphs_of_text_and_lyrics_share_a_file_of_embeddings(
    pipeline: Any, loaded: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from engine_build.export import torch_export
    from engine_build.export.acestep.text_encoder import (
        EMBEDDINGS_NAME,
        export_lyric_encoder,
        export_text_encoder,
    )

    monkeypatch.setattr(torch_export, "INLINE_LIMIT_BYTES", 0)
    text, lyrics, tokenizer = (tmp_path / name for name in ("text.onnx", "lyrics.onnx", "tokenizer.json"))
    export_text_encoder(pipeline.condition_encoder, pipeline.text_encoder, pipeline.tokenizer, text, tokenizer)
    export_lyric_encoder(pipeline.condition_encoder, text, lyrics)
    table = pipeline.text_encoder.get_input_embeddings().weight.detach().numpy()
    graph = onnx.load(lyrics, load_external_data=False).graph
    (shared,) = (tensor for tensor in graph.initializer if tensor.name == EMBEDDINGS_NAME)
    assert {item.key: item.value for item in shared.external_data}["location"] == "text.onnx.data"
    own = sum(value.numel() * 4 for value in pipeline.condition_encoder.lyric_encoder.parameters())
    assert (tmp_path / "lyrics.onnx.data").stat().st_size <= own < table.nbytes
    assert np.array_equal(onnx.numpy_helper.to_array(shared, str(tmp_path)), table)
    ids = np.arange(12)[None] % len(table)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    found, wanted = (GraphEngine(onnx.load(file)).run(feeds) for file in (lyrics, loaded.folder / "lyric_encoder.onnx"))
    assert np.array_equal(found["condition"], wanted["condition"])


@pytest.mark.parametrize(("prompt", "seconds"), list(zip(PROMPTS, (60.0, 2.4, 60.0, 2.4), strict=True)))
def test_a_prompt_becomes_the_pipeline_s_tokens(
    text_encoder: TextEncoder, pipeline: Any, prompt: str, seconds: float
) -> None:
    wanted, mask = expected(pipeline, [prompt], seconds)
    found = text_encoder.encode(prompt, seconds=seconds)
    assert mask.all()
    assert found.shape == wanted[0].shape
    assert np.abs(found - wanted[0]).max() < 1e-4


@pytest.mark.parametrize(
    "values",
    [
        {"lyrics": "[verse]\nSoft notes in the morning light\n" * 5, "language": "fr", "bpm": 120, "key": "Bb major"},
        {"task": "lego", "track": "drums", "time_signature": 6},
        {"task": "complete", "track_classes": ["drums", "bass"], "lyrics": "la"},
        {"task": "cover"},
    ],
)
@pytest.mark.parametrize("has_reference", [False, True])
def test_every_condition_becomes_the_pipeline_s_tokens(
    text_encoder: TextEncoder,
    pipeline: Any,
    loaded: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    has_reference: bool,
) -> None:
    """The pipeline samples the codec's posterior; compared is its mode."""
    from diffusers.models.autoencoders.autoencoder_oobleck import OobleckDiagonalGaussianDistribution

    monkeypatch.setattr(OobleckDiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode())
    audio, timbre = None, None
    if has_reference:
        samples = np.random.default_rng(3).uniform(-0.5, 0.5, (33 * SAMPLE_RATE_HZ + 77, 2)).astype(np.float32)
        encode = Codec(
            loaded, *(GraphEngine(onnx.load(loaded.folder / f"codec_{n}.onnx")) for n in ("decode", "encode"))
        )
        assert text_encoder.timbre is not None
        latents = text_encoder.timbre.reference(lambda: iter(np.array_split(samples, 7)), encode)
        assert latents.shape[0] == 30 * SAMPLE_RATE_HZ // HOP_SAMPLES
        audio, timbre = torch.from_numpy(samples.T.copy()), text_encoder.timbre.encode(latents)
    wanted, mask = expected(pipeline, ["calm piano"], 60.0, values, audio)
    found = text_encoder.encode("calm piano", seconds=60.0, values=values, timbre=timbre)
    assert mask.all()
    assert found.shape == wanted[0].shape
    assert np.abs(found - wanted[0]).max() < 1e-4
    without = text_encoder.encode("calm piano", seconds=60.0, values=values)
    assert (np.abs(found - without).max() > 1e-2) == has_reference


def test_padded_texts_keep_only_their_own_tokens(bundle: Path, pipeline: Any, text_encoder: TextEncoder) -> None:
    spec = text_encoder.spec
    wanted, wanted_mask = expected(pipeline, PROMPTS, 60.0)
    wanted, wanted_mask = wanted[:, spec.prefix_tokens :], wanted_mask[:, spec.prefix_tokens :]
    encoded = [pipeline.tokenizer(spec.text(prompt, 60.0)).input_ids for prompt in PROMPTS]
    longest = max(len(ids) for ids in encoded)
    ids = np.array([row + [0] * (longest - len(row)) for row in encoded], np.int64)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in encoded], np.int64)
    engine = GraphEngine(onnx.load(bundle / "text_encoder.onnx"))
    found = engine.run({"input_ids": ids, "attention_mask": mask})
    assert np.array_equal(found["condition_mask"] > 0.5, wanted_mask)
    assert np.abs((found["condition"] - wanted)[wanted_mask]).max() < 1e-4


def test_the_tokens_beside_the_text_are_counted(text_encoder: TextEncoder) -> None:
    spec = text_encoder.spec
    assert spec.prefix_tokens > 1
    assert len(text_encoder.encode("ab")) == text_encoder.num_tokens("ab") + spec.prefix_tokens
    assert (spec.max_tokens, spec.lyrics and spec.lyrics.max_tokens) == (256, 2048)


def test_texts_are_not_cut_as_the_pipeline_cuts_them(text_encoder: TextEncoder) -> None:
    with pytest.raises(RequestError, match="the model accepts 256"):
        text_encoder.encode("very long " * 40)
    with pytest.raises(RequestError, match=r"lyrics: .* the model accepts 2048"):
        text_encoder.encode("a", values={"lyrics": "very long " * 300})


def test_the_null_condition_is_the_learned_one(text_encoder: TextEncoder, pipeline: Any) -> None:
    learned = pipeline.condition_encoder.null_condition_emb.detach()[0].numpy()
    assert text_encoder.encode("").shape == (1, CONDITION_WIDTH)
    assert np.array_equal(text_encoder.encode(""), learned)
    assert text_encoder.encode("", values={"bpm": 100}).shape[0] > 1
