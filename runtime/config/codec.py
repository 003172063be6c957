"""`[codec]` in bundle.toml: latents to audio, and audio to latents."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable

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

    window_frames: the most frames that one execute takes, without margins; it bounds the memory. align_frames: for
    codecs that work in groups of frames, counted from the first frame: what one execute takes begins at a multiple of
    it, and so do windows.
    """

    graph: str
    margin_frames: int = Field(default=0, ge=0)
    window_frames: int = Field(default=WINDOW_FRAMES, ge=1)
    align_frames: int = Field(default=1, ge=1, le=MAX_ALIGN_FRAMES)

    @model_validator(mode="after")
    def _check_align(self) -> Self:
        for name in ("margin_frames", "window_frames"):
            if getattr(self, name) % self.align_frames:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected a multiple of align_frames {self.align_frames}"
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
