"""Writers against two independent readers (libsndfile, FFmpeg); sources against what an uploader can get wrong."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from runtime.audio.decoding import read_audio
from runtime.audio.encoding import AudioWriter, to_s16, write_audio
from runtime.audio.formats import AUDIO_FORMATS, FORMATS, latents_bytes, read_latents
from runtime.errors import NonFiniteError, RequestError

RATE_HZ = 48_000
LENGTH = 30_777


def tone(samples: int = LENGTH, rate_hz: int = RATE_HZ, channels: int = 2) -> NDArray[np.float32]:
    """A different sine in each channel."""
    t = np.arange(samples) / rate_hz
    return np.stack([0.5 * np.sin(2 * np.pi * (440 + 110 * c) * t) for c in range(channels)], axis=1).astype(np.float32)


def encode(format: str, pcm: NDArray[np.float32], sizes: tuple[int, ...] = (), rate_hz: int = RATE_HZ) -> bytes:
    """Write `pcm` in chunks of the given sizes, the rest in one."""
    writer = AudioWriter(format, rate_hz, pcm.shape[1])
    chunks = np.split(pcm, np.cumsum(sizes)) if sizes else [pcm]
    return b"".join([writer.write(chunk) for chunk in chunks] + [writer.close()])


def upload(pcm: NDArray[np.generic], rate_hz: int = RATE_HZ, format: str = "WAV", subtype: str | None = None) -> bytes:
    """A file as an uploader's program writes it."""
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, format=format, subtype=subtype)
    return file.getvalue()


def ffmpeg_frames(data: bytes) -> NDArray[np.generic]:
    """Decoded samples `[N, channels]` in the file's own sample type."""
    with av.open(io.BytesIO(data)) as container:
        channels = container.streams.audio[0].codec_context.channels
        frames = [
            f.to_ndarray().T if f.format.is_planar else f.to_ndarray().reshape(-1, channels)
            for f in container.decode(audio=0)
        ]
    return np.concatenate(frames)


def test_s16_clips_and_never_wraps() -> None:
    pcm = np.array([[-9.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.00001, 1e30]], np.float32)
    assert to_s16(pcm).tolist() == [[-32767, -32767, -16384, 0, 16384, 32767, 32767, 32767]]


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_writers_refuse_samples_that_are_not_finite(format: str, value: float) -> None:
    with pytest.raises(NonFiniteError, match="not finite"):
        AudioWriter(format, RATE_HZ, 2).write(np.full((960, 2), value, np.float32))


@pytest.mark.parametrize("format", ["wav", "flac"])
@pytest.mark.parametrize("channels", [1, 2])
def test_lossless_formats_are_bit_exact_for_both_readers(format: str, channels: int) -> None:
    pcm = tone(channels=channels)
    assert np.array_equal(ffmpeg_frames(encode(format, pcm, (12_000, 1, 5_000))), to_s16(pcm))
    writer = AudioWriter(format, RATE_HZ, channels, total_samples=LENGTH)
    heard, _ = soundfile.read(io.BytesIO(writer.write(pcm) + writer.close()), dtype="int16", always_2d=True)
    assert np.array_equal(heard, to_s16(pcm))


def test_pcm_is_little_endian_without_a_header() -> None:
    assert np.array_equal(np.frombuffer(encode("pcm", tone()), "<i2").reshape(-1, 2), to_s16(tone()))


@pytest.mark.parametrize("channels", [1, 2])
def test_opus_has_the_same_length_and_sound_for_both_readers(channels: int) -> None:
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
    heard, _ = soundfile.read(io.BytesIO(encode("ogg", pcm, (1_000, 7, 3_000), rate_hz)))
    assert abs(len(heard) - RATE_HZ) <= 1
    expected = tone(RATE_HZ)
    inner = slice(2_000, RATE_HZ - 2_000)
    assert np.abs(heard[inner] - expected[inner]).max() < 0.05


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize("rate_hz", [RATE_HZ, 44_100])
def test_chunk_boundaries_change_no_byte(format: str, rate_hz: int) -> None:
    pcm = tone(rate_hz=rate_hz)
    whole = encode(format, pcm, rate_hz=rate_hz)
    assert encode(format, pcm, (1, 959, 960, 961, 1, 17_000), rate_hz) == whole
    assert encode(format, pcm, (LENGTH - 1,), rate_hz) == whole


@pytest.mark.parametrize("format", AUDIO_FORMATS)
def test_bytes_leave_with_every_write(format: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2)
    sizes = [len(writer.write(chunk)) for chunk in np.split(tone(48_000), 4)]
    assert min(sizes) > 1_000


@pytest.mark.parametrize("format", ["wav", "flac", "ogg"])
def test_what_left_early_can_be_heard_before_the_end(format: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2)
    early = writer.write(tone(24_000))
    assert len(ffmpeg_frames(early)) >= 24_000 - 9_216


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_a_known_length_is_in_the_header_from_the_start(format: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2, total_samples=LENGTH)
    data = writer.write(tone()) + writer.close()
    assert data.startswith(writer.header())
    assert soundfile.info(io.BytesIO(data)).frames == LENGTH


def test_a_streamed_wav_says_unknown_sizes() -> None:
    data = encode("wav", tone())
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"


def test_a_wav_beyond_4_gib_says_unknown_sizes() -> None:
    head = AudioWriter("wav", RATE_HZ, 2, total_samples=2**31).write(tone(1))
    assert head[4:8] == head[40:44] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("format", ["wav", "flac", "ogg"])
def test_a_seekable_file_gets_the_true_sizes(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{FORMATS[format].suffix}"
    with path.open("wb") as file:
        write_audio(file, AudioWriter(format, RATE_HZ, 2), np.array_split(tone(), 5))
    heard, _ = soundfile.read(path)
    assert soundfile.info(path).frames == len(heard) == LENGTH
    if format == "wav":
        riff, data = struct.unpack("<I", path.read_bytes()[4:8]), struct.unpack("<I", path.read_bytes()[40:44])
        assert (riff[0] + 8, data[0] + 44) == (path.stat().st_size,) * 2


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_nothing_written_is_an_empty_file_that_opens(format: str) -> None:
    writer = AudioWriter(format, RATE_HZ, 2)
    data = writer.write(np.empty((0, 2), np.float32)) + writer.close()
    with av.open(io.BytesIO(data)) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == 0
    assert writer.close() == b""


def test_writer_refuses_unknown_formats_and_wrong_shapes() -> None:
    with pytest.raises(RequestError, match="wav, pcm, flac, ogg"):
        AudioWriter("mp9", RATE_HZ, 2)
    writer = AudioWriter("wav", RATE_HZ, 2)
    with pytest.raises(ValueError, match=r"\[N, 2\]"):
        writer.write(np.zeros((2, 960), np.float32).reshape(480, 4))
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(tone(10))


@pytest.mark.parametrize(("format", "subtype"), [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24")])
def test_lossless_sources_are_read_whole(format: str, subtype: str) -> None:
    heard = read_audio(upload(tone(), format=format, subtype=subtype), RATE_HZ, 2, 10.0)
    assert heard.dtype == np.float32
    assert heard.shape == (LENGTH, 2)
    assert np.abs(heard - tone()).max() < 1e-4


def test_vorbis_is_read() -> None:
    heard = read_audio(upload(tone(), format="OGG"), RATE_HZ, 2, 10.0)
    assert abs(len(heard) - LENGTH) < 1_024
    assert np.abs(heard[:LENGTH] - tone()).max() < 0.1


def test_mp3_is_read() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=RATE_HZ, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(tone().T), format="fltp", layout="stereo")
        frame.sample_rate = RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    heard = read_audio(file.getvalue(), RATE_HZ, 2, 10.0)
    assert abs(len(heard) - LENGTH) < 2_304
    assert np.abs(heard[5_000:20_000] - tone()[5_000:20_000]).max() < 0.05


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 96_000])
def test_sources_are_resampled_to_the_right_length_and_sound(rate_hz: int) -> None:
    heard = read_audio(upload(tone(rate_hz + 777, rate_hz), rate_hz), RATE_HZ, 2, 10.0)
    assert abs(len(heard) - (rate_hz + 777) * RATE_HZ / rate_hz) <= 1
    inner = slice(2_000, len(heard) - 2_000)
    assert np.abs(heard[inner] - tone(len(heard))[inner]).max() < 1e-3


def test_mono_is_copied_and_stereo_is_mixed() -> None:
    mono = tone(channels=1)
    assert np.abs(read_audio(upload(mono), RATE_HZ, 2, 10.0) - mono).max() < 1e-4
    mixed = read_audio(upload(tone()), RATE_HZ, 1, 10.0)
    assert mixed.shape == (LENGTH, 1)
    assert np.abs(mixed[:, 0] - tone().mean(axis=1)).max() < 1e-3


def test_sources_are_read_from_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(upload(tone()))
    assert len(read_audio(tmp_path / "a.wav", RATE_HZ, 2, 10.0)) == LENGTH
    with pytest.raises(RequestError, match=r"b\.wav.*[Nn]o such file"):
        read_audio(tmp_path / "b.wav", RATE_HZ, 2, 10.0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not audio"),
        (b"<html>not found</html>" * 20, "not audio"),
        (b"RIFF\xff\xff\xff\xffWAVE", "not audio"),
        (b"fLaC" + bytes(60), "not audio"),
        (upload(np.empty((0, 2), np.float32)), "empty"),
        (upload(np.full((4_800, 2), np.nan, np.float32), subtype="FLOAT"), "not finite"),
        (upload(tone(100, 1_000), 1_000), "4000 to 768000"),
    ],
    ids=["empty", "html", "cut-wav", "cut-flac", "no-samples", "nan", "rate"],
)
def test_bad_sources_are_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read_audio(data, RATE_HZ, 2, 10.0)
    assert caught.value.field == "source"


@pytest.mark.parametrize("head", [b"#EXTM3U\n#EXTINF:1,\nfile://{}\n", b"ffconcat version 1.0\nfile {}\n"])
def test_playlists_that_open_other_files_are_refused(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "secret.wav").write_bytes(upload(tone()))
    playlist = tmp_path / "list.wav"
    playlist.write_bytes(head.replace(b"{}", str(tmp_path / "secret.wav").encode()))
    with pytest.raises(RequestError, match="not audio"):
        read_audio(playlist, RATE_HZ, 2, 10.0)


def test_a_long_source_is_refused_without_decoding_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = upload(np.zeros((RATE_HZ * 300, 2), np.int16), format="FLAC")
    assert len(bomb) < 200_000
    decoded = []

    def count(resampler: Any, frame: av.AudioFrame | None) -> list[av.AudioFrame]:
        decoded.append(frame.samples if frame else 0)
        return list(resampler.resample(frame))

    monkeypatch.setattr("runtime.audio.decoding._resample", count)
    with pytest.raises(RequestError, match="longer than 2 seconds"):
        read_audio(bomb, RATE_HZ, 2, 2.0)
    assert 2 * RATE_HZ < sum(decoded) < 3 * RATE_HZ


def test_a_source_of_just_the_limit_is_taken() -> None:
    assert len(read_audio(upload(tone(RATE_HZ)), RATE_HZ, 2, 1.0)) == RATE_HZ
    with pytest.raises(RequestError, match="longer than 1 seconds"):
        read_audio(upload(tone(RATE_HZ + 1)), RATE_HZ, 2, 1.0)


def test_missing_latents_are_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none\.safetensors cannot be read: No such file"):
        read_latents(tmp_path / "none.safetensors", channels=4, max_frames=7)


def test_latents_survive_a_file(tmp_path: Path) -> None:
    latents = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    path = tmp_path / "a.safetensors"
    path.write_bytes(latents_bytes(latents, {"seed": "3"}))
    read, metadata = read_latents(path, channels=4, max_frames=7)
    assert np.array_equal(read, latents)
    assert metadata == {"seed": "3"}


def _safetensors(dtype: str, shape: list[int], size_bytes: int, name: str = "latents") -> bytes:
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, size_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size_bytes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
        (_safetensors("F32", [2**40, 2**40], 32), "not a safetensors file"),
        (_safetensors("F32", [2, 4], 32, "other"), 'no tensor "latents"'),
        (_safetensors("F32", [4, 2], 32), r"expected F32 \[T, 4\]"),
        (_safetensors("F32", [8, 4], 128), "T up to 7"),
        (_safetensors("F32", [0, 4], 0), "T up to 7"),
        (_safetensors("I64", [1, 4], 32), "I64"),
        (latents_bytes(np.full((2, 4), np.nan, np.float32), {}), "not finite"),
    ],
)
def test_bad_latents_are_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_latents(data, channels=4, max_frames=7)


@pytest.mark.parametrize("format", ["wav", "flac", "ogg"])
def test_damaged_sources_are_read_or_refused_and_nothing_else(format: str) -> None:
    random = np.random.default_rng(0)
    whole = encode(format, tone(9_000))
    outcomes = set()
    for _ in range(100):
        data = bytearray(whole[: random.integers(1, len(whole))])
        for position in random.integers(0, min(len(data), 400), random.integers(0, 12)):
            data[position] = random.integers(0, 256)
        try:
            heard = read_audio(bytes(data), RATE_HZ, 2, 10.0)
            assert heard.shape[1] == 2
            assert np.isfinite(heard).all()
            outcomes.add("read")
        except RequestError:
            outcomes.add("refused")
    assert "refused" in outcomes
