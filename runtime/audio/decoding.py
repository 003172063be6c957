"""Audio files and PCM of any rate to PCM at the codec's rate and channels, in chunks as they are decoded."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, cast

import av
import numpy as np
from av.audio.resampler import AudioResampler
from av.container import InputContainer

from runtime.audio.containers import (
    HEAD_BYTES,
    Overlaid,
    WavFormat,
    corrected,
    is_cut_mp4,
    num_mp3_frames,
    ogg_links,
    wav_format,
    wav_start,
    whole_share,
)
from runtime.audio.formats import LAYOUTS
from runtime.base.errors import FileError, NotAudioError, RequestError, native_call
from runtime.base.files import open_file, tell_lost_audio
from runtime.config.codec import Pcm

SOURCE_RATES_HZ = (4_000, 768_000)
# Of one frame: the memory for it is taken before it is decoded. Formats in use have up to 65536.
MAX_FRAME_SAMPLES = 2**20
# Formats whose length FFmpeg estimates; that of others is in the file.
ESTIMATED = ("mp3", "aac")
LENGTH_TOLERANCE_S = 0.05
SOURCE_FORMATS = "aac,aiff,au,caf,flac,matroska,webm,mov,mp4,m4a,mp3,ogg,w64,wav"


@dataclass
class _Tally:
    """What became of a file's packets, in packets and seconds. length_s: what the file tells, 0 where it does not."""

    good: int = 0
    bad: int = 0
    good_s: float = 0.0
    bad_s: float = 0.0
    length_s: float = 0.0
    error: av.error.FFmpegError | None = None

    def lose(self, error: av.error.FFmpegError, seconds: float = 0.0) -> None:
        """Count a packet that cannot be decoded."""
        self.bad += 1
        self.bad_s += seconds
        self.error = self.error or error

    def check(self) -> None:
        """Tell what is left out. Raises RequestError where that is more than half, of the packets or of the length."""
        if self.error is not None and self.bad > self.good:
            kind, share = (
                (RequestError, f"{self.bad} of {self.bad + self.good} packets are ")
                if self.good
                else (NotAudioError, "")
            )
            what = f"{share}not audio that can be decoded ({self.error.strerror})"
            raise kind(what, field="source", fix="give wav, flac, ogg or mp3") from self.error
        if 2 * self.good_s < self.length_s - LENGTH_TOLERANCE_S:
            what = f"{self.good_s:.2f} of the file's {self.length_s:.2f} s can be decoded"
            raise RequestError(what, field="source", fix="give the whole file")
        lost_s = max(self.bad_s, self.length_s - self.good_s)
        if self.bad or lost_s > LENGTH_TOLERANCE_S:
            tell_lost_audio(max(1, round(1000 * lost_s)))


def read_audio(source: Path | bytes, sample_rate_hz: int, channels: int, max_seconds: float) -> Pcm:
    """All of audio_chunks() in one array."""
    return np.concatenate(list(audio_chunks(source, sample_rate_hz, channels, max_seconds)))


def audio_chunks(
    source: Path | bytes, sample_rate_hz: int, channels: int, max_seconds: float = math.inf
) -> Iterator[Pcm]:
    """An audio file (SOURCE_FORMATS) as chunks of PCM float32 `[n, channels]` at `sample_rate_hz`, decoded on demand.

    Mono is copied to every channel; up to 8 channels are mixed down. What cannot be decoded is left out and told to
    losses(). Stops decoding after `max_seconds`. Raises RequestError: not audio, more than half of it cannot be decoded
    or is not there; more channels, empty, too long, samples that are not finite.
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
        with open_file(path) as file, _opened(file) as container:
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
    with native_call("the audio cannot be read", field="source", fix="give wav, flac, ogg or mp3"):
        for chunk in decoded:
            samples += len(chunk)
            if samples > limit:
                raise RequestError(
                    f"the audio is longer than {max_seconds:g} seconds", field="source", fix="shorten it"
                )
            if not np.isfinite(chunk).all():
                raise RequestError("the audio has samples that are not finite", field="source")
            yield chunk
        if samples == 0:
            raise RequestError("the audio is empty", field="source")


def _decoded(source: Path | bytes, sample_rate_hz: int, channels: int) -> Iterator[Pcm]:
    """Resampled chunks of a file."""
    tally = _Tally()
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as file:
            for link in ogg_links(file):
                yield from _resampled(_frames(link, tally), sample_rate_hz, channels)
    except OSError as error:
        raise RequestError(f"{source!s:.200} cannot be read: {error.strerror}", field="source") from error
    tally.check()


def _frames(file: BinaryIO, tally: _Tally) -> Iterator[av.AudioFrame]:
    begin = file.read(HEAD_BYTES)
    start = wav_start(begin)
    head = begin[start:]
    written, share = wav_format(head), whole_share(head, file.seek(0, io.SEEK_END) - start)
    other = corrected(head)
    if start or other != head:
        file = cast(BinaryIO, Overlaid(file, other, start))
    file.seek(0)
    before_s = tally.good_s
    try:
        with _opened(file) as container:
            if not container.streams.audio:
                raise RequestError("the file has no audio stream", field="source")
            stream = container.streams.audio[0]
            decoder = _decoder(stream, written, is_big_endian=head.startswith(b"RIFX"))
            _check_channels(decoder.layout.nb_channels)
            if share == 1.0 and decoder is stream.codec_context:  # else, it is counted in other samples
                tally.length_s += _length_s(container, stream, head)
            for packet in container.demux(stream):
                yield from _frames_of(packet, decoder, tally)
    except av.error.FFmpegError as error:
        if is_cut_mp4(file):
            what = "the file was cut: its index (moov), which MP4 has at the end, is missing"
            raise NotAudioError(what, field="source", fix="give the whole file") from error
        tally.lose(error)
    if share > 1.0:
        tally.length_s += share * (tally.good_s - before_s)


def _opened(file: BinaryIO) -> InputContainer:
    """Only demuxers that do not open other files, as playlists would, are allowed."""
    return av.open(file, "r", options={"format_whitelist": SOURCE_FORMATS}, metadata_errors="replace")


def _decoder(stream: av.AudioStream, written: WavFormat | None, *, is_big_endian: bool) -> av.AudioCodecContext:
    """FFmpeg's choice; of samples in WAV that of its header. Raises RequestError."""
    decoder = stream.codec_context
    name = "" if decoder is None else decoder.name
    is_pcm = name == "" or name.startswith("pcm_")
    if written is not None and is_pcm and name != written.decoder and written.channels <= len(LAYOUTS):
        decoder = av.AudioCodecContext.create(written.decoder, "r")
        decoder.sample_rate, decoder.layout = written.sample_rate_hz, LAYOUTS[written.channels - 1]
    elif is_big_endian and name.startswith("pcm_") and name.endswith("le"):  # it would be noise
        fix = "convert it to WAV in the usual byte order (RIFF)"
        raise RequestError("samples of RIFX that are written in an unknown way", field="source", fix=fix)
    if decoder is None:
        raise RequestError("not audio that can be decoded (unknown codec)", field="source")
    decoder.options = {"max_samples": str(MAX_FRAME_SAMPLES)}
    return decoder


def _length_s(container: InputContainer, stream: av.AudioStream, head: bytes) -> float:
    """The length that the file tells; 0 where it is estimated."""
    rate_hz = stream.codec_context.sample_rate
    if container.format.name in ESTIMATED:
        return float(num_mp3_frames(head) * (1152 if rate_hz >= 32_000 else 576) / max(rate_hz, 1))
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base if len(container.streams) == 1 else 0.0


def _frames_of(packet: av.Packet, decoder: av.AudioCodecContext, tally: _Tally) -> Iterator[av.AudioFrame]:
    try:
        frames = decoder.decode(packet)
    except av.error.FFmpegError as error:
        tally.lose(error, float((packet.duration or 0) * (packet.time_base or 0)))
        return
    tally.good += packet.size > 0  # the last one only ends the stream
    tally.good_s += sum(frame.samples / frame.sample_rate for frame in frames)
    yield from frames


def _check_channels(num: int) -> None:
    if num > len(LAYOUTS):
        fix = f"mix it down to {len(LAYOUTS)} channels or fewer"
        raise RequestError(f"the audio has {num} channels, expected 1 to {len(LAYOUTS)}", field="source", fix=fix)


def _resampled(frames: Iterable[av.AudioFrame], sample_rate_hz: int, channels: int) -> Iterator[Pcm]:
    """Each run of frames of one kind is resampled by itself: files that were joined may differ in rate and channels."""
    for _, run in groupby(frames, lambda frame: (frame.sample_rate, frame.layout.name, frame.format.name)):
        yield from _resampled_run(run, sample_rate_hz, channels)


def _resampled_run(frames: Iterable[av.AudioFrame], sample_rate_hz: int, channels: int) -> Iterator[Pcm]:
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
        yield from _as_pcm(resampler.resample(frame), channels)
    if resampler is not None:
        yield from _as_pcm(resampler.resample(None), channels)


def _as_pcm(frames: Iterable[av.AudioFrame], channels: int) -> Iterator[Pcm]:
    for frame in frames:
        samples = frame.to_ndarray().reshape(frame.samples, -1)
        if samples.shape[1] == 1:
            yield np.repeat(samples, channels, axis=1)
        else:
            yield samples if channels > 1 else samples.mean(axis=1, keepdims=True)
