"""Level curves of the instruments at 25 frames per second: attack, decay, tremolo, release, ring."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray

MAX_FRAMES: Final = 512


@dataclass(frozen=True)
class Envelope:
    """How an instrument's level runs in a note.

    attack: levels of its first frames. decay: factor per frame after them, towards the share `floor` of the level.
    release: factors of its last frames. ring_frames: how long it sounds after the note's end.
    """

    attack: tuple[float, ...] = (1.0,)
    decay: float = 1.0
    floor: float = 0.0
    release: tuple[float, ...] = (0.35,)
    ring_frames: int = 0
    tremolo_hz: float = 0.0
    tremolo: float = 0.0


ENVELOPES: Final[dict[str, Envelope]] = {
    "piano": Envelope((1.0, 0.92), 0.965, 0.0, (0.3,), 2),
    "electric piano": Envelope((0.95, 0.9), 0.975, 0.0, (0.5, 0.2), 2, 4.2, 0.06),
    "guitar": Envelope((1.0, 0.85), 0.95, 0.0, (0.35,), 3),
    "organ": Envelope((0.8, 0.85), 1.0, 1.0, (0.3,)),
    "strings": Envelope((0.3, 0.55, 0.75, 0.9), 0.998, 0.0, (0.6, 0.25), 2),
    "choir": Envelope((0.2, 0.4, 0.6, 0.75, 0.88), 0.998, 0.0, (0.65, 0.4, 0.2), 3),
    "synth": Envelope((0.75, 0.9), 0.985, 0.6, (0.4,)),
    "brass": Envelope((0.55, 0.95, 1.0), 0.985, 0.75, (0.3,)),
    "harp": Envelope((1.0, 0.85), 0.9, 0.0, (0.5,), 14),
    "bells": Envelope((1.0, 0.8), 0.93, 0.0, (0.6,), 25),
    "marimba": Envelope((1.0, 0.5), 0.62, 0.0, (0.5,), 2),
    "pizzicato": Envelope((0.95, 0.4), 0.55, 0.0, (0.5,)),
    "flute": Envelope((0.6, 0.85, 0.9), 0.995, 0.0, (0.4,)),
    "violin": Envelope((0.5, 0.75, 0.9), 1.0, 1.0, (0.5, 0.25), 1),
    "trumpet": Envelope((0.7, 1.0), 0.985, 0.7, (0.3,)),
    "saxophone": Envelope((0.6, 0.9, 1.0), 0.985, 0.65, (0.4,)),
    "whistle": Envelope((0.7, 0.9), 1.0, 1.0, (0.35,)),
    "electric bass": Envelope((1.0, 0.92), 0.965, 0.2, (0.3,)),
    "upright bass": Envelope((1.0, 0.8), 0.92, 0.0, (0.35,), 1),
    "synth bass": Envelope((1.0, 0.85), 0.985, 0.6, (0.25,)),
    "sub bass": Envelope((0.8, 1.0), 0.995, 0.5, (0.45, 0.2), 1),
    "kick": Envelope((1.0, 0.3), release=()),
    "snare": Envelope((1.0, 0.35), release=()),
    "hat": Envelope((0.8, 0.2), release=()),
}
ENVELOPE_INDEX: Final = {name: index for index, name in enumerate(ENVELOPES)}


def level_curve(envelope: Envelope) -> FloatArray:
    """The level of a note held for ever, f32 `[MAX_FRAMES]`."""
    frames = np.arange(MAX_FRAMES)
    held = np.maximum(frames - len(envelope.attack) + 1, 0)
    curve = envelope.attack[-1] * (envelope.floor + (1.0 - envelope.floor) * envelope.decay**held)
    curve[: len(envelope.attack)] = envelope.attack
    wave = 0.5 - 0.5 * np.cos(2.0 * np.pi * envelope.tremolo_hz * frames / FRAME_RATE_HZ)
    return np.asarray(curve * (1.0 - envelope.tremolo * wave), np.float32)


CURVES: Final = np.stack([level_curve(envelope) for envelope in ENVELOPES.values()])  # [I, MAX_FRAMES]
RELEASE_FRAMES: Final = 3
# Factor of a note's level by the frames that are left of it, 0 = its last; [I, RELEASE_FRAMES + 1], the last is 1.
RELEASES: Final = np.array(
    [[*(*envelope.release[::-1], 1.0, 1.0, 1.0)[:RELEASE_FRAMES], 1.0] for envelope in ENVELOPES.values()], np.float32
)
RINGS: Final = np.array([envelope.ring_frames for envelope in ENVELOPES.values()])
