"""Audio files and float PCM become PCM at the codec's rate and channels; invalid ones are refused."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from helpers.growth import growth
from helpers.odd_audio import (
    CHAINED,
    COMPRESSED,
    DAMAGED,
    HOSTILE,
    LOSSLESS,
    NOISE,
    QUIET,
    encoded,
    extensible,
    rifx,
    with_bad_frames,
    written,
)
from helpers.paths import TESTS
from helpers.tones import LENGTH, RATE_HZ, tone
from numpy.typing import NDArray

from runtime.audio import decoding
from runtime.audio.decoding import audio_chunks, convert_audio, read_audio, read_tags, within
from runtime.base.errors import RequestError
from runtime.base.files import losses

TIME = np.arange(24_000) / 24_000
STEREO = 0.5 * np.sin(2 * np.pi * np.stack((220 * TIME, 330 * TIME), axis=1)).astype(np.float32)


def upload(pcm: NDArray[np.generic], rate_hz: int = RATE_HZ, format: str = "WAV", subtype: str | None = None) -> bytes:
    """An audio file, written by libsndfile."""
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, format=format, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "more", "error"),
    [
        (upload(tone(), format="OGG"), 1_024, 0.1),
        (encoded(tone(), "mp3", "libmp3lame", RATE_HZ), 2_304, 0.05),
    ],
    ids=["vorbis", "mp3"],
)
def test_lossy_sources_are_read(data: bytes, more: int, error: float) -> None:
    decoded = read_audio(data, RATE_HZ, 2, 10.0)
    assert abs(len(decoded) - LENGTH) < more
    assert np.abs(decoded[5_000:20_000] - tone()[5_000:20_000]).max() < error


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 96_000])
def test_sources_are_resampled(rate_hz: int) -> None:
    decoded = read_audio(upload(tone(rate_hz + 777, rate_hz), rate_hz), RATE_HZ, 2, 10.0)
    assert abs(len(decoded) - (rate_hz + 777) * RATE_HZ / rate_hz) <= 1
    inner = slice(2_000, len(decoded) - 2_000)
    assert np.abs(decoded[inner] - tone(len(decoded))[inner]).max() < 1e-3


def chord(rate_hz: int) -> NDArray[np.float32]:
    """`[N, 2]`: 10 ms of four tones up to 12 kHz, swelling and fading."""
    time_s = np.arange(rate_hz // 100) / rate_hz
    values = sum(np.sin(2 * np.pi * tone_hz * time_s + tone_hz) for tone_hz in (440, 3000, 7000, 12_000))
    return np.repeat((0.2 * values * np.sin(100 * np.pi * time_s) ** 2).astype(np.float32)[:, None], 2, axis=1)


def difference_db(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.square(found - wanted).mean() / np.square(wanted).mean()))


@pytest.mark.parametrize(("rate_hz", "expected_db"), [(32_000, -40.0), (44_100, -55.0), (96_000, -55.0)])
def test_resampled_sources_differ_from_torchaudio_s_by_no_more_than_its_own_error(
    rate_hz: int, expected_db: float
) -> None:
    """The vectors are torchaudio.functional.resample() of a channel of chord(), as ACE-Step's own code resamples.

    AceStepPipeline takes audio of 48 kHz only.
    """
    theirs = np.load(TESTS / "data" / "torchaudio_resampled.npz")[f"from_{rate_hz}_hz"][:, None]
    ours = convert_audio(chord(rate_hz), rate_hz, 48_000, 2, 1.0)
    assert difference_db(ours, theirs) < expected_db
    assert difference_db(ours, chord(48_000)) < -90.0 < difference_db(theirs, chord(48_000)[:, :1])


def test_mono_is_copied_and_stereo_is_mixed_down() -> None:
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
def test_invalid_sources_are_refused_with_the_cause(data: bytes, words: str) -> None:
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
    compressed = upload(np.zeros((RATE_HZ * 300, 2), np.int16), format="FLAC")
    assert len(compressed) < 200_000
    decoded_samples = []

    def count(frames: list[av.AudioFrame], channels: int) -> Iterator[NDArray[np.float32]]:
        decoded_samples.extend(frame.samples for frame in frames)
        return as_pcm(frames, channels)

    as_pcm = decoding._as_pcm
    monkeypatch.setattr(decoding, "_as_pcm", count)
    with pytest.raises(RequestError, match="longer than 2 seconds"):
        read_audio(compressed, RATE_HZ, 2, 2.0)
    assert 2 * RATE_HZ < sum(decoded_samples) < 3 * RATE_HZ


def test_a_long_source_is_decoded_piece_by_piece() -> None:
    chunks = audio_chunks(upload(np.zeros((RATE_HZ * 60, 2), np.int16), format="FLAC"), RATE_HZ, 2, 60.0)
    sizes = [len(chunk) for chunk in chunks]
    assert sum(sizes) == 60 * RATE_HZ
    assert max(sizes) < 8192


def test_reading_stops_after_its_time() -> None:
    times_s = iter([0.0, 1.0, 2.0, 3.5])
    chunks = within(3.0, [STEREO, STEREO, STEREO], clock=lambda: next(times_s))
    assert [len(next(chunks)), len(next(chunks))] == [len(STEREO), len(STEREO)]
    with pytest.raises(RequestError, match="not read within 3 s"):
        next(chunks)


def test_a_frame_of_absurd_length_is_refused_before_memory_is_taken_for_it() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mov") as container:
        stream = container.add_stream("alac", rate=RATE_HZ, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 4096), np.int16), format="s16p", layout="stereo")
        frame.sample_rate = RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    whole = file.getvalue()
    assert len(read_audio(whole, RATE_HZ, 2, 10.0)) == 4096
    # The decoder's parameters begin with the samples per frame.
    position = whole.rindex(b"alac") + 8
    assert int.from_bytes(whole[position : position + 4]) == 4096
    damaged = whole[:position] + (2**24).to_bytes(4) + whole[position + 4 :]
    with pytest.raises(RequestError, match="not audio"):
        read_audio(damaged, RATE_HZ, 2, 600.0)


def test_a_source_as_long_as_the_limit_is_accepted() -> None:
    assert len(read_audio(upload(tone(RATE_HZ)), RATE_HZ, 2, 1.0)) == RATE_HZ
    with pytest.raises(RequestError, match="longer than 1 seconds"):
        read_audio(upload(tone(RATE_HZ + 1)), RATE_HZ, 2, 1.0)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG"])
def test_damaged_sources_are_read_or_refused(format: str) -> None:
    random = np.random.default_rng(0)
    whole = upload(tone(9_000), format=format)
    outcomes = set()
    for _ in range(100):
        data = bytearray(whole[: random.integers(1, len(whole))])
        for position in random.integers(0, min(len(data), 400), random.integers(0, 12)):
            data[position] = random.integers(0, 256)
        try:
            decoded = read_audio(bytes(data), RATE_HZ, 2, 10.0)
            assert decoded.shape[1] == 2
            assert np.isfinite(decoded).all()
            outcomes.add("read")
        except RequestError:
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
@pytest.mark.parametrize("pcm", [STEREO, STEREO[:, :1]], ids=["stereo", "mono"])
def test_pcm_becomes_what_a_file_becomes(pcm: np.ndarray, rate_hz: int, channels: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", pcm, 24_000, subtype="FLOAT")
    converted = convert_audio(pcm, 24_000, rate_hz, channels, 10.0)
    expected = read_audio(tmp_path / "a.wav", rate_hz, channels, 10.0)
    assert converted.shape == expected.shape == (rate_hz, channels)
    assert np.abs(converted - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("pcm", "message"),
    [
        (STEREO.T, "expected float samples"),
        (STEREO[:, 0], "expected float samples"),
        ((STEREO * 32767).astype(np.int16), "int16"),
        (STEREO[:0], "empty"),
        (np.full_like(STEREO, np.nan), "not finite"),
        (np.tile(STEREO, (3, 1)), "longer than 2 seconds"),
    ],
)
def test_invalid_pcm_and_rates_are_refused(pcm: np.ndarray, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        convert_audio(pcm, 24_000, 48_000, 2, 2.0)
    with pytest.raises(RequestError, match="samples per second"):
        convert_audio(STEREO, 1, 48_000, 2, 2.0)
    assert np.array_equal(convert_audio(STEREO, 24_000, 24_000, 2, 10.0), STEREO)


def test_more_channels_than_are_mixed_down_are_refused() -> None:
    for channels in (9, 64):
        with pytest.raises(RequestError, match=f"the audio has {channels} channels, expected 1 to 8"):
            read_audio(upload(np.zeros((4800, channels))), RATE_HZ, 2, 1.0)
    assert read_audio(upload(np.zeros((4800, 8)), RATE_HZ), RATE_HZ, 2, 1.0).shape == (4800, 2)


@pytest.mark.parametrize("name", LOSSLESS)
def test_every_way_to_write_samples_is_read_as_the_same_sound(name: str) -> None:
    with losses() as lost:
        decoded = read_audio(LOSSLESS[name], 48_000, 2, 10.0)
    assert decoded.shape == QUIET.shape
    assert np.abs(decoded - QUIET).max() < (2**-10 if "12 bits" in name else 2**-14)
    assert lost == []


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_samples_are_those_of_libsndfile(name: str) -> None:
    theirs, _ = soundfile.read(io.BytesIO(COMPRESSED[name]), dtype="float32", always_2d=True)
    with losses() as lost:
        decoded = read_audio(COMPRESSED[name], 48_000, theirs.shape[1], 10.0)
    assert decoded.shape == theirs.shape
    assert np.abs(decoded - theirs).max() < 1e-4
    assert lost == []


def test_samples_of_rifx_that_are_unknown_are_refused_as_they_would_be_noise() -> None:
    wav = rifx(extensible(QUIET, 16, 16), 16)
    at = wav.index(b"fmt ") + 10
    with pytest.raises(RequestError, match="RIFX"):
        read_audio(wav[:at] + b"\0\0" + wav[at + 2 :], 48_000, 2, 10.0)


def test_a_file_without_its_index_is_refused_with_the_cause() -> None:
    m4a = encoded(QUIET, "mp4", "aac")
    with pytest.raises(RequestError, match=r"(?s)was cut: its index.*give the whole file"):
        read_audio(m4a[: len(m4a) * 2 // 3], 48_000, 2, 10.0)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_take_linear_time(name: str) -> None:
    begin, repeated = HOSTILE[name]

    def work(length: int) -> Callable[[], object]:
        data = begin + repeated * (length // len(repeated))
        return lambda: read_audio(data, 48_000, 2, 10.0)

    assert growth(work, 2**17, times=4, most=9.0) < 9.0


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_decoded_is_left_out_and_told(name: str) -> None:
    data, seconds = DAMAGED[name]
    with losses() as lost:
        decoded = read_audio(data, 48_000, 2, 10.0)
    assert seconds - 0.02 <= len(decoded) / 48_000 < seconds + 0.2
    assert (lost != []) == (name not in ("two flac", "junk before mp3"))
    assert all(text.startswith("at least ") for text in lost)


@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 44_100])
def test_of_a_whole_mp3_nothing_is_missing(rate_hz: int) -> None:
    with losses() as lost:
        read_audio(encoded(QUIET, "mp3", "libmp3lame", rate_hz), 48_000, 2, 10.0)
    assert lost == []


def test_a_source_of_which_less_than_half_is_left_is_refused() -> None:
    aac = encoded(QUIET, "adts", "aac")
    assert len(read_audio(with_bad_frames(aac, 0.4), 48_000, 2, 10.0)) > 0.5 * 48_000
    with pytest.raises(RequestError, match=r"2\d of 48 packets are not audio") as error:
        read_audio(with_bad_frames(aac, 0.6), 48_000, 2, 10.0)
    assert error.value.status == 422
    flac = written(NOISE, "FLAC", "PCM_16")
    with pytest.raises(RequestError, match=r"0\.[34]\d of the file's 1\.00 s can be decoded"):
        read_audio(flac[: len(flac) * 2 // 5], 48_000, 2, 10.0)


@pytest.mark.parametrize("name", CHAINED)
def test_links_of_a_chain_sound_as_they_do_alone(name: str) -> None:
    alone = np.concatenate([read_audio(link, 48_000, 2, 10.0) for link in CHAINED[name]])
    chained = read_audio(b"".join(CHAINED[name]), 48_000, 2, 10.0)
    assert np.array_equal(chained, alone)


@pytest.mark.parametrize("name", ["2024-08-20T13:28:35Z.wav", "http:x.wav", "concat:a|b.wav", "a%03d.wav", "-é ü.wav"])
def test_any_name_is_that_of_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(upload(tone()))
    assert len(read_audio(Path(name), RATE_HZ, 2, 10.0)) == LENGTH
    assert "TICKRT" not in read_tags(Path(name))
