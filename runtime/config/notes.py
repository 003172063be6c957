"""`[notes]` and `[stems]` in bundle.toml: which channels hold which MIDI key, and how the parts of a mix are found."""

from __future__ import annotations

from collections import Counter
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


MAX_NOTES, MAX_END_S = 16_384, 600.0  # of a request

Channel = Annotated[int, Field(ge=0)]
# MIDI has 16 channels, one of them for percussion.
MAX_PITCHED = 15
MidiNumber = Annotated[int, Field(ge=0, le=127)]


Share = Annotated[float, Field(ge=0, le=1)]


class EnvelopeSpec(TomlTable):
    """How an instrument's level runs in a note, frame by frame, as shares of the note's level.

    attack: its first ones. Then it falls by the factor `decay` towards the share `sustain` of the last one of them.
    release: factors of the note's last frames.
    """

    attack: tuple[Share, ...] = Field(min_length=1, max_length=64)
    decay: float = Field(gt=0, le=1)
    sustain: Share = 0.0
    release: tuple[Share, ...] = Field(max_length=64)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not max(self.attack) > 0.0:
            raise ValueError("attack is silent, expected a level above 0")
        return self


class InstrumentSpec(TomlTable):
    """An instrument of a layer. levels: those of the layer's timbre channels. program: General MIDI's, 0 to 127.

    envelope: of its notes; None: as they are generated.
    """

    name: str
    levels: tuple[float, ...]
    program: MidiNumber
    envelope: EnvelopeSpec | None = None


class NoteLayerSpec(TomlTable):
    """A layer: one channel for each of its MIDI keys, and where its instrument is written. name: also of its stem."""

    name: str = Field(pattern=STEM_NAME)
    channels: tuple[Channel, ...] = Field(min_length=1)
    keys: tuple[MidiNumber, ...] = Field(min_length=1)
    is_percussion: bool = False
    timbre_channels: tuple[Channel, ...] = ()
    instruments: tuple[InstrumentSpec, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.channels) != len(self.keys):
            raise ValueError(f"layer {self.name!r} has {len(self.channels)} channels and {len(self.keys)} keys")
        if self.name == "mix":
            raise ValueError("a layer is named 'mix', as all of them together are")
        for instrument in self.instruments:
            if len(instrument.levels) != len(self.timbre_channels):
                raise ValueError(
                    f"instrument {instrument.name!r} has {len(instrument.levels)} levels, layer {self.name!r} has "
                    f"{len(self.timbre_channels)} timbre_channels"
                )
        return self

    @property
    def all_channels(self) -> tuple[int, ...]:
        """Those of its notes and of its instrument."""
        return (*self.channels, *self.timbre_channels)


class NotesSpec(TomlTable):
    """The notes that latents hold. A channel's level is `(latent - silence) / scale`, with [context] silence.

    A note begins where a level comes above `on`, and ends where it falls below `off`. hint_delay: a note that is given
    as a hint is played so many frames before it, in the middle: hints come so much later than what they are to cause.
    """

    scale: float = Field(gt=0)
    on: float = Field(gt=0)
    off: float = Field(gt=0)
    hint_delay: int = Field(default=0, ge=0, le=16)
    layers: tuple[NoteLayerSpec, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.off >= self.on:
            raise ValueError(f"off is {self.off:g}, expected less than on, {self.on:g}")
        num_pitched = sum(not layer.is_percussion for layer in self.layers)
        if num_pitched > MAX_PITCHED:
            raise ValueError(f"there are {num_pitched} layers beside percussion, MIDI has channels for {MAX_PITCHED}")
        names = Counter(layer.name for layer in self.layers)
        channels = Counter(channel for layer in self.layers for channel in layer.all_channels)
        for what, counts in (("layer", names), ("channel", channels)):
            if twice := [value for value, count in counts.items() if count > 1]:
                raise ValueError(f"{what} {twice[0]!r} stands twice")
        return self

    @property
    def has_envelopes(self) -> bool:
        """Whether it says how the notes of an instrument run."""
        return any(each.envelope is not None for layer in self.layers for each in layer.instruments)

    @property
    def last_channel(self) -> int:
        """The highest channel that it names."""
        return max(channel for layer in self.layers for channel in layer.all_channels)
