"""`[stems]` in bundle.toml: how the parts of a mix are found.

The layers of `[notes]` are decoded apart, and sum to the mix; or tracks are extracted from it, one generation for each.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable

# Stems are files of these names.
STEM_NAME = r"^[a-z0-9][a-z0-9 _-]*$"
TrackName = Annotated[str, Field(pattern=STEM_NAME, max_length=40)]


class StemsSpec(TomlTable):
    """A stem is the decode of latents in which all channels of other layers are silent, or an extracted track.

    saturation: what the codec does to the sum of the layers, as its last operation. "tanh": audio is `tanh(sum)`.
    tracks: what the task extract is asked for, in place of layers. Each is a generation; they do not sum to the mix.
    """

    saturation: Literal["none", "tanh"] = "none"
    tracks: tuple[TrackName, ...] = Field(default=(), max_length=16)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tracks and "saturation" in self.model_fields_set:
            raise ValueError("saturation says how layers sum; tracks do not sum")
        if len(set(self.tracks)) < len(self.tracks) or "mix" in self.tracks:
            raise ValueError("tracks: a name stands twice, or is 'mix', as all of them together are")
        return self
