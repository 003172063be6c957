"""Audio files and PCM of any rate to PCM at the codec's rate and channels, in chunks as they are decoded."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import av
import numpy as np
from av.audio.resampler import AudioResampler

from runtime.audio.formats import LAYOUTS, Pcm
from runtime.errors import FileError, RequestError

SOURCE_RATES_HZ = (4_000, 768_000)
# Of one frame: the memory for it is taken before it is decoded. Formats in use have up to 65536.
MAX_FRAME_SAMPLES = 2**20
SOURCE_FORMATS = "aac,aiff,au,caf,flac,matroska,webm,mov,mp4,m4a,mp3,ogg,w64,wav"


def read_audio(source: Path | bytes, sample_rate_hz: int, channels: int, max_seconds: float) -> Pcm:
    """All of audio_chunks() in one array."""
    return np.concatenate(list(audio_chunks(source, sample_rate_hz, channels, max_seconds)))


def audio_chunks(
    source: Path | bytes, sample_rate_hz: int, channels: int, max_seconds: float = math.inf
) -> Iterator[Pcm]:
    """An audio file (SOURCE_FORMATS) as chunks of PCM float32 `[n, channels]` at `sample_rate_hz`, decoded on demand.

    Mono is copied to every channel; up to 8 channels are mixed down. Stops decoding after `max_seconds`. Raises
    RequestError: not audio, more channels, empty, too long, samples that are not finite.
    """
    return _checked(_decoded(source, sample_rate_hz, channels), sample_rate_hz, max_seconds)


def within(timeout_s: float, chunks: Iterable[Pcm], clock: Callable[[], float] = time.monotonic) -> Iterator[Pcm]:
    """`chunks`, as long as they and what is done with them take no longer than `timeout_s`. Raises RequestError."""
    started_s = clock()
    for chunk in chunks:
        if clock() - started_s > timeout_s:
            raise RequestError(f"the audio was not read within {timeout_s:g} s", field="source", fix="shorten it")
        yield chunk


def read_tags(path: Path) -> dict[str, str]:
    """The tags of an audio file by their names in capitals. Raises FileError."""
    try:
        with av.open(path, options={"format_whitelist": SOURCE_FORMATS}, metadata_errors="replace") as container:
            # Ogg has its comments in the stream.
            tags = {**(container.streams.audio[0].metadata if container.streams.audio else {}), **container.metadata}
    except (av.error.FFmpegError, OSError) as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    return {name.upper(): text for name, text in tags.items()}


def convert_audio(pcm: Pcm, from_rate_hz: int, sample_rate_hz: int, channels: int, max_seconds: float) -> Pcm:
    """Float PCM `[N, any channels]` at `from_rate_hz` as read_audio() gives it. Raises RequestError as it does."""
    if pcm.dtype.kind != "f" or pcm.ndim != 2 or not 1 <= pcm.shape[1] <= len(LAYOUTS):
        expected = f"float samples [N, channels] with 1 to {len(LAYOUTS)} channels"
        raise RequestError(f"the audio is {pcm.dtype} {list(pcm.shape)}, expected {expected}", field="source")
    packed = np.ascontiguousarray(pcm, np.float32).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=LAYOUTS[pcm.shape[1] - 1])
    frame.sample_rate = from_rate_hz
    decoded = _resampled([frame] if len(pcm) else [], sample_rate_hz, channels)
    return np.concatenate(list(_checked(decoded, sample_rate_hz, max_seconds)))


def _checked(decoded: Iterable[Pcm], sample_rate_hz: int, max_seconds: float) -> Iterator[Pcm]:
    samples, limit = 0, max_seconds * sample_rate_hz + 0.5
    for chunk in decoded:
        samples += len(chunk)
        if samples > limit:
            raise RequestError(f"the audio is longer than {max_seconds:g} seconds", field="source", fix="shorten it")
        if not np.isfinite(chunk).all():
            raise RequestError("the audio has samples that are not finite", field="source")
        yield chunk
    if samples == 0:
        raise RequestError("the audio is empty", field="source")


def _decoded(source: Path | bytes, sample_rate_hz: int, channels: int) -> Iterator[Pcm]:
    """Resampled chunks of a file. Only demuxers that do not open other files, as playlists would, are allowed."""
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file,
            av.open(file, "r", options={"format_whitelist": SOURCE_FORMATS}, metadata_errors="replace") as container,
        ):
            if not container.streams.audio:
                raise RequestError("the file has no audio stream", field="source")
            decoder = container.streams.audio[0].codec_context
            if decoder is None:
                raise RequestError("not audio that can be decoded (unknown codec)", field="source")
            _check_channels(decoder.layout.nb_channels)
            decoder.options = {"max_samples": str(MAX_FRAME_SAMPLES)}
            yield from _resampled(container.decode(audio=0), sample_rate_hz, channels)
    except av.error.FFmpegError as error:
        raise RequestError(
            f"not audio that can be decoded ({error.strerror})", field="source", fix="give wav, flac, ogg or mp3"
        ) from error
    except OSError as error:
        raise RequestError(f"{source!s:.200} cannot be read: {error.strerror}", field="source") from error


def _check_channels(num: int) -> None:
    if num > len(LAYOUTS):
        fix = f"mix it down to {len(LAYOUTS)} channels or fewer"
        raise RequestError(f"the audio has {num} channels, expected 1 to {len(LAYOUTS)}", field="source", fix=fix)


def _resampled(frames: Iterable[av.AudioFrame], sample_rate_hz: int, channels: int) -> Iterator[Pcm]:
    resampler: AudioResampler | None = None
    for frame in frames:
        if resampler is None:
            low, high = SOURCE_RATES_HZ
            if not low <= frame.sample_rate <= high:
                raise RequestError(f"{frame.sample_rate} samples per second, expected {low} to {high}", field="source")
            _check_channels(frame.layout.nb_channels)  # some decoders know them now
            wanted = 1 if frame.layout.nb_channels == 1 else max(channels, 2)
            resampler = AudioResampler("flt", LAYOUTS[wanted - 1], sample_rate_hz)
        frame.pts = None
        yield from _as_pcm(_resample(resampler, frame), channels)
    if resampler is not None:
        yield from _as_pcm(_resample(resampler, None), channels)


def _resample(resampler: AudioResampler, frame: av.AudioFrame | None) -> list[av.AudioFrame]:
    try:
        return list(resampler.resample(frame))
    except ValueError as error:
        raise RequestError("its sample rate or channels change", field="source", fix="convert it first") from error


def _as_pcm(frames: Iterable[av.AudioFrame], channels: int) -> Iterator[Pcm]:
    for frame in frames:
        samples = frame.to_ndarray().reshape(frame.samples, -1)
        if samples.shape[1] == 1:
            yield np.repeat(samples, channels, axis=1)
        else:
            yield samples if channels > 1 else samples.mean(axis=1, keepdims=True)
