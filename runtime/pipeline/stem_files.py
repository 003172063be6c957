"""A generation's stems as files: the mix, a file per layer, its notes, and what it was made from."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import FORMATS, StemFormat, complete_file
from runtime.audio.metadata import GenerationMetadata, ascii_json
from runtime.base.errors import FileError
from runtime.base.files import expanded
from runtime.config.codec import Latents, Pcm
from runtime.music.midi_file import midi_bytes
from runtime.music.score import Score

STEM_BITS: Final = 24
# A fixed date: the same generation gives the same bytes.
DATE = (1980, 1, 1, 0, 0, 0)


class StemSource(Protocol):
    """What has stems: a LongGeneration, or the passage of a live session."""

    @property
    def sample_rate_hz(self) -> int:
        """Samples per second."""

    @property
    def total_samples(self) -> int | None:
        """Its length."""

    @property
    def num_stems(self) -> int:
        """How many files of audio there are."""

    @property
    def has_notes(self) -> bool:
        """Whether score() has them."""

    @property
    def has_exact_stems(self) -> bool:
        """Whether they sum to the mix."""

    @property
    def is_estimated(self) -> bool:
        """Whether they, and notes, are estimates, as far as they come from encoded audio."""

    def metadata(self) -> GenerationMetadata:
        """What it was made from."""

    def score(self, latents: Latents) -> Score:
        """Its notes."""

    def stems(self, latents: Latents, tracks: Mapping[str, Latents] | None = None) -> Iterator[dict[str, Pcm]]:
        """PCM `[n, channels]` of the mix and of each stem, in windows."""


class StemFiles:
    """Writes "mix.flac" and a file per stem with 24 bits, "notes.mid" where there are notes, and "options.json".

    latents: all of the generation's `[T, C]`. metadata: the files say what they were made from. tracks: as of
    LongGeneration.stems(). Stems above full scale are clipped, and the options then say that they are not exact. One
    thread at a time. Raises RequestError where the bundle has no [stems], EngineError.
    """

    def __init__(
        self,
        generation: StemSource,
        latents: Latents,
        format: StemFormat = "flac",
        *,
        metadata: bool = True,
        tracks: Mapping[str, Latents] | None = None,
    ) -> None:
        self._generation, self._latents, self._format, self._metadata = generation, latents, format, metadata
        self._chunks = generation.stems(latents, tracks)
        self._writers: dict[str, AudioWriter] = {}
        self._encoded: dict[str, list[bytes]] = {}
        self._is_clipped = False

    def advance(self) -> bool:
        """Decode and encode one more window; False behind the last one."""
        if (chunk := next(self._chunks, None)) is None:
            return False
        made = self._generation
        tag = made.metadata().to_tag(self._format) if self._metadata and not self._writers else ""
        for name, pcm in chunk.items():
            if name not in self._writers:
                rate_hz, samples = made.sample_rate_hz, made.total_samples
                self._writers[name] = AudioWriter(
                    self._format, rate_hz, pcm.shape[1], total_samples=samples, metadata=tag, bits=STEM_BITS
                )
            # A layer may be louder than all together.
            self._is_clipped |= bool(np.abs(pcm).max(initial=0.0) > 1.0)
            self._encoded.setdefault(name, []).append(self._writers[name].write(pcm))
        return True

    def finish(self) -> dict[str, bytes]:
        """The content of all files by name."""
        while self.advance():
            pass
        suffix, made = FORMATS[self._format].suffix, self._generation.metadata()
        files = {
            f"{name}{suffix}": b"".join([*parts, self._writers[name].close()]) for name, parts in self._encoded.items()
        }
        if self._generation.has_notes:
            tag = made.to_tag("mid") if self._metadata else ""
            files["notes.mid"] = midi_bytes(self._generation.score(self._latents), tag)
        said = made.model_dump(exclude_defaults=True) if self._metadata else {"model": made.model}
        is_exact = self._generation.has_exact_stems and not self._is_clipped
        about = {"exact": is_exact, "estimated": self._generation.is_estimated}
        files["options.json"] = ascii_json({**said, **about}).encode()
        return files


def stems_bytes(generation: StemSource, channels: int) -> int:
    """Memory for the archive of a generation's stems: its files, and all of them together."""
    return 2 * generation.num_stems * channels * STEM_BITS // 8 * (generation.total_samples or 0)


def save_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made where it is not there. Raises FileError."""
    folder = expanded(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} is no folder that can be written: {error.strerror}") from error
    for name, data in files.items():
        with complete_file(folder / name) as file:
            file.write(data)


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """Files as a zip archive, not compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), data)
    return buffer.getvalue()
