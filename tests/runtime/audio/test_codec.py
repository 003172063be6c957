"""Windowed decoding and encoding equal the full conversion; execute sizes are bounded; errors."""

import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_bundle, tiny_codec_decode, tiny_codec_encode
from helpers.graph_engine import GraphEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine_build.specs.engine_specs import codec_ranges
from runtime.audio.codec import MAX_BATCH, Codec, default_workers, windows_per_execute
from runtime.audio.codec_queue import CodecQueue, Urgency
from runtime.base.errors import ConfigError, OutOfMemoryError, RequestError, ShapeError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.codec import Pcm
from runtime.devices.device import Level
from runtime.engines.manifest import Manifest, TensorInfo

SPEC = TinySpec(prefix="x_")
TIMEOUT_S = 30
HOP = SPEC.hop_samples


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path_factory.mktemp("bundle"), SPEC))


@pytest.fixture(scope="module")
def codec(bundle: Bundle) -> Codec:
    return Codec(bundle, GraphEngine(tiny_codec_decode(SPEC)), GraphEngine(tiny_codec_encode(SPEC)))


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, SPEC.channels)).astype(np.float32)


def test_decode_returns_hop_samples_per_frame(codec: Codec) -> None:
    pcm = codec.decode(latents(7))
    assert pcm.shape == (7 * HOP, SPEC.audio_channels)
    assert pcm.dtype == np.float32
    assert pcm.flags.c_contiguous
    assert np.abs(pcm).max() > 0.1


def streamed(codec: Codec, parts: list[NDArray[np.float32]], window_frames: int, **options: int) -> Pcm:
    """The PCM of latents that arrive in parts, decoded in windows."""
    total = sum(len(part) for part in parts)
    cutter = codec.window_cutter(window_frames, total_frames=total, **options)
    return np.concatenate([codec.decode_window(window) for part in parts for window in cutter.cut(part)])


def test_workers_are_one_per_core_on_the_cpu_and_a_batch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert [default_workers(target) for target in ("cpu", "cuda", "tensorrt")] == [4, MAX_BATCH, MAX_BATCH]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert default_workers("cpu") == 2


def test_a_failed_decode_gives_its_worker_back(bundle: Bundle) -> None:
    codec = Codec(bundle, GraphEngine(tiny_codec_decode(SPEC)))
    for _ in range(3):
        with pytest.raises(ShapeError, match="latents have shape"):
            codec.decode(np.zeros((2, 2, 2), np.float32))
    assert len(codec.decode(latents(2))) == 2 * HOP


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    window=st.integers(1, 30),
    first=st.integers(1, 30),
    start=st.integers(0, 1000),
)
def test_windows_equal_the_full_decode(codec: Codec, lengths: list[int], window: int, first: int, start: int) -> None:
    field = latents(sum(lengths))
    parts = np.split(field, np.cumsum(lengths)[:-1])
    pcm = streamed(codec, parts, window, first_frames=first, start_frame=start)
    assert np.abs(pcm - codec.decode(field, start)).max() < 1e-5


def test_only_the_margin_is_decoded_twice(bundle: Bundle) -> None:
    engine = GraphEngine(tiny_codec_decode(SPEC))
    codec = Codec(bundle, engine)
    streamed(codec, [latents(12)], 4, start_frame=100)
    margin = codec.margin_frames
    assert [feeds["x_latents"].shape[1] for feeds in engine.feeds] == [4 + margin, 4 + 2 * margin, 4 + margin]
    assert [feeds["x_start_frame"].tolist() for feeds in engine.feeds] == [[100], [104 - margin], [108 - margin]]


def test_encode_pads_with_silence_to_a_whole_frame(codec: Codec) -> None:
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


def test_windowed_encoding_equals_the_full_encode(bundle: Bundle, codec: Codec) -> None:
    pcm = np.random.default_rng(1).standard_normal((23 * HOP, SPEC.audio_channels)).astype(np.float32)
    small, _, engine = bounded(bundle, 5)
    assert np.abs(small.encode(pcm) - codec.encode(pcm)).max() < 1e-5
    assert max(feeds["x_audio"].shape[2] for feeds in engine.feeds) == (5 + 2) * HOP


@settings(max_examples=40, deadline=None)
@given(samples=st.integers(1, 20 * HOP), cuts=st.lists(st.integers(0, 20 * HOP), max_size=6), window=st.integers(1, 9))
def test_chunks_are_encoded_as_the_whole_is_without_being_joined(
    bundle: Bundle, samples: int, cuts: list[int], window: int
) -> None:
    pcm = np.random.default_rng(1).standard_normal((samples, SPEC.audio_channels)).astype(np.float32)
    small, _, engine = bounded(bundle, window)
    whole, num_executes = small.encode(pcm), len(engine.feeds)
    assert np.array_equal(small.encode_chunks(np.split(pcm, sorted(cuts))), whole)
    assert len(engine.feeds) == 2 * num_executes
    assert max(feeds["x_audio"].shape[2] for feeds in engine.feeds) <= (window + 2) * HOP


def test_chunks_are_taken_as_they_are_needed(bundle: Bundle) -> None:
    small, _, engine = bounded(bundle, 4)
    executes_at_chunk = []

    def chunks() -> Iterator[np.ndarray]:
        for _ in range(12):
            executes_at_chunk.append(len(engine.feeds))
            yield np.zeros((HOP, SPEC.audio_channels), np.float32)

    small.encode_chunks(chunks())
    assert executes_at_chunk[-1] > 0


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(1, 40), limit=st.integers(1, 12), window=st.integers(1, 30), start=st.integers(0, 99))
def test_executes_are_no_longer_than_the_bundle_allows(
    bundle: Bundle, codec: Codec, frames: int, limit: int, window: int, start: int
) -> None:
    small, engine, _ = bounded(bundle, limit)
    field = latents(frames)
    whole = codec.decode(field, start)
    assert np.abs(small.decode(field, start) - whole).max() < 1e-5
    assert np.abs(streamed(small, [field], window, start_frame=start) - whole).max() < 1e-5
    assert max(feeds["x_latents"].shape[1] for feeds in engine.feeds) <= limit + 2 * small.margin_frames


def test_even_windows_and_margins_make_even_executes(bundle: Bundle) -> None:
    small, engine, _ = bounded(bundle, 8)
    small.margin_frames = 2
    streamed(small, [latents(30)], 64)
    assert [feeds["x_latents"].shape[1] for feeds in engine.feeds] == [10, 12, 12, 8]


@pytest.mark.parametrize("shape", [(4, SPEC.channels + 1), (0, SPEC.channels), (SPEC.channels,)])
def test_wrong_latents_are_refused(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"expected \[T, 8\]"):
        codec.decode(np.zeros(shape, np.float32))


@pytest.mark.parametrize("shape", [(640, 1), (0, 2), (640,)])
def test_wrong_audio_is_refused(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"expected \[N, 2\]"):
        codec.encode(np.zeros(shape, np.float32))


def test_a_bundle_without_encoder_or_codec_is_refused(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("urgency", Urgency)
def test_what_is_played_is_decoded_as_the_most_urgent_work_of_the_device(bundle: Bundle, urgency: Urgency) -> None:
    class Noted(GraphEngine):
        def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
            levels.append(level)
            return super().run(feeds, level)

    levels: list[Level] = []
    codec = Codec(bundle, Noted(tiny_codec_decode(SPEC)))
    codec.queue.submit(lambda: codec.decode(latents(6, 0)), urgency).result()
    assert levels == [Level.BACKGROUND if urgency is Urgency.BACKGROUND else Level.LIVE]


class Stepping(GraphEngine):
    """A decoder whose executes each wait for `go`; `shapes`: of their latents."""

    def __init__(self, refused: int = 99) -> None:
        super().__init__(tiny_codec_decode(SPEC))
        self.refused, self.shapes, self.begun, self.go = (
            refused,
            list[tuple[int, ...]](),
            threading.Semaphore(0),
            threading.Semaphore(0),
        )

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        self.shapes.append(next(array.shape for array in feeds.values() if array.ndim == 3))
        self.begun.release()
        assert self.go.acquire(timeout=TIMEOUT_S)
        if self.shapes[-1][0] >= self.refused:
            raise OutOfMemoryError("no memory for so many")
        return super().run(feeds, level)


def decoded_together(bundle: Bundle, engine: Stepping, lengths: list[int]) -> None:
    """Decode latents of these lengths: the first alone, the others while it runs."""
    codec = Codec(bundle, engine, queue=CodecQueue(len(lengths), is_apart=True), batch=lambda frames: 4)
    windows = [(latents(length, seed), 3 * seed) for seed, length in enumerate(lengths)]
    asked = [codec.queue.submit(partial(codec._decode, *windows[0]))]
    assert engine.begun.acquire(timeout=TIMEOUT_S)
    lane = codec._lanes[Level.BACKGROUND]
    for number, window in enumerate(windows[1:], 1):
        asked.append(codec.queue.submit(partial(codec._decode, *window)))
        while len(lane.waiting) < number:  # until its worker waits for its turn
            assert not asked[-1].done()
    engine.go.release(2 * len(lengths))
    found = [each.result(TIMEOUT_S) for each in asked]
    codec.queue.close()
    alone = Codec(bundle, GraphEngine(tiny_codec_decode(SPEC)))
    for pcm, window in zip(found, windows, strict=True):
        np.testing.assert_allclose(pcm, alone.decode(*window), atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "executes"),
    [([6, 6, 6, 6], [1, 3]), ([6] * 6, [1, 4, 1]), ([6, 6, 9, 6, 9], [1, 2, 2])],
)
def test_windows_that_wait_at_the_same_time_are_decoded_in_one_execute(
    bundle: Bundle, lengths: list[int], executes: list[int]
) -> None:
    engine = Stepping()
    decoded_together(bundle, engine, lengths)
    assert sorted(shape[0] for shape in engine.shapes) == sorted(executes)


def test_windows_that_fail_together_are_decoded_alone(bundle: Bundle) -> None:
    engine = Stepping(refused=3)
    decoded_together(bundle, engine, [6, 6, 6, 6])
    assert [shape[0] for shape in engine.shapes] == [1, 3, 1, 1, 1]


@pytest.mark.parametrize(
    ("target", "frames", "windows"),
    [("cpu", 4, 1), ("tensorrt", 4, 4), ("tensorrt", 70, 1), ("tensorrt-rtx", 16, 4), ("cuda", 4, 4), ("cuda", 200, 1)],
)
def test_an_engine_says_how_many_windows_it_takes(bundle: Bundle, target: Any, frames: int, windows: int) -> None:
    assert bundle.codec is not None
    spec = bundle.codec.decode
    name, ranges = spec.inputs.latents, codec_ranges(HOP, spec, MAX_BATCH)
    shapes = [" ".join(f"{each['B'][end]}x{each['T'][end]}x8" for end in range(3)) for each in ranges]
    manifest = Manifest(
        name="codec_decode", target=target, tool_versions={}, device={}, graph_sha256="", engine_file="", size_bytes=0,
        build={"profiles": [{name: shape} for shape in shapes]}, engine_sha256="", outputs=(), error={}, build_s=0.0,
        inputs=(TensorInfo(name=name, dtype="float32", shape=("batch", "frames", 8)),),
    )  # fmt: skip
    assert windows_per_execute(manifest, spec, frames) == windows
    old = manifest.model_copy(update={"build": {"profiles": [{name: shapes[0]}]}})
    assert target == "cuda" or windows_per_execute(old, spec, frames) == 1


def test_one_call_at_a_time_encodes(bundle: Bundle) -> None:
    class Noted(GraphEngine):
        def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
            held.append(codec._encode_lock.locked())
            return super().run(feeds, level)

    held: list[bool] = []
    codec = Codec(bundle, GraphEngine(tiny_codec_decode(SPEC)), Noted(tiny_codec_encode(SPEC)))
    codec.encode(np.zeros((HOP, SPEC.audio_channels), np.float32))
    assert held == [True]
