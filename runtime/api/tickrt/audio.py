"""The result of a generation."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import MIX, StemFormat, complete_file, format_name, format_of, latents_bytes
from runtime.audio.metadata import GenerationMetadata, latents_tags
from runtime.base.errors import ConfigError, RequestError
from runtime.music.score import Note, Score
from runtime.requests.prompt_words import PromptMeaning, PromptWords

if TYPE_CHECKING:
    from runtime.pipeline.generation import LongGeneration


@dataclass(frozen=True, eq=False, repr=False)
class Audio:
    """One finished generation. In a notebook it is shown as a player.

    latents: float32 `[T, C]` at `frame_rate_hz`. seed: the one in use, given or drawn. options: those given and the
    seed, as plain values; `model.generate(**audio.options)` generates it again. bundle: the model's name and version.
    metadata: what its files say about it; None for files without.
    prompt_words: which words of the prompts the model understands (`understood`, `unknown`, `near` those that are
    written like unknown ones). meanings: what of each prompt is played; () where the model does not tell. is_estimated:
    its notes and stems are estimates, as far as they come from a source that was no result of the model.
    """

    latents: NDArray[np.float32]
    frame_rate_hz: float
    sample_rate_hz: int
    seed: int
    options: Mapping[str, Any]
    bundle: tuple[str, str]
    _pcm: NDArray[np.float32] | None
    metadata: GenerationMetadata | None = None
    prompt_words: PromptWords = field(default_factory=PromptWords)
    meanings: tuple[PromptMeaning, ...] = ()
    is_estimated: bool = False
    _generation: LongGeneration | None = None
    _score: Score | None = None

    @property
    def pcm(self) -> NDArray[np.float32]:
        """Samples, float32 `[n, channels]`, full scale -1..1. Raises ConfigError where the bundle has no codec."""
        if self._pcm is None:
            raise ConfigError(f"bundle {self.bundle[0]!r} makes latents, not audio", fix="use .latents")
        return self._pcm

    def __len__(self) -> int:
        """The number of samples; of frames where the bundle has no codec."""
        return len(self.latents if self._pcm is None else self._pcm)

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return len(self) / (self.frame_rate_hz if self._pcm is None else self.sample_rate_hz)

    @property
    def plan(self) -> Mapping[str, Any] | None:
        """What was planned, by name: tempo, key, sections, codes; None where nothing was."""
        return (self.metadata and self.metadata.plan) or None

    @property
    def score(self) -> Score:
        """Its notes by layer, and tempo, meter, key and sections as far as they are known.

        Raises RequestError where the model has no notes.
        """
        return self._made_by("notes").score(self.latents) if self._score is None else self._score

    @property
    def notes(self) -> list[Note]:
        """Its notes by start. Raises RequestError where the model has none."""
        return self.score.notes

    def midi(self, *, quantize: bool = False) -> bytes:
        """A Standard MIDI File with a track per layer. quantize: notes lie on the beat of its plan.

        Raises RequestError where the model has no notes, or no plan says where the beat is.
        """
        from runtime.music.midi_file import midi_bytes

        if self._score is not None:
            score = self._score.quantized() if quantize else self._score
        else:
            score = self._made_by("notes").score(self.latents, quantize=quantize)
        return midi_bytes(score, "" if self.metadata is None else self.metadata.to_tag("mid"))

    def stems(self) -> dict[str, NDArray[np.float32]]:
        """Its layers apart, float32 `[n, channels]` by name; their sum is `pcm`. The model has to be open.

        Of a model that extracts tracks they are these, and do not sum to it: each is generated, now. Raises
        RequestError where the model has no stems, EngineError.
        """
        chunks = list(self._made_by("layers").stems(self.latents))
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0] if name != MIX}

    def save_stems(self, folder: str | Path, format: StemFormat = "flac") -> None:
        """Write the mix and a file per stem, with 24 bits, its notes, and what it was made from.

        Raises RequestError as stems(), FileError where a file cannot be written.
        """
        from runtime.pipeline.stem_files import StemFiles, save_files

        save_files(Path(folder), StemFiles(self._made_by("layers"), self.latents, format_name(format)).finish())

    def _made_by(self, what: str) -> LongGeneration:
        if self._generation is None:
            raise RequestError(f"nothing tells the {what} of this audio", fix="use what generate() returned")
        return self._generation

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no model: neither notes nor stems."""
        return self.__dict__ | {"_generation": None}

    def save(self, path: str | Path, format: str | None = None) -> None:
        """Write a file; an existing one is replaced once the new one is complete.

        Suffixes: .wav .flac .ogg .opus .mp3 .pcm .raw, .mid for the notes, .safetensors for the latents;
        `format`, as for to_bytes(), comes before the suffix. The file contains the options and the seed, which
        `tickrt-generate --like` reads; that of dataclasses.replace(audio, metadata=None) does not. Raises RequestError
        for another suffix and for notes that the model does not tell, ConfigError where the bundle has no codec,
        FileError where the file cannot be written.
        """
        data = self.to_bytes(format_of(Path(path), format))
        with complete_file(Path(path)) as file:
            file.write(data)

    def to_bytes(self, format: str = "wav") -> bytes:
        """The content of a file: wav, flac, ogg (Opus), mp3, pcm (16 bits, no header), mid, or latents.

        Raises RequestError for another format, ConfigError where the bundle has no codec.
        """
        format = str(format_name(format))
        if format == "mid":
            return self.midi()
        tag = "" if self.metadata is None else self.metadata.to_tag(format)
        if format == "latents":
            return latents_bytes(self.latents, latents_tags(self.frame_rate_hz, tag))
        writer = AudioWriter(format, self.sample_rate_hz, self.pcm.shape[1], total_samples=len(self), metadata=tag)
        return writer.write(self.pcm) + writer.close()

    def __repr__(self) -> str:
        sound = "latents" if self._pcm is None else f"{self.sample_rate_hz} Hz, {self._pcm.shape[1]} channels"
        return f"<tickrt.Audio: {self.seconds:.2f} s, {sound}, seed {self.seed}>"

    def _repr_html_(self) -> str | None:
        """A player for notebooks, which contains the audio as FLAC; None where there is none."""
        if self._pcm is None:
            return None
        data = base64.b64encode(self.to_bytes("flac")).decode("ascii")
        return f'<audio controls src="data:audio/flac;base64,{data}"></audio>'
