"""`[stems]` in bundle.toml: the layers of `[notes]` can be decoded apart, and their sum is the mix."""

from __future__ import annotations

from typing import Literal

from runtime.config.explain import TomlTable


class StemsSpec(TomlTable):
    """A stem is the decode of latents in which all channels of other layers are silent.

    saturation: what the codec does to the sum of the layers, as its last operation. "tanh": audio is `tanh(sum)`.
    """

    saturation: Literal["none", "tanh"] = "none"
