"""The layers of a song, their registers and instruments, and where in the latents an instrument is written.

Every pitched layer has two timbre channels: its instrument is a point of a three by three grid of levels, the same in
all frames of a song. The drums have one, for their kit. A layer that is not there has level 0 in all of its channels.
"""

from typing import Final

from configs.demo.recipe.latents import FIRST_PITCH

LAYERS: Final = ("pad", "arp", "bass", "melody", "drums")

# Lowest and highest MIDI pitch of each pitched layer, both included.
REGISTERS: Final[dict[str, tuple[int, int]]] = {
    "bass": (36, 47),
    "pad": (48, 60),
    "arp": (61, 73),
    "melody": (74, 87),
}

# The order is part of the trained model: an instrument's place is its point on the grid.
INSTRUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "bass": ("electric bass", "upright bass", "synth bass", "sub bass"),
    "pad": ("piano", "electric piano", "organ", "strings", "choir", "synth", "brass", "guitar"),
    "arp": ("piano", "electric piano", "guitar", "harp", "bells", "marimba", "synth", "pizzicato"),
    "melody": ("piano", "flute", "violin", "trumpet", "saxophone", "synth", "bells", "guitar", "whistle"),
    "drums": ("acoustic kit", "electronic kit", "brushes", "lo-fi kit"),
}

# General MIDI's programs of instruments, counted from 0; those of kits are Roland's GS.
PROGRAMS: Final[dict[str, int]] = {
    "electric bass": 33, "upright bass": 32, "synth bass": 38, "sub bass": 39,
    "piano": 0, "electric piano": 4, "organ": 16, "strings": 48, "choir": 52, "synth": 81, "brass": 61, "guitar": 24,
    "harp": 46, "bells": 14, "marimba": 12, "pizzicato": 45,
    "flute": 73, "violin": 40, "trumpet": 56, "saxophone": 65, "whistle": 78,
    "acoustic kit": 0, "electronic kit": 24, "brushes": 40, "lo-fi kit": 8,
}  # fmt: skip
PAD_SYNTH: Final = 89
DRUM_KEYS: Final = (36, 38, 42)  # kick, snare, closed hat

TIMBRE_CHANNELS: Final[dict[str, tuple[int, ...]]] = {
    "bass": (55, 56),
    "pad": (57, 58),
    "arp": (59, 60),
    "melody": (61, 62),
    "drums": (63,),
}

_GRID: Final = (0.3, 0.65, 1.0)
_KIT_LEVELS: Final = (0.25, 0.5, 0.75, 1.0)


def timbre_levels(layer: str, instrument: str) -> tuple[float, ...]:
    """Levels of a layer's timbre channels for one of its instruments. Raises ValueError for another one."""
    index = INSTRUMENTS[layer].index(instrument)
    return (_KIT_LEVELS[index],) if layer == "drums" else (_GRID[index % 3], _GRID[index // 3])


def pitch_channels(layer: str) -> range:
    """The latent channels in which a layer's notes are written."""
    if layer == "drums":
        return range(52, 55)
    low, high = REGISTERS[layer]
    return range(low - FIRST_PITCH, high + 1 - FIRST_PITCH)


def channels_of(layer: str) -> tuple[int, ...]:
    """All latent channels of a layer; no two layers share one."""
    return (*pitch_channels(layer), *TIMBRE_CHANNELS[layer])


def keys_of(layer: str) -> tuple[int, ...]:
    """The MIDI keys of a layer's pitch channels, in their order."""
    return DRUM_KEYS if layer == "drums" else tuple(FIRST_PITCH + channel for channel in pitch_channels(layer))


def program_of(layer: str, instrument: str) -> int:
    """General MIDI's program of a layer's instrument."""
    return PAD_SYNTH if (layer, instrument) == ("pad", "synth") else PROGRAMS[instrument]
