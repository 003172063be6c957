"""Playing audio while it is generated: through a player program of the machine, or the Python package sounddevice."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from runtime.audio.encoding import AudioWriter
from runtime.base.errors import ConfigError, FileError
from runtime.config.codec import Pcm

# Program -> its arguments. It reads WAV from standard input, raw s16le samples with --raw, a complete file with {file}.
PROGRAMS = {
    "ffplay": "-nodisp -autoexit -loglevel error -i -",
    "mpv": "--no-video --really-quiet -",
    "aplay": "-q -",
    "paplay": "--raw --format=s16le --rate={rate_hz} --channels={channels}",
    "afplay": "{file}",
}
PACKAGE = "sounddevice"


class Output(Protocol):
    """Takes encoded audio."""

    def write(self, data: bytes) -> None:
        """Takes bytes; waits where they are not played yet. Raises OSError, FileError."""

    def finish(self) -> None:
        """Wait until all has been played. Raises OSError, FileError."""

    def stop(self) -> None:
        """End at once; may be called from another thread, and after finish()."""


class AudioPlayer:
    """Plays PCM in a thread of its own, so that generating does not wait for the loudspeaker.

    Samples that are not played yet are kept as bytes in the writer's format.
    """

    def __init__(self, output: Output, writer: AudioWriter) -> None:
        self._output = output
        self._writer = writer
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._failure: OSError | FileError | None = None
        self._is_closed = False
        # It takes bytes from the queue, waits while that is empty, and ends at None.
        self._thread = Thread(target=self._play, name="player", daemon=True)
        self._thread.start()

    def write(self, pcm: Pcm) -> None:
        """Queue `[N, channels]` float32; does not wait. Raises NonFiniteError."""
        self._queue.put(self._writer.write(pcm))

    def tee(self, chunks: Iterable[Pcm]) -> Iterator[Pcm]:
        """Pass on chunks, and queue them."""
        for chunk in chunks:
            self.write(chunk)
            yield chunk

    def finish(self) -> None:
        """Wait until all has been played. Raises FileError where the player has failed."""
        self._queue.put(self._writer.close())
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            raise FileError(f"the audio was not played to its end: {self._failure}")

    def close(self) -> None:
        """Stop playing; nothing more is played."""
        self._is_closed = True
        self._queue.put(None)
        self._output.stop()
        self._thread.join()

    def _play(self) -> None:
        try:
            while (data := self._queue.get()) is not None and not self._is_closed:
                self._output.write(data)
            if not self._is_closed:
                self._output.finish()
        except (OSError, FileError) as error:
            self._failure = error


def open_player(sample_rate_hz: int, channels: int, total_samples: int | None) -> AudioPlayer:
    """A player of the first program of PROGRAMS that is found, else of the package sounddevice.

    Raises ConfigError where there is neither.
    """
    for name, arguments in PROGRAMS.items():
        path = shutil.which(name)
        if path is not None:
            command = [path, *arguments.format(rate_hz=sample_rate_hz, channels=channels, file="{file}").split()]
            format = "pcm" if "--raw" in command else "wav"
            output: Output = FileProgram(command) if "{file}" in command else Program(command)
            return AudioPlayer(output, AudioWriter(format, sample_rate_hz, channels, total_samples=total_samples))
    if importlib.util.find_spec(PACKAGE) is not None:
        return AudioPlayer(SoundDevice(sample_rate_hz, channels), AudioWriter("pcm", sample_rate_hz, channels))
    raise ConfigError(
        f"there is nothing to play with: looked for the programs {', '.join(PROGRAMS)} and the package {PACKAGE}",
        fix=f"install one of them, such as pip install {PACKAGE}, or leave --play out",
    )


class Program:
    """A program that plays its standard input. Its messages go to standard error."""

    def __init__(self, command: list[str]) -> None:
        self._name = Path(command[0]).name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert self._process.stdin is not None
        self._input = self._process.stdin

    def write(self, data: bytes) -> None:
        self._input.write(data)
        self._input.flush()

    def finish(self) -> None:
        self._input.close()
        if status := self._process.wait():
            raise FileError(f"{self._name} ended with status {status}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._input.close()


class FileProgram:
    """A program that plays complete files only: it starts when all is generated. `{file}` in `command` is the file."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._file = tempfile.NamedTemporaryFile(suffix=".wav", delete=False)  # noqa: SIM115
        self._program: Program | None = None

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()
        self._program = Program([part.format(file=self._file.name) for part in self._command])
        self._program.finish()

    def stop(self) -> None:
        if self._program is not None:
            self._program.stop()
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


class SoundDevice:
    """The default output device, through the package sounddevice."""

    def __init__(self, sample_rate_hz: int, channels: int) -> None:
        import sounddevice

        try:
            self._stream: Any = sounddevice.RawOutputStream(sample_rate_hz, channels=channels, dtype="int16")
            self._stream.start()
        except sounddevice.PortAudioError as error:
            raise FileError(f"no audio device can be opened: {error}", fix="leave --play out") from error

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def finish(self) -> None:
        self._stream.stop()

    def stop(self) -> None:
        self._stream.abort()
        self._stream.close()
