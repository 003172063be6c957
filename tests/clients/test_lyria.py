"""Google's clients of Lyria RealTime, unmodified, against the demo; what they received is measured."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.compat_readme import shown
from helpers.http_harness import Served, serving
from helpers.paths import DEMO, ROOT
from helpers.tls import make_certificate

from configs.demo.recipe.evaluation.measure import in_key_energy, is_tempo
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import FloatArray, levels_from_latents
from runtime.config.deployment import load_deployment

genai = pytest.importorskip("google.genai", reason="needs the extra clients (make test-clients)")
types: Any = pytest.importorskip("google.genai.types")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore:Realtime music generation is experimental")]
API_KEY = "a-key-of-these-tests"
NODE_MODULES = ROOT / "build" / "clients" / "node_modules"
MODEL = "models/lyria-realtime-exp"
CANVAS_S = 10.24
IN_KEY = 0.9
# The highest level of a layer that plays, as the demo's encoder hears it in a mix: 0.65 and more; what it takes for
# one that does not play stays below 0.45.
HEARD_LEVEL = 0.55


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(certificate: tuple[Path, Path]) -> Iterator[Served]:
    """The demo on https, with API_KEY."""
    file, key = certificate
    options = {"certificate": file, "private_key": key, "client_sessions": 0, "max_refresh_s": 60.0}
    with serving(load_deployment(DEMO), api_key=API_KEY, **options) as served:
        yield served


@pytest.fixture
def environment(secure: Served, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Python client needs: nothing else of it is set."""
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", secure.url)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("GEMINI_API_KEY", API_KEY)


def levels_of(served: Served, pcm: bytes) -> FloatArray:
    """What notes, drums and instruments the demo's encoder hears in the last CANVAS_S of audio."""
    samples = np.frombuffer(pcm, "<i2").reshape(-1, 2)[-round(CANVAS_S * 48_000) :].astype(np.float32) / 32768
    assert np.abs(samples).max() > 0.05
    codec = served.pipeline.codec
    assert codec is not None
    return levels_from_latents(codec.encode(samples))


def layers_heard(levels: FloatArray) -> set[str]:
    return {layer for layer in LAYERS if levels[:, pitch_channels(layer)].max() > HEARD_LEVEL}


async def play(text: str, seconds: float = CANVAS_S + 0.5, **config: Any) -> bytes:
    """What the client receives of a prompt and a configuration."""
    async with genai.Client().aio.live.music.connect(model=MODEL) as session:
        await session.set_weighted_prompts([types.WeightedPrompt(text=text, weight=1.0)])
        await session.set_music_generation_config(types.LiveMusicGenerationConfig(seed=1, **config))
        await session.play()
        pcm = bytearray()
        async for message in session.receive():
            assert message.filtered_prompt is None
            pcm += message.server_content.audio_chunks[0].data
            if len(pcm) >= seconds * 48_000 * 4:
                return bytes(pcm)
    raise AssertionError("the stream has ended")


@pytest.mark.usefixtures("environment")
def test_tempo_scale_and_mutes_are_in_the_audio_that_the_client_received(secure: Served) -> None:
    prompt = "pop, pads, arps, bass, melody, drums"

    async def play_all() -> list[bytes]:
        configs: list[dict[str, Any]] = [
            {"bpm": 120, "scale": "D_MAJOR_B_MINOR"},
            {"bpm": 96, "scale": "E_FLAT_MAJOR_C_MINOR"},
            {"bpm": 120, "mute_drums": True},
            {"bpm": 120, "mute_bass": True},
            {"bpm": 120, "only_bass_and_drums": True},
        ]
        return await asyncio.gather(*(play(prompt, **config) for config in configs))

    in_d, in_e_flat, no_drums, no_bass, only = (levels_of(secure, pcm) for pcm in asyncio.run(play_all()))
    assert is_tempo(in_d, 120, "4/4")
    assert in_key_energy(in_d, 2, "major") > IN_KEY > in_key_energy(in_d, 3, "major")
    assert is_tempo(in_e_flat, 96, "4/4")
    assert not is_tempo(in_e_flat, 120, "4/4")
    assert in_key_energy(in_e_flat, 3, "major") > IN_KEY
    layers = {"pad", "arp", "bass", "melody", "drums"}
    assert layers_heard(in_d) == layers
    assert layers_heard(no_drums) == layers - {"drums"}
    assert layers_heard(no_bass) == layers - {"bass"}
    assert layers_heard(only) == {"bass", "drums"}


async def received(resets: bool) -> tuple[np.ndarray, int]:
    """Five seconds of samples; how many of them had been received when the reset was sent."""
    async with genai.Client().aio.live.music.connect(model=MODEL) as session:
        await session.set_weighted_prompts([types.WeightedPrompt(text="techno, bass, drums, pads", weight=1.0)])
        await session.set_music_generation_config(types.LiveMusicGenerationConfig(seed=7, bpm=120))
        await session.play()
        pcm, at = bytearray(), 0
        async for message in session.receive():
            pcm += message.server_content.audio_chunks[0].data
            if resets and not at and len(pcm) >= 3 * 4 * 48_000:
                at = len(pcm) // 4
                await session.reset_context()
            if len(pcm) >= 5 * 4 * 48_000:
                break
    return np.frombuffer(bytes(pcm), "<i2").reshape(-1, 2), at


@pytest.mark.usefixtures("environment")
def test_a_reset_is_heard_within_a_second() -> None:
    """In what the client gets after it. Without a reset, the same seed gives the same first canvas."""
    plain, _ = asyncio.run(received(False))
    reset, at = asyncio.run(received(True))
    length = min(len(plain), len(reset))
    differs = np.abs(plain[:length].astype(int) - reset[:length]).max(axis=1) > 1000
    assert at <= int(differs.argmax()) < at + 48_000


@pytest.mark.usefixtures("environment")
def test_pause_stop_and_errors_are_what_the_client_expects() -> None:
    async def run() -> str:
        async with genai.Client().aio.live.music.connect(model=MODEL) as session:
            await session.play()
            await anext(session.receive())
            await session.pause()
            await session.play()
            await session.stop()
            await session.set_weighted_prompts([types.WeightedPrompt(text="blorf", weight=1.0)])
            async for message in session.receive():
                if message.filtered_prompt is not None:
                    break
            await session._ws.send('{"tempo": 1}')
            with pytest.raises(genai.errors.APIError) as error:
                async for _ in session.receive():
                    pass
            return str(error.value)

    assert 'Unknown name "tempo": Cannot find field.' in asyncio.run(run())


@pytest.mark.usefixtures("environment")
def test_a_wrong_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "wrong")
    with pytest.raises(Exception, match="401"):
        asyncio.run(play("techno", 0.1))


@pytest.mark.usefixtures("environment")
def test_the_lines_for_python(secure: Served, tmp_path: Path) -> None:
    (tmp_path / "lyria.py").write_text(shown("Lyria RealTime", "python")[0])
    subprocess.run([sys.executable, "lyria.py"], cwd=tmp_path, check=True, timeout=120)
    with wave.open(str(tmp_path / "lyria.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (48_000, 2, 2)
        levels = levels_of(secure, file.readframes(file.getnframes()))
    assert is_tempo(levels, 120, "4/4")
    assert in_key_energy(levels, 2, "major") > IN_KEY
    assert {"pad", "bass", "drums"} <= layers_heard(levels)
    assert "melody" not in layers_heard(levels)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.skipif(not (NODE_MODULES / "@google").is_dir(), reason="needs @google/genai of npm (make test-clients)")
def test_the_lines_for_node(demo_server: Served, tmp_path: Path) -> None:
    (tmp_path / "lyria.mjs").write_text(shown("Lyria RealTime", "js")[0])
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    environment = {**os.environ, "GOOGLE_GEMINI_BASE_URL": demo_server.url, "GEMINI_API_KEY": API_KEY}
    command = ["node", "lyria.mjs"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, timeout=120, capture_output=True, text=True
    )
    assert '{"setupComplete":{}}' in run.stdout
    levels = levels_of(demo_server, (tmp_path / "lyria.pcm").read_bytes())
    assert is_tempo(levels, 90, "4/4")
    assert "drums" not in layers_heard(levels)
    assert "bass" in layers_heard(levels)
