"""Float PCM of any rate and channels becomes what a file of it becomes."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from runtime.audio.decoding import convert_audio, read_audio
from runtime.errors import RequestError

TIME = np.arange(24_000) / 24_000
STEREO = 0.5 * np.sin(2 * np.pi * np.stack((220 * TIME, 330 * TIME), axis=1)).astype(np.float32)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
@pytest.mark.parametrize("pcm", [STEREO, STEREO[:, :1]], ids=["stereo", "mono"])
def test_pcm_becomes_what_a_file_becomes(pcm: np.ndarray, rate_hz: int, channels: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", pcm, 24_000, subtype="FLOAT")
    converted = convert_audio(pcm, 24_000, rate_hz, channels, 10.0)
    expected = read_audio(tmp_path / "a.wav", rate_hz, channels, 10.0)
    assert converted.shape == expected.shape == (rate_hz, channels)
    assert np.abs(converted - expected).max() < 1e-6


def test_equal_rate_and_channels_keep_every_sample() -> None:
    assert np.array_equal(convert_audio(STEREO, 24_000, 24_000, 2, 10.0), STEREO)


@pytest.mark.parametrize(
    ("pcm", "says"),
    [
        (STEREO.T, "expected float samples"),
        (STEREO[:, 0], "expected float samples"),
        ((STEREO * 32767).astype(np.int16), "int16"),
        (STEREO[:0], "empty"),
        (np.full_like(STEREO, np.nan), "not finite"),
        (np.tile(STEREO, (3, 1)), "longer than 2 seconds"),
    ],
)
def test_invalid_pcm_is_refused(pcm: np.ndarray, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        convert_audio(pcm, 24_000, 48_000, 2, 2.0)


def test_an_invalid_rate_is_refused() -> None:
    with pytest.raises(RequestError, match="samples per second"):
        convert_audio(STEREO, 1, 48_000, 2, 2.0)
