"""ElevenLabs' own SDK, unmodified, against the demo."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.compat_readme import shown
from helpers.http_harness import TIMEOUT_S, Served
from numpy.typing import NDArray

elevenlabs = pytest.importorskip("elevenlabs", reason="needs the extra clients (make test-clients)")
# The SDK does not close its connections.
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """A client's warnings are those of its test."""
    yield
    gc.collect()


def key_of(served: Served) -> str:
    assert served.service.settings.api_key is not None
    return served.service.settings.api_key.get_secret_value()


def client(served: Served, key: str = "") -> Any:
    return elevenlabs.ElevenLabs(base_url=served.url, api_key=key or key_of(served), timeout=TIMEOUT_S)


def audio(chunks: Iterable[bytes]) -> tuple[NDArray[np.float64], int]:
    """What a client received: samples `[N, channels]` that are not silent, and their rate."""
    samples, rate_hz = soundfile.read(io.BytesIO(b"".join(chunks)), always_2d=True)
    assert np.sqrt(np.mean(samples**2)) > 0.02
    return samples, rate_hz


def test_a_stream_comes_while_it_is_made(demo_server: Served) -> None:
    values = {"prompt": "techno, 120 bpm", "music_length_ms": 60_000, "seed": 1, "output_format": "pcm_48000"}
    chunks = client(demo_server).music.stream(**values)
    first = next(chunks)
    # More than fits into the buffers of the connection.
    with demo_server.client(headers={"xi-api-key": key_of(demo_server)}) as http:
        assert "tickrt_generations_in_flight 1.0" in http.get("/metrics").text
    assert len(first) + sum(map(len, chunks)) == 2 * 2 * 48_000 * 60


@pytest.mark.parametrize(
    ("output_format", "rate_hz"),
    [("mp3_22050_32", 22_050), ("mp3_44100_128", 44_100), ("opus_48000_96", 48_000), ("mp3_48000_320", 48_000)],
)
def test_composed_music_has_its_length_and_rate(demo_server: Served, output_format: str, rate_hz: int) -> None:
    music = client(demo_server).music
    samples, found_hz = audio(
        music.compose(prompt="piano", music_length_ms=4000, output_format=output_format, force_instrumental=True)
    )
    assert found_hz == rate_hz
    assert 4 <= len(samples) / rate_hz < 4.2


def test_a_seed_is_the_same_music_again(demo_server: Served) -> None:
    def pcm(seed: int) -> bytes:
        music = client(demo_server).music
        return b"".join(music.compose(prompt="jazz", music_length_ms=3000, seed=seed, output_format="pcm_44100"))

    first = pcm(7)
    assert len(first) == 2 * 2 * 3 * 44_100
    assert pcm(7) == first != pcm(8)


def test_details_and_audio(demo_server: Served) -> None:
    song = client(demo_server).music.compose_detailed(prompt="piano", music_length_ms=3000)
    samples, rate_hz = audio([song.audio])
    assert 3 <= len(samples) / rate_hz < 3.2
    assert song.filename.endswith(".mp3")
    assert song.json["song_metadata"]["description"] == "piano"


def test_a_plan_is_heard_section_by_section(demo_server: Served) -> None:
    from elevenlabs import MusicPrompt, SongSection

    def section(name: str, style: str) -> Any:
        return SongSection(
            section_name=name,
            positive_local_styles=[style],
            negative_local_styles=[],
            duration_ms=5000,
            lines=[],
        )

    plan = MusicPrompt(
        positive_global_styles=["120 bpm", "C minor"],
        negative_global_styles=[],
        sections=[section("Intro", "pads only, no drums"), section("Drop", "drums only")],
    )
    music = client(demo_server).music
    samples, rate_hz = audio(music.compose(composition_plan=plan, seed=3, output_format="mp3_48000_320"))
    assert 10 <= len(samples) / rate_hz < 10.2
    intro, drop = (centroid_hz(samples[begin * rate_hz : (begin + 4) * rate_hz], rate_hz) for begin in (0, 6))
    assert drop > 3 * intro


def centroid_hz(samples: NDArray[np.float64], rate_hz: int) -> float:
    """The mean frequency of a spectrum: of pads about 1 kHz, of drums about 6 kHz."""
    spectrum = np.abs(np.fft.rfft(samples.mean(axis=1)))
    return float(np.average(np.fft.rfftfreq(len(samples), 1 / rate_hz), weights=spectrum))


def test_a_sound_effect(demo_server: Served) -> None:
    sounds = client(demo_server).text_to_sound_effects
    samples, rate_hz = audio(sounds.convert(text="bells", duration_seconds=2.5, output_format="wav_22050"))
    assert (len(samples), rate_hz) == (55_125, 22_050)


def test_errors_are_the_sdks(demo_server: Served) -> None:
    from elevenlabs.core.api_error import ApiError

    for key, values, status, message in (
        ("wrong", {"prompt": "techno"}, 401, "API key"),
        ("", {"prompt": "techno", "music_length_ms": 100}, 422, "music_length_ms: expected at least 3000"),
        ("", {"prompt": "techno", "output_format": "mp3_1_2"}, 422, "expected one of auto, mp3_22050_32"),
        ("", {"prompt": "techno", "store_for_inpainting": True}, 422, "keeps no songs"),
        ("", {"prompt": "techno", "model_id": "music_v9"}, 404, "this server runs 'tickrt-demo'"),
    ):
        for method in ("stream", "compose"):
            with pytest.raises(ApiError) as error:
                list(getattr(client(demo_server, key).music, method)(**values))
            assert error.value.status_code == status
            assert message in error.value.body["detail"]["message"]


def test_the_readmes_lines_play_music(demo_server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = shown("ElevenLabs", "python")
    monkeypatch.chdir(tmp_path)
    exec(program.replace("http://localhost:8000", demo_server.url).replace('"none"', repr(key_of(demo_server))), {})
    for name, seconds in (("techno.mp3", 12), ("bells.wav", 4)):
        samples, rate_hz = audio([(tmp_path / name).read_bytes()])
        assert seconds <= len(samples) / rate_hz < seconds + 0.2
