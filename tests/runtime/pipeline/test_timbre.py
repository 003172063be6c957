"""The timbre of a reference: its three parts, and tokens between those of silence and its own."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_bundle, tiny_codec_decode, tiny_codec_encode
from helpers.graph_engine import GraphEngine
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.base.errors import ConfigError, EngineError, RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.devices.device import Level
from runtime.pipeline.timbre import TimbreEncoder, reference_parts

SPEC = TinySpec(prefix="y_", conditions=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("bundle"), SPEC))


@pytest.fixture
def engine(bundle: Bundle) -> GraphEngine:
    return GraphEngine(onnx.load(bundle.folder / "timbre_encoder.onnx"))


def pieces(values: NDArray[np.float32], sizes: int) -> Iterator[NDArray[np.float32]]:
    return iter(np.array_split(values, sizes))


def by_the_pipeline(audio: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """AceStepPipeline.prepare_reference_audio_latents, with `length` for 30 s: audio `[n, channels]`."""
    if len(audio) < length:
        audio = np.tile(audio, (-(-length // len(audio)), 1))
    part, total = length // 3, len(audio)
    middle, back = total // 3, max(total - part, 0)
    return np.concatenate([audio[:part], audio[middle : middle + part], audio[back : back + part]])


@pytest.mark.parametrize("samples", [1, 2, 5, 11, 12, 13, 29, 100, 301])
@pytest.mark.parametrize("num_pieces", [1, 4])
def test_the_parts_are_those_of_the_pipeline(samples: int, num_pieces: int) -> None:
    audio = np.random.default_rng(samples).standard_normal((samples, 2)).astype(np.float32)
    found = reference_parts(lambda: pieces(audio, num_pieces), 12)
    assert np.array_equal(found, by_the_pipeline(audio, 12))


def test_an_empty_reference_is_refused() -> None:
    with pytest.raises(RequestError, match="timbre: is empty"):
        reference_parts(lambda: iter([]), 12)


@pytest.mark.parametrize("changed", [lambda tokens: tokens[0], lambda tokens: tokens[:, :0]])
def test_a_graph_that_returns_something_else_is_refused(changed: Any, bundle: Bundle) -> None:
    class Other(GraphEngine):
        def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
            return {"y_timbre": changed(super().run(feeds, level)["y_timbre"])}

    timbre = TimbreEncoder(bundle, Other(onnx.load(bundle.folder / "timbre_encoder.onnx")))
    with pytest.raises(EngineError, match=r"expected \[1, P, D\]"):
        timbre.encode(np.zeros((12, SPEC.channels), np.float32))


def test_audio_is_encoded_once_for_the_length_of_a_reference(bundle: Bundle, engine: GraphEngine) -> None:
    encode = GraphEngine(tiny_codec_encode(SPEC))
    codec, timbre = Codec(bundle, GraphEngine(tiny_codec_decode(SPEC)), encode), TimbreEncoder(bundle, engine)
    pcm = np.random.default_rng(0).standard_normal((50 * SPEC.hop_samples, SPEC.audio_channels)).astype(np.float32)
    found = timbre.reference(lambda: pieces(pcm, 3), codec)
    assert np.array_equal(found, codec.encode(reference_parts(lambda: pieces(pcm, 1), 12 * SPEC.hop_samples)))
    num_executes = len(encode.feeds)
    assert timbre.reference(lambda: pieces(pcm, 2), codec) is found
    assert len(encode.feeds) == num_executes
    latents = np.random.default_rng(1).standard_normal((50, SPEC.channels)).astype(np.float32)
    parts = reference_parts(lambda: pieces(latents, 1), 12)
    assert np.array_equal(timbre.reference(lambda: pieces(latents, 3)), parts)


def test_strength_goes_from_silence_to_the_reference(bundle: Bundle, engine: GraphEngine) -> None:
    timbre = TimbreEncoder(bundle, engine)
    latents = np.random.default_rng(0).standard_normal((12, SPEC.channels)).astype(np.float32)
    by_graph = engine.run({"y_reference": latents[None]})["y_timbre"][0]
    silent = engine.run({"y_reference": np.tile(np.array(SPEC.silence, np.float32), (1, 12, 1))})["y_timbre"][0]
    assert np.array_equal(timbre.encode(latents), by_graph)
    assert np.array_equal(timbre.encode(latents, 0.0), silent)
    assert np.array_equal(timbre.silence, silent)
    np.testing.assert_allclose(timbre.encode(latents, 0.25), 0.75 * silent + 0.25 * by_graph, atol=1e-6)
    assert np.abs(by_graph - silent).max() > 0.1


def test_equal_references_run_once(bundle: Bundle, engine: GraphEngine) -> None:
    timbre = TimbreEncoder(bundle, engine)
    latents = np.ones((12, SPEC.channels), np.float32)
    assert timbre.encode(latents) is timbre.encode(latents.copy())
    assert len(engine.feeds) == 1
    with pytest.raises(ValueError, match="read-only"):
        timbre.encode(latents)[0, 0] = 1.0


def test_latents_of_another_shape_are_refused(bundle: Bundle, engine: GraphEngine) -> None:
    with pytest.raises(RequestError, match=r"timbre: has shape \(13, 8\), expected \(12, 8\)"):
        TimbreEncoder(bundle, engine).encode(np.zeros((13, SPEC.channels), np.float32))


def test_a_bundle_without_timbre_is_refused(tmp_path: Path, engine: GraphEngine) -> None:
    with pytest.raises(ConfigError, match=r"has no \[timbre\]"):
        TimbreEncoder(load_bundle(tiny_bundle(tmp_path)), engine)
