"""`[structure]` in bundle.toml: latents to structure codes, and codes to hints for the context of covers."""

from __future__ import annotations

from pydantic import Field

from runtime.config.explain import FileName, TomlTable


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
