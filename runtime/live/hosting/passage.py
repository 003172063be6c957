"""What a live session plays, as its stems: one pass of a loop, or what was played last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from runtime.audio.metadata import GenerationMetadata
from runtime.audio.stems import limited_stems
from runtime.config.codec import Latents, Pcm
from runtime.live.playback.canvas import PlayedPart
from runtime.music.score import Score
from runtime.music.tracker import score_of

if TYPE_CHECKING:
    from runtime.pipeline.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Passage:
    """What StemFiles takes of a live session. Its stems sum to what was heard, without the bundle's `gain_db`.

    The bundle has [stems] whose stems are layers.
    """

    pipeline: Pipeline
    played: PlayedPart

    @property
    def is_estimated(self) -> bool:
        """Whether its notes and stems are estimates, as far as they come from latents that were encoded from audio."""
        return self.played.is_estimated

    @property
    def has_exact_stems(self) -> bool:
        """Whether they sum to the mix."""
        return True

    @property
    def has_notes(self) -> bool:
        """Whether score() has them."""
        return True

    @property
    def sample_rate_hz(self) -> int:
        """Samples per second."""
        assert self.pipeline.bundle.codec is not None
        return self.pipeline.bundle.codec.sample_rate_hz

    @property
    def total_samples(self) -> int:
        """Its length; whole frames."""
        assert self.pipeline.bundle.codec is not None
        return self.played.frames * self.pipeline.bundle.codec.hop_samples

    @property
    def num_stems(self) -> int:
        """Its mix and its layers."""
        assert self.pipeline.bundle.notes is not None
        return 1 + len(self.pipeline.bundle.notes.layers)

    @cached_property
    def latents(self) -> Latents:
        """Its `[T, C]`."""
        return self._heard(self.played.rows())

    def _heard(self, latents: Latents) -> Latents:
        """Latents `[n, C]` with the levels of single layers."""
        bundle = self.pipeline.bundle
        assert bundle.notes is not None
        return self.played.canvas.moods.with_levels(latents, bundle.notes, bundle.silence(1)[0])

    def metadata(self) -> GenerationMetadata:
        """Which model has made it."""
        bundle, identity = self.pipeline.bundle, asdict(self.pipeline.identity)
        return GenerationMetadata(model=bundle.name, model_version=bundle.version, **identity, options={})

    def score(self, latents: Latents) -> Score:
        """The notes of its latents `[T, C]`, with its tempo where that is known."""
        tempo = self.played.tempo
        said = {} if tempo is None else {"bpm": tempo.bpm, "time_signature": tempo.beats}
        return replace(score_of(self.pipeline.bundle, latents, said), is_estimated=self.is_estimated)

    def stems(self, latents: Latents, tracks: Mapping[str, Latents] | None = None) -> Iterator[dict[str, Pcm]]:
        """Its audio `[n, channels]` as sessions send it, but for their gain, and that of its layers, in windows.

        latents: its own. A loop's first window knows what comes before it, which is its end. Raises EngineError.
        """
        codec = self.pipeline.codec
        assert codec is not None
        align = codec.spec.decode.align_frames
        before, values, start_frame = self.played.with_margins(codec.margin_frames, align)
        yield from limited_stems(codec, self.pipeline.bundle, self._heard(values), start_frame, before, len(latents))
