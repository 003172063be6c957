"""Windows to finished audio: which are decoded and when, what is measured of them, and where the audio ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_bundle, tiny_codec_decode
from helpers.graph_engine import GraphEngine
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.audio.codec_queue import CodecQueue
from runtime.audio.window_decoder import MAX_PROBES, MIN_PROBES, PROBE_S, AudioDecoder, AudioSplicer
from runtime.audio.windows import Window
from runtime.config.bundle import load_bundle
from runtime.config.codec import Pcm
from runtime.devices.device import Level

SPEC = TinySpec()
HOP, CHANNELS, WINDOW = SPEC.hop_samples, SPEC.audio_channels, 40
PROBE = -(-PROBE_S * SPEC.sample_rate_hz // HOP)
NONE = np.array([], np.int64)


class SharedEngine(GraphEngine):
    """One that the codec's workers may run at once, as those of the runtime."""

    def __init__(self) -> None:
        super().__init__(tiny_codec_decode(SPEC))
        self._turn = threading.Lock()

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        with self._turn:
            return super().run(feeds, level)


@pytest.fixture
def codec(tmp_path: Path) -> Codec:
    return Codec(load_bundle(tiny_bundle(tmp_path, SPEC)), SharedEngine(), queue=CodecQueue(2))


def latents(frames: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((frames, SPEC.channels)).astype(np.float32)


def executes(codec: Codec) -> int:
    engine = codec._decode_engine
    assert isinstance(engine, GraphEngine)
    return len(engine.feeds)


class Measured:
    """A finisher that notes what it gets and halves the audio."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, list[Pcm]]] = []
        self.starts: list[int] = []
        self.span_starts = [0]

    def measure(self, pieces: Iterable[tuple[int, Pcm]], position: int) -> None:
        self.pieces.append((position, [pcm for _, pcm in pieces]))

    def finish(self, pcm: Pcm, start_sample: int) -> Pcm:
        self.starts.append(start_sample)
        return pcm / 2


def decoder(
    total_samples: int | None = None,
    splicer: AudioSplicer | None = None,
    finisher: Any = None,
    kept: NDArray[np.int64] = NONE,
    *,
    is_streamed: bool = True,
) -> AudioDecoder:
    return AudioDecoder(HOP, total_samples, splicer, finisher, kept, is_streamed=is_streamed)


def windows(codec: Codec, parts: list[NDArray[np.float32]]) -> list[Window]:
    cutter = codec.window_cutter(WINDOW, total_frames=sum(map(len, parts)))
    return [window for part in parts for window in cutter.cut(part)]


def test_windows_are_the_whole_audio_up_to_its_end_and_each_is_decoded_once(codec: Codec) -> None:
    values = latents(200)
    whole, total = codec.decode(values), 160 * HOP + 7
    one, before = decoder(total), executes(codec)
    made = windows(codec, [values[:90], values[90:]])
    found = [one.decode(window, codec) for window in made]
    np.testing.assert_allclose(np.concatenate(found), whole[:total], atol=1e-5)
    assert (len(found[-1]), one.num_samples, one._decoded) == (0, total, {})
    assert executes(codec) - before == len(made) == 6


def test_the_first_window_is_decoded_alone_and_then_others_with_the_next(codec: Codec) -> None:
    one, started = decoder(), list[int]()
    codec.start_if_free = lambda window: started.append(window.index)  # type: ignore[method-assign, func-returns-value]
    for window in windows(codec, [latents(5 * WINDOW)]):
        one.decode(window, codec)
        started.append(-window.index)
    assert list(dict.fromkeys(started)) == [0, 2, -1, 3, -2, 4, -3, -4]


def test_a_worker_that_becomes_free_decodes_the_next_window_before_the_awaited_one_is_there(codec: Codec) -> None:
    """Such as the last window of four, where the third one takes long."""
    one, made = decoder(is_streamed=False), windows(codec, [latents(4 * WINDOW)])
    awaited, ahead, started = Future[Pcm](), Future[Pcm](), list[int]()
    pcm = np.zeros((len(made[0].values) * HOP, codec.channels), np.float32)

    def start_if_free(window: Window) -> Future[Pcm] | None:
        if started and not ahead.done():
            return None
        started.append(window.index)
        if len(started) == 2:
            awaited.set_result(pcm)
        return ahead

    codec.start = lambda window: awaited  # type: ignore[method-assign]
    codec.start_if_free = start_if_free  # type: ignore[method-assign]
    threading.Timer(0.01, ahead.set_result, [pcm]).start()
    one.decode(made[0], codec)
    assert started == [1, 2]


def test_a_worker_decodes_its_own_window_itself(codec: Codec) -> None:
    """While it waited for another worker to do that, nothing else would be decoded. Also where it is measured."""
    started = list[int]()
    codec.start_if_free = lambda window: started.append(window.index)  # type: ignore[method-assign, func-returns-value]
    one, made = decoder(finisher=Measured(), is_streamed=False), windows(codec, [latents(4 * WINDOW)])
    before, own = executes(codec), list[int]()
    start = codec.start
    codec.start = lambda window: (own.append(window.index), start(window))[1]  # type: ignore[method-assign]
    codec.queue.submit(lambda: one.decode(made[0], codec)).result()
    assert own[0] == 0
    assert started[0] != 0
    assert executes(codec) - before == len(own)


def test_windows_that_are_decoded_ahead_are_not_decoded_again(codec: Codec) -> None:
    one, made = decoder(), windows(codec, [latents(5 * WINDOW)])
    before = executes(codec)
    codec.start_if_free = codec.start  # type: ignore[method-assign]
    counts = []
    for window in made:
        one.decode(window, codec)
        counts.append(len(one._decoded))
    assert counts == [0, 2, 2, 1, 0]  # As many as the codec has workers.
    assert executes(codec) - before == len(made)


@pytest.mark.parametrize(("frames", "number"), [(2 * WINDOW, MIN_PROBES), (20 * WINDOW, 6), (40 * WINDOW, MAX_PROBES)])
def test_pieces_of_each_part_are_measured_before_its_first_window_is_finished(
    frames: int, number: int, codec: Codec
) -> None:
    finisher, values = Measured(), latents(2 * frames)
    whole, one = codec.decode(values), decoder(finisher=finisher)
    made = windows(codec, [values[:frames], values[frames:]])
    for window in made:
        pcm = one.decode(window, codec)
        begin = window.first_frame * HOP
        np.testing.assert_allclose(pcm, whole[begin : begin + len(pcm)] / 2, atol=1e-5)
    firsts = [window for window in made if window.following is not None]
    assert [position for position, _ in finisher.pieces] == [window.first_frame * HOP for window in firsts]
    assert finisher.starts == [window.start_frame * HOP for window in made]
    for (position, pieces), end in zip(finisher.pieces, (finisher.pieces[1][0], len(whole)), strict=True):
        assert len(pieces) == number
        frames_of = whole[position:end].reshape(-1, HOP, CHANNELS)
        for piece in pieces:
            frame = piece.reshape(-1, HOP, CHANNELS)
            (start,) = np.flatnonzero(np.isclose(frames_of, frame[0], atol=1e-5).all((1, 2)))
            np.testing.assert_allclose(frames_of[start : start + int(PROBE)], frame, atol=1e-5)
        assert len({piece.tobytes() for piece in pieces}) == number


def test_what_is_kept_of_a_source_is_neither_measured_nor_decoded(codec: Codec) -> None:
    values = latents(5 * WINDOW)
    whole = codec.decode(values)
    kept = np.zeros(len(values), np.bool_)
    kept[: 3 * WINDOW] = True
    source = np.full((len(values) * HOP, CHANNELS), 0.25, np.float32)
    finisher, before = Measured(), executes(codec)
    one = decoder(None, AudioSplicer(kept, HOP, 1, iter([source])), finisher, np.flatnonzero(kept))
    found = np.concatenate([one.decode(window, codec) for window in windows(codec, [values])])
    assert (found[: 3 * WINDOW * HOP - 1] == 0.25).all()
    np.testing.assert_allclose(found[3 * WINDOW * HOP :], whole[3 * WINDOW * HOP :] / 2, atol=1e-5)
    ((_, pieces),) = finisher.pieces
    generated = whole[3 * WINDOW * HOP :].reshape(-1, HOP * CHANNELS)
    for piece in pieces:
        frame = piece.reshape(-1, HOP * CHANNELS)[0]
        assert np.isclose(generated, frame, atol=1e-5).all(1).any()
    assert executes(codec) - before <= 3


def decoded_lengths(engine: GraphEngine) -> list[int]:
    return [each.shape[1] for feeds in engine.feeds for each in feeds.values() if each.ndim == 3]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize("kept_windows", [0, 2])
def test_neighbours_are_decoded_as_one_but_the_first_audio_of_a_stream_waits_for_none(
    is_streamed: bool, is_finished: bool, kept_windows: int, tmp_path: Path
) -> None:
    bundle, number = load_bundle(tiny_bundle(tmp_path, SPEC)), 24
    engines = SharedEngine(), SharedEngine()
    alone = Codec(bundle, engines[0])
    joining = Codec(bundle, engines[1], queue=CodecQueue(2), cost_ms=lambda frames: 1 + 0.1 * frames)
    values, kept = latents(number * WINDOW), np.arange(kept_windows * WINDOW) + 5 * WINDOW
    is_kept = np.isin(np.arange(len(values)), kept)
    source = np.full((len(values) * HOP, CHANNELS), 0.25, np.float32)
    audio = []
    for codec in (alone, joining):
        splicer = AudioSplicer(is_kept, HOP, 1, iter([source])) if kept_windows else None
        one = decoder(None, splicer, Measured() if is_finished else None, kept, is_streamed=is_streamed)
        made = windows(codec, [values[: len(values) // 2], values[len(values) // 2 :]])
        audio.append(np.concatenate([one.decode(window, codec) for window in made]))
        codec.queue.close()
    np.testing.assert_allclose(audio[1], audio[0], atol=1e-6)
    lengths, margin = decoded_lengths(engines[1]), joining.margin_frames
    assert sum(lengths) < sum(decoded_lengths(engines[0]))
    assert max(lengths) > 2 * WINDOW
    assert (WINDOW + margin in lengths) == is_streamed
