"""Windows equal the full decode, whatever their size, place and neighbours; encoding keeps every sample."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_bundle, tiny_codec_decode, tiny_codec_encode
from helpers.graph_engine import GraphEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.audio.windows import DecodeStream
from runtime.config.bundle import Bundle, load_bundle
from runtime.errors import ConfigError, RequestError, ShapeError

SPEC = TinySpec(prefix="x_")
HOP = SPEC.hop_samples


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("bundle"), SPEC))


@pytest.fixture(scope="module")
def codec(bundle: Bundle) -> Codec:
    return Codec(bundle, GraphEngine(tiny_codec_decode(SPEC)), GraphEngine(tiny_codec_encode(SPEC)))


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, SPEC.channels)).astype(np.float32)


def joined(pieces: Iterator[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(list(pieces))


def test_decode_gives_every_sample(codec: Codec) -> None:
    pcm = codec.decode(latents(7))
    assert pcm.shape == (7 * HOP, SPEC.audio_channels)
    assert pcm.dtype == np.float32
    assert pcm.flags.c_contiguous
    assert np.abs(pcm).max() > 0.1


def test_the_graph_needs_its_margin_and_its_position(codec: Codec) -> None:
    field = latents(9)
    assert np.abs(codec.decode(field)[: 4 * HOP] - codec.decode(field[:4])).max() > 1e-3
    assert np.abs(codec.decode(field) - codec.decode(field, start_frame=20)).max() > 1e-3


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(1, 24), window=st.integers(1, 30), start=st.integers(0, 1000))
def test_windows_equal_the_full_decode(codec: Codec, frames: int, window: int, start: int) -> None:
    field = latents(frames)
    pieces = list(codec.windows(field, window_frames=window, start_frame=start))
    assert [len(piece) for piece in pieces[:-1]] == [window * HOP] * (len(pieces) - 1)
    assert np.abs(np.concatenate(pieces) - codec.decode(field, start)).max() < 1e-5


@pytest.mark.parametrize("cut", [1, 2, 11, 19])
@pytest.mark.parametrize("window", [1, 3, 64])
def test_neighbours_make_two_parts_one(codec: Codec, cut: int, window: int) -> None:
    field = latents(20)
    first = joined(codec.windows(field[:cut], window_frames=window, start_frame=5, after=field[cut:]))
    second = joined(codec.windows(field[cut:], window_frames=window, start_frame=5 + cut, before=field[:cut]))
    assert np.abs(np.concatenate((first, second)) - codec.decode(field, 5)).max() < 1e-5


def test_only_the_margin_of_neighbours_is_decoded(bundle: Bundle) -> None:
    engine = GraphEngine(tiny_codec_decode(SPEC))
    codec = Codec(bundle, engine)
    joined(codec.windows(latents(4), window_frames=4, start_frame=100, before=latents(50), after=latents(50)))
    assert [feeds["x_latents"].shape[1] for feeds in engine.feeds] == [4 + 2 * codec.margin_frames]
    assert engine.feeds[0]["x_start_frame"].tolist() == [100 - codec.margin_frames]


@settings(max_examples=40, deadline=None)
@given(pieces=st.lists(st.integers(1, 9), min_size=1, max_size=6), window=st.integers(1, 8))
def test_a_stream_in_pieces_equals_the_full_decode(codec: Codec, pieces: list[int], window: int) -> None:
    field = latents(sum(pieces))
    stream = DecodeStream(codec, window_frames=window, start_frame=3)
    heard = [pcm for part in np.split(field, np.cumsum(pieces)[:-1]) for pcm in stream.feed(part)]
    heard += stream.finish()
    assert np.abs(np.concatenate(heard) - codec.decode(field, 3)).max() < 1e-5


def test_a_stream_holds_back_only_the_margin(codec: Codec) -> None:
    stream = DecodeStream(codec, window_frames=4)
    assert sum(len(pcm) for pcm in stream.feed(latents(10))) == (10 - codec.margin_frames) * HOP
    assert sum(len(pcm) for pcm in stream.finish()) == codec.margin_frames * HOP
    assert list(stream.finish()) == []


def test_encode_adds_silence_up_to_a_whole_frame(codec: Codec) -> None:
    pcm = np.random.default_rng(1).standard_normal((3 * HOP + 1, SPEC.audio_channels)).astype(np.float32)
    padded = np.concatenate((pcm, np.zeros((HOP - 1, SPEC.audio_channels), np.float32)))
    assert codec.encode(pcm).shape == (4, SPEC.channels)
    assert np.array_equal(codec.encode(pcm), codec.encode(padded))


def bounded(bundle: Bundle, window_frames: int) -> tuple[Codec, GraphEngine, GraphEngine]:
    """A codec whose executes are bounded, and its engines."""
    assert bundle.codec is not None
    assert bundle.codec.encode is not None
    limit = {"window_frames": window_frames}
    halves = {name: getattr(bundle.codec, name).model_copy(update=limit) for name in ("decode", "encode")}
    small = bundle.model_copy(update={"codec": bundle.codec.model_copy(update=halves)})
    decode, encode = GraphEngine(tiny_codec_decode(SPEC)), GraphEngine(tiny_codec_encode(SPEC))
    return Codec(small, decode, encode), decode, encode


def test_long_audio_is_encoded_in_windows_without_a_seam(bundle: Bundle, codec: Codec) -> None:
    pcm = np.random.default_rng(1).standard_normal((23 * HOP, SPEC.audio_channels)).astype(np.float32)
    small, _, engine = bounded(bundle, 5)
    assert np.abs(small.encode(pcm) - codec.encode(pcm)).max() < 1e-5
    assert max(feeds["x_audio"].shape[2] for feeds in engine.feeds) == (5 + 2) * HOP


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(1, 40), limit=st.integers(1, 12), window=st.integers(1, 30), start=st.integers(0, 99))
def test_no_execute_is_longer_than_the_bundle_says(
    bundle: Bundle, codec: Codec, frames: int, limit: int, window: int, start: int
) -> None:
    small, engine, _ = bounded(bundle, limit)
    field = latents(frames)
    whole = codec.decode(field, start)
    assert np.abs(small.decode(field, start) - whole).max() < 1e-5
    assert np.abs(joined(small.windows(field, window_frames=window, start_frame=start)) - whole).max() < 1e-5
    assert max(feeds["x_latents"].shape[1] for feeds in engine.feeds) <= limit + 2 * small.margin_frames


def test_even_windows_and_margins_make_even_executes(bundle: Bundle) -> None:
    small, engine, _ = bounded(bundle, 8)
    small.margin_frames = 2
    joined(small.windows(latents(30), window_frames=64, before=latents(30), after=latents(30)))
    assert [feeds["x_latents"].shape[1] for feeds in engine.feeds] == [12, 12, 12, 10]


@pytest.mark.parametrize("shape", [(4, SPEC.channels + 1), (0, SPEC.channels), (SPEC.channels,)])
def test_wrong_latents_are_refused(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"expected \[T, 8\]"):
        codec.decode(np.zeros(shape, np.float32))


@pytest.mark.parametrize("shape", [(640, 1), (0, 2), (640,)])
def test_wrong_audio_is_refused(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"expected \[N, 2\]"):
        codec.encode(np.zeros(shape, np.float32))


def test_a_bundle_without_the_parts_says_so(tmp_path: Path) -> None:
    bare: Any = None
    no_encode = load_bundle(tiny_bundle(tmp_path / "a", encode=False))
    codec = Codec(no_encode, GraphEngine(tiny_codec_decode(TinySpec())))
    assert not codec.can_encode
    with pytest.raises(RequestError, match="cannot turn audio into latents"):
        codec.encode(np.zeros((640, 2), np.float32))
    with pytest.raises(ConfigError, match="no \\[codec\\]"):
        Codec(load_bundle(tiny_bundle(tmp_path / "b", codec=False)), bare)


def test_threads_share_one_codec(codec: Codec) -> None:
    fields = [latents(6, seed) for seed in range(16)]
    expected = [codec.decode(field) for field in fields]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(codec.decode, fields))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
