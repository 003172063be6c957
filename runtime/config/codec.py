"""`[codec]` and `[structure]` in bundle.toml: latents to audio or to structure codes, and back."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from runtime.config.explain import FileName, TomlTable

# Frames and their channels, samples and theirs: latents `[T,C]`, audio `[N,channels]`.
Latents = NDArray[np.float32]
Pcm = NDArray[np.float32]
WINDOW_FRAMES = 256
MAX_ALIGN_FRAMES = 64


class CodecDecodeTensors(TomlTable):
    """Role -> tensor name. latents `[B,T,C]`, start_frame `[B]` int64 absolute frame of the first frame."""

    latents: str
    start_frame: str | None = None


class CodecEncodeTensors(TomlTable):
    """Role -> tensor name. audio `[B,channels,N*hop]` float32."""

    audio: str


class CodecDecodeOutputs(TomlTable):
    """Role -> tensor name. audio `[B,channels,T*hop]` float32."""

    audio: str


class CodecEncodeOutputs(TomlTable):
    """Role -> tensor name. latents `[B,N,C]` float32."""

    latents: str


class CodecGraphSpec(TomlTable):
    """One direction, in windows: one with `margin_frames` on both sides, trimmed, equals the whole.

    align_frames: for codecs that work in groups of frames, counted from the first frame: what one execute takes begins
    at a multiple of it, and so do windows. window_frames: the most frames that one execute takes, without margins; it
    bounds the memory. shortest_frames: the fewest that one execute takes, with margins.
    """

    graph: FileName
    margin_frames: int = Field(default=0, ge=0)
    align_frames: int = Field(default=1, ge=1, le=MAX_ALIGN_FRAMES)
    window_frames: int = Field(default_factory=lambda data: WINDOW_FRAMES - WINDOW_FRAMES % data["align_frames"], ge=1)
    shortest_frames: int = Field(default=1, ge=1)

    def missing(self, frames: int) -> int:
        """How many frames `frames` lack to be whole groups, and as many as one execute takes at least."""
        return max(frames, self.shortest_frames) - frames + -max(frames, self.shortest_frames) % self.align_frames

    @model_validator(mode="after")
    def _check_align(self) -> Self:
        for name in ("margin_frames", "window_frames"):
            if getattr(self, name) % self.align_frames:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected a multiple of align_frames {self.align_frames}"
                )
        # So a window is long enough, unless all that there is to convert is not.
        if self.margin_frames + self.align_frames < self.shortest_frames:
            raise ValueError(
                f"margin_frames is {self.margin_frames}: with a margin on one side, a window of {self.align_frames} is "
                f"shorter than shortest_frames {self.shortest_frames}"
            )
        return self


class CodecDecodeSpec(CodecGraphSpec):
    """Latents -> audio."""

    inputs: CodecDecodeTensors
    outputs: CodecDecodeOutputs


class CodecEncodeSpec(CodecGraphSpec):
    """Audio -> latents."""

    inputs: CodecEncodeTensors
    outputs: CodecEncodeOutputs


class CodecSpec(TomlTable):
    """Audio <-> latents: `hop_samples` samples per frame and channel. gain_db: what live audio is amplified by."""

    sample_rate_hz: int = Field(ge=1)
    channels: int = Field(ge=1, le=8)
    hop_samples: int = Field(ge=1)
    gain_db: float = Field(default=0.0, ge=-24.0, le=24.0)
    decode: CodecDecodeSpec
    encode: CodecEncodeSpec | None = None

    @property
    def halves(self) -> dict[str, CodecGraphSpec]:
        """By name those that there are."""
        return {"decode": self.decode} | ({} if self.encode is None else {"encode": self.encode})


class StructureEncodeInputs(TomlTable):
    """Role -> tensor name. latents `[B,T,C]`, T a multiple of `frames_per_code`."""

    latents: str


class StructureEncodeOutputs(TomlTable):
    """Role -> tensor name. codes `[B,T/frames_per_code]` int64."""

    codes: str


class StructureEncodeSpec(TomlTable):
    """Latents -> codes."""

    graph: FileName
    inputs: StructureEncodeInputs
    outputs: StructureEncodeOutputs


class StructureDecodeInputs(TomlTable):
    """Role -> tensor name. codes `[B,Q]` int64."""

    codes: str


class StructureDecodeOutputs(TomlTable):
    """Role -> tensor name. hints `[B,Q*frames_per_code,C]`."""

    hints: str


class StructureDecodeSpec(TomlTable):
    """Codes -> hints, which stand in the context where known latents would."""

    graph: FileName
    inputs: StructureDecodeInputs
    outputs: StructureDecodeOutputs


class StructureSpec(TomlTable):
    """What a cover keeps of its source. Codes are 0 to `num_codes` - 1, one per `frames_per_code` frames.

    Pieces of at most a canvas are encoded and decoded by themselves.
    """

    frames_per_code: int = Field(ge=1)
    num_codes: int = Field(ge=1)
    encode: StructureEncodeSpec
    decode: StructureDecodeSpec

    def codes_per_piece(self, canvas_frames: int) -> int:
        """The most codes that one execute takes."""
        return max(1, canvas_frames // self.frames_per_code)

    def num_codes_of(self, frames: int) -> int:
        """The number of codes of so many frames; the last one may reach beyond them."""
        return -(-frames // self.frames_per_code)
