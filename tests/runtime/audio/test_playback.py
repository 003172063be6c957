"""Playing: the player's standard input is the encoded audio; failures and the end of the audio."""

import importlib.machinery
import os
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.audio.encoding import AudioWriter, to_s16
from runtime.audio.playback import PROGRAMS, open_player
from runtime.base.errors import ConfigError, FileError

RATE_HZ = 8000
PCM = np.linspace(-1, 1, 2 * 3000, dtype=np.float32).reshape(3000, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, program: str) -> Path:
    """A player that is this shell program; `played` is where it may write."""
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH={os.defpath}\nplayed={folder}/played\n{program}\n")
    path.chmod(0o755)
    return folder / "played"


def play(pcm: Any = PCM) -> None:
    player = open_player(RATE_HZ, 2, len(pcm))
    try:
        assert len(list(player.tee(np.array_split(pcm, 3)))) == 3
        player.finish()
    finally:
        player.close()


def encoded(format: str) -> bytes:
    writer = AudioWriter(format, RATE_HZ, 2, total_samples=len(PCM))
    return writer.write(PCM) + writer.close()


@pytest.mark.parametrize(
    ("name", "program", "format"),
    [
        ("ffplay", "cat > $played", "wav"),
        ("mpv", "cat > $played", "wav"),
        ("aplay", "cat > $played", "wav"),
        ("paplay", "cat > $played", "pcm"),
        ("afplay", 'cat "$1" > $played', "wav"),
    ],
)
def test_a_program_receives_the_encoded_audio(folder: Path, name: str, program: str, format: str) -> None:
    played = install(folder, name, program)
    play()
    assert played.read_bytes() == encoded(format)


def test_raw_samples_come_with_their_rate_and_channels(folder: Path) -> None:
    played = install(folder, "paplay", 'cat > /dev/null; echo "$@" > $played')
    play()
    assert played.read_text() == "--raw --format=s16le --rate=8000 --channels=2\n"


def test_the_file_of_a_player_of_complete_files_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = install(folder, "afplay", 'echo "$1" > $played')
    play()
    assert not Path(played.read_text().strip()).exists()


@pytest.mark.parametrize(
    ("program", "length", "message"),
    [("cat > /dev/null; exit 3", 3000, "aplay ended with status 3"), ("exit 0", 300_000, "not played to its end")],
)
def test_a_player_that_fails_or_ends_early_is_an_error(folder: Path, program: str, length: int, message: str) -> None:
    install(folder, "aplay", program)
    with pytest.raises(FileError, match=message):
        play(np.zeros((length, 2), np.float32))


def test_closing_ends_a_player_that_still_plays(folder: Path) -> None:
    install(folder, "aplay", "exec sleep 1000")
    player = open_player(RATE_HZ, 2, None)
    player.write(np.zeros((300_000, 2), np.float32))
    player.close()
    player.close()


def test_without_a_player_the_error_says_what_was_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        open_player(RATE_HZ, 2, None)
    assert all(name in caught.value.what for name in [*PROGRAMS, "sounddevice"])
    assert "--play" in caught.value.fix


def set_sounddevice(monkeypatch: pytest.MonkeyPatch, stream: Any, error: type[Exception]) -> None:
    package = types.ModuleType("sounddevice")
    package.__spec__ = importlib.machinery.ModuleSpec("sounddevice", None)
    package.__dict__.update(RawOutputStream=stream, PortAudioError=error)
    monkeypatch.setitem(sys.modules, "sounddevice", package)


def test_sounddevice_plays_where_there_is_no_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played, calls = list[bytes](), list[str]()

    class Stream:
        def __init__(self, rate_hz: int, channels: int, dtype: str) -> None:
            assert (rate_hz, channels, dtype) == (RATE_HZ, 2, "int16")
            for name in ("start", "stop", "abort", "close"):
                setattr(self, name, partial(calls.append, name))

        def write(self, data: bytes) -> None:
            played.append(data)

    set_sounddevice(monkeypatch, Stream, Exception)
    play()
    assert b"".join(played) == to_s16(PCM).tobytes()
    # It plays to its end before it is closed; what is closed before stops at once.
    assert calls == ["start", "stop", "abort", "close"]


def test_a_machine_without_an_output_device_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDeviceError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise NoDeviceError("no default device")

    set_sounddevice(monkeypatch, fail, NoDeviceError)
    with pytest.raises(FileError, match="no default device"):
        open_player(RATE_HZ, 2, None)
