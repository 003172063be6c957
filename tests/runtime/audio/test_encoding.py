"""Encoders, checked with two independent decoders: libsndfile and FFmpeg."""

import io
import shutil
import struct
import subprocess
import wave
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from helpers.tones import LENGTH, RATE_HZ, tone
from numpy.typing import NDArray

from runtime.audio.encoding import AudioWriter, to_s16, write_audio
from runtime.audio.formats import AUDIO_FORMATS, FORMATS
from runtime.base.errors import NonFiniteError, RequestError


def encode(format: str, pcm: NDArray[np.float32], sizes: tuple[int, ...] = (), rate_hz: int = RATE_HZ) -> bytes:
    """Write `pcm` in chunks of the given sizes, the rest in one."""
    writer = AudioWriter(format, rate_hz, pcm.shape[1])
    chunks = np.split(pcm, np.cumsum(sizes)) if sizes else [pcm]
    return b"".join([writer.write(chunk) for chunk in chunks] + [writer.close()])


def ffmpeg_frames(data: bytes) -> NDArray[np.generic]:
    """Decoded samples `[N, channels]` in the file's own sample type."""
    with av.open(io.BytesIO(data)) as container:
        channels = container.streams.audio[0].codec_context.channels
        frames = [
            f.to_ndarray().T if f.format.is_planar else f.to_ndarray().reshape(-1, channels)
            for f in container.decode(audio=0)
        ]
    return np.concatenate(frames)


def test_s16_clips_at_full_scale() -> None:
    pcm = np.array([[-9.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.00001, 1e30]], np.float32)
    assert to_s16(pcm).tolist() == [[-32768, -32768, -16384, 0, 16384, 32767, 32767, 32767]]


def test_s16_that_is_read_and_written_again_stays_the_same() -> None:
    samples = np.arange(-32768, 32768, dtype=np.int16).reshape(-1, 2)
    assert np.array_equal(to_s16(samples.astype(np.float32) / 32768), samples)


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(format: str, value: float) -> None:
    with pytest.raises(NonFiniteError, match="not finite"):
        AudioWriter(format, RATE_HZ, 2).write(np.full((960, 2), value, np.float32))


@pytest.mark.parametrize("format", ["wav", "flac"])
@pytest.mark.parametrize("channels", [1, 2])
def test_lossless_formats_are_bit_exact_for_both_decoders(format: str, channels: int) -> None:
    pcm = tone(channels=channels)
    assert np.array_equal(ffmpeg_frames(encode(format, pcm, (12_000, 1, 5_000))), to_s16(pcm))
    writer = AudioWriter(format, RATE_HZ, channels, total_samples=LENGTH)
    decoded, _ = soundfile.read(io.BytesIO(writer.write(pcm) + writer.close()), dtype="int16", always_2d=True)
    assert np.array_equal(decoded, to_s16(pcm))


def test_pcm_is_little_endian_without_a_header() -> None:
    assert np.array_equal(np.frombuffer(encode("pcm", tone()), "<i2").reshape(-1, 2), to_s16(tone()))


@pytest.mark.parametrize("channels", [1, 2])
def test_opus_has_the_same_length_and_samples_for_both_decoders(channels: int) -> None:
    pcm = tone(channels=channels)
    data = encode("ogg", pcm, (12_000, 1, 5_000))
    by_libsndfile, rate_hz = soundfile.read(io.BytesIO(data), always_2d=True)
    by_ffmpeg = ffmpeg_frames(data)
    assert rate_hz == RATE_HZ
    assert by_libsndfile.shape == by_ffmpeg.shape == pcm.shape
    assert np.abs(by_libsndfile - by_ffmpeg).max() < 1e-5
    assert np.sqrt(np.mean((by_ffmpeg - pcm) ** 2) / np.mean(pcm**2)) < 0.03


@pytest.mark.parametrize("rate_hz", [8_000, 44_100])
def test_opus_resamples_other_rates(rate_hz: int) -> None:
    pcm = tone(rate_hz, rate_hz)
    decoded, _ = soundfile.read(io.BytesIO(encode("ogg", pcm, (1_000, 7, 3_000), rate_hz)))
    assert abs(len(decoded) - RATE_HZ) <= 1
    expected = tone(RATE_HZ)
    inner = slice(2_000, RATE_HZ - 2_000)
    assert np.abs(decoded[inner] - expected[inner]).max() < 0.05


@pytest.mark.parametrize(("rate_hz", "file_rate_hz"), [(8_000, 8_000), (44_100, 44_100), (96_000, 48_000)])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_has_the_tone_after_the_encoders_delay(rate_hz: int, file_rate_hz: int, channels: int) -> None:
    decoded, rate = soundfile.read(io.BytesIO(encode("mp3", tone(rate_hz, rate_hz, channels), (1_000, 7), rate_hz)))
    assert rate == file_rate_hz
    mono = decoded.reshape(len(decoded), channels)[:, 0]
    assert file_rate_hz <= len(mono) <= file_rate_hz + 4_000
    spectrum = np.abs(np.fft.rfft(mono[2_000:file_rate_hz], 8 * file_rate_hz))
    assert np.argmax(spectrum) / 8 == pytest.approx(440, abs=1)


def test_mp3_is_refused_where_there_is_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", {"flac"})
    with pytest.raises(RequestError, match="no encoder for mp3"):
        AudioWriter("mp3", RATE_HZ, 2)


@pytest.mark.parametrize("format", ["wav", "flac"])
@pytest.mark.parametrize("file_rate_hz", [8_000, 22_050, 96_000])
def test_a_file_at_another_rate_has_the_tone_and_its_exact_length(format: str, file_rate_hz: int) -> None:
    writer = AudioWriter(format, RATE_HZ, 2, total_samples=LENGTH, file_rate_hz=file_rate_hz)
    chunks = np.split(tone(), (1, 5_000, 5_001))
    data = b"".join([writer.write(chunk) for chunk in chunks] + [writer.close()])
    assert data.startswith(writer.header())
    decoded, rate_hz = soundfile.read(io.BytesIO(data))
    assert (rate_hz, len(decoded)) == (file_rate_hz, -(-LENGTH * file_rate_hz // RATE_HZ))
    inner = slice(file_rate_hz // 50, -file_rate_hz // 50)
    assert np.abs(decoded[inner] - tone(len(decoded), file_rate_hz)[inner]).max() < 0.01


@pytest.mark.parametrize("format", ["ogg", "mp3"])
@pytest.mark.parametrize("kbps", [32, 128, 192])
def test_a_bit_rate_is_that_of_the_file(format: str, kbps: int) -> None:
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, (4 * RATE_HZ, 2)).astype(np.float32)
    writer = AudioWriter(format, RATE_HZ, 2, bit_rate_kbps=kbps)
    num_bytes = len(writer.write(noise) + writer.close())
    pages_kbps = 11 if format == "ogg" else 0
    assert 0.95 * kbps < num_bytes * 8 / 4_000 < 1.07 * kbps + pages_kbps


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize("rate_hz", [RATE_HZ, 44_100])
def test_bytes_do_not_depend_on_chunk_boundaries(format: str, rate_hz: int) -> None:
    pcm = tone(rate_hz=rate_hz)
    whole = encode(format, pcm, rate_hz=rate_hz)
    assert encode(format, pcm, (1, 959, 960, 961, 1, 17_000), rate_hz) == whole
    assert encode(format, pcm, (LENGTH - 1,), rate_hz) == whole


@pytest.mark.parametrize("format", AUDIO_FORMATS)
def test_every_write_returns_bytes_that_can_be_decoded_before_the_end(format: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2)
    early = writer.write(tone(24_000))
    assert len(writer.write(tone(24_000))) > 1_000
    assert format == "pcm" or len(ffmpeg_frames(early)) >= 24_000 - 9_216


def test_a_streamed_wav_and_one_beyond_4_gib_have_unknown_sizes() -> None:
    for data in (encode("wav", tone()), AudioWriter("wav", RATE_HZ, 2, total_samples=2**31).write(tone(1))):
        assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3"])
@pytest.mark.parametrize("metadata", ["", "odd", "even"])
def test_ffmpeg_reads_a_stream_without_complaint(format: str, metadata: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2, total_samples=LENGTH, metadata=metadata)
    data = writer.write(tone()) + writer.close()
    command = ["ffmpeg", "-v", "warning", "-i", "-", "-f", "s16le", "-"]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    # ffmpeg says this of every wav whose header has no channel mask; Python's wave reads no other before 3.12.
    complaints = [line for line in done.stderr.splitlines() if not line.startswith(b"Guessed Channel Layout")]
    assert complaints == []
    assert len(done.stdout) >= 4 * LENGTH


@pytest.mark.parametrize("metadata", ["", "odd", "even"])
def test_a_wav_header_is_what_the_standard_library_reads(metadata: str) -> None:
    writer = AudioWriter("wav", RATE_HZ, 2, total_samples=LENGTH, metadata=metadata)
    data = writer.write(tone()) + writer.close()
    assert struct.unpack("<I", data[4:8])[0] + 8 == len(data)
    with wave.open(io.BytesIO(data)) as file:
        assert np.array_equal(np.frombuffer(file.readframes(LENGTH), "<i2").reshape(-1, 2), to_s16(tone()))


@pytest.mark.parametrize("format", ["wav", "flac", "ogg"])
def test_a_seekable_file_gets_its_sizes_at_the_end(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{FORMATS[format].suffix}"
    with path.open("wb") as file:
        write_audio(file, AudioWriter(format, RATE_HZ, 2), np.array_split(tone(), 5))
    decoded, _ = soundfile.read(path)
    assert soundfile.info(path).frames == len(decoded) == LENGTH
    if format == "wav":
        riff, data = struct.unpack("<I", path.read_bytes()[4:8]), struct.unpack("<I", path.read_bytes()[40:44])
        assert (riff[0] + 8, data[0] + 44) == (path.stat().st_size,) * 2


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_a_file_without_samples_can_be_opened(format: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2)
    data = writer.write(np.empty((0, 2), np.float32)) + writer.close()
    with av.open(io.BytesIO(data)) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == 0
    assert writer.close() == b""


@pytest.mark.parametrize(
    ("format", "channels", "options", "message", "field"),
    [
        ("mp9", 2, {}, "wav, pcm, flac, ogg", "format"),
        ("mp3", 6, {}, "1 or 2 channels", "format"),
        ("ogg", 2, {"file_rate_hz": 44_100}, "ogg has 48000, got 44100", "sample_rate_hz"),
        ("flac", 2, {"bit_rate_kbps": 128}, "flac has no bit rate", "bit_rate_kbps"),
    ],
)
def test_what_a_format_does_not_have_is_refused(
    format: str, channels: int, options: dict[str, int], message: str, field: str
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        AudioWriter(format, RATE_HZ, channels, **options)
    assert error.value.field == field


def test_wrong_shapes_and_writes_after_close_are_refused() -> None:
    writer = AudioWriter("wav", RATE_HZ, 2)
    with pytest.raises(ValueError, match=r"\[N, 2\]"):
        writer.write(np.zeros((2, 960), np.float32).reshape(480, 4))
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(tone(10))
