"""How long generations are: their canvases and segments, and the frames and samples that options ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.deployment import Deployment
from runtime.pipeline.structure import parse_codes
from runtime.requests.options import GenerationOptions
from runtime.requests.segments import Segment, generation_lengths, loop_lengths, next_segment


@dataclass(frozen=True)
class Lengths:
    """The lengths of a deployment's generations. Any thread."""

    bundle: Bundle
    deployment: Deployment

    @cached_property
    def generations(self) -> tuple[int, ...]:
        """The values of T that generations have, in order, up to the canvas."""
        return generation_lengths(self.bundle.latents, self.deployment.shapes)

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """The values of T that loops have, in order, up to what the engines take."""
        return loop_lengths(self.bundle.latents, self.deployment.shapes)

    @property
    def canvas_frames(self) -> int:
        """T of a full generation: the bundle's canvas, or the largest T that the engines take where that is less."""
        return self.generations[-1]

    @cached_property
    def overlap_frames(self) -> int:
        """Frames that a segment keeps of the previous one."""
        multiple = self.bundle.latents.frame_multiple
        wanted = self.bundle.context.overlap_frames if self.bundle.context else self.canvas_frames // 4
        most = (self.canvas_frames - 1) // multiple * multiple
        return min(self.bundle.latents.round_up(wanted), most)

    def total_frames(self, options: GenerationOptions, source: Latents | None = None) -> int:
        """Frames of a whole generation, rounded up: enough for `seconds`, else the source's, its codes', else a canvas.

        A canvas is extended to the end of the notes. Raises RequestError for codes that the model does not have.
        """
        structure = self.bundle.structure
        if options.seconds is not None:
            frames = self._frames_for(options.seconds)
        elif source is not None:
            frames = len(source)
        elif options.codes is not None and structure is not None:
            frames = len(parse_codes(options.codes, structure.num_codes)) * structure.frames_per_code
        elif options.notes is not None:
            frames = max(self.canvas_frames, self._frames_for(max(note.end_s for note in options.notes)))
        else:
            frames = self.canvas_frames
        return self.bundle.latents.round_up(frames)

    def total_samples(self, options: GenerationOptions, source: Latents | None = None) -> int:
        """Samples of a whole generation: exactly `seconds`, else those of all its frames. 0 without a codec."""
        codec = self.bundle.codec
        if codec is None:
            return 0
        if options.seconds is not None:
            return max(1, round(options.seconds * codec.sample_rate_hz))
        return self.total_frames(options, source) * codec.hop_samples

    def next_segment(self, done_frames: int, total_frames: int | None) -> Segment | None:
        """The segment after the first `done_frames` frames; None after the last one."""
        return next_segment(done_frames, total_frames, lengths=self.generations, overlap_frames=self.overlap_frames)

    def _frames_for(self, seconds: float) -> int:
        codec, rate_hz = self.bundle.codec, self.bundle.latents.frame_rate_hz
        if codec is None:
            return math.ceil(seconds * rate_hz - 1e-6)
        return -(-round(seconds * codec.sample_rate_hz) // codec.hop_samples)
