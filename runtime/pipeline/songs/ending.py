"""How a generation of known length ends: its last notes ring out from a bar line on, its audio fades, or it is cut.

Letters: T frames, C latent channels, K keys of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.audio.finishing import FADE_OUT_S
from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.notes import EnvelopeSpec, NoteLayerSpec, NotesSpec
from runtime.music.envelopes import PLAIN, envelope_of, level_curve
from runtime.music.note_levels import OCTAVE, Phrase
from runtime.music.tempo import tempo_of
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.sources import keeps_end
from runtime.requests.options import GenerationOptions

# The least time that last notes ring, and that a fade takes where the whole is four times as long or more.
RING_S, FADE_S, FADE_SHARE = 1.6, 2.0, 0.25
# Of the time that notes ring, the last part fades, too; then there is silence.
RING_FADE_SHARE, SILENT_S, SILENT_SHARE = 0.35, 0.12, 0.05
# What is heard before the last notes says which layers play them, how loud, and of how many voices. In frames.
HEARD_FRAMES = 75
# The level of a note when it has rung out; drums lose this share of theirs in every frame.
RUNG_OUT, DRUMS_DECAY = 0.06, 0.4
# Frames that the notes before take to end, and that a note which has rung out takes to be silent.
RELEASE_FRAMES, LAST_FRAMES = 3, 4


class Ending(NamedTuple):
    """ring_frame: where the last notes begin; None: none do. fade_s, silent_s: of the audio, the end of all."""

    ring_frame: int | None = None
    fade_s: float = FADE_OUT_S
    silent_s: float = 0.0

    def last_notes(
        self,
        chord: tuple[int, ...] | None,
        phrases: Iterable[Phrase],
        spec: NotesSpec,
        silence: NDArray[np.float32],
        end_frame: int,
    ) -> LastNotes | None:
        """The notes that music of `end_frame` frames ends with; None where it ends otherwise. chord: None: no plan."""
        first = self.ring_frame
        if first is None or chord is None:
            return None
        kept = frozenset(phrase.layer for phrase in phrases if phrase.end_frame > first)
        return LastNotes(spec, silence, chord, first, end_frame, kept)


CUT = Ending()


def ending_of(
    options: GenerationOptions,
    inputs: GenerationInputs,
    planned: Mapping[str, Any],
    total_s: float,
    bundle: Bundle,
    *,
    has_tonic: bool,
) -> Ending:
    """How a generation of `total_s` seconds ends. planned: what its plan says, by option. has_tonic: a plan names one.

    Raises RequestError where the options ask for an ending that it cannot have.
    """
    wanted = options.ending
    if wanted == "cut":
        return CUT
    if keeps_end(options, inputs, bundle):
        if wanted != "auto":
            raise _refused(f"{wanted} has no effect", "the end is that of the source", "leave it out")
        return CUT
    tempo = tempo_of(options.model_copy(update=dict(planned)), bundle.options.bpm)
    bar_s = 0.0 if tempo is None else tempo.beats * 60.0 / tempo.bpm
    silent_s = min(SILENT_S, SILENT_SHARE * total_s)
    if wanted != "fade" and has_tonic and bundle.notes is not None and 0 < bar_s <= total_s - RING_S:
        ring_s = total_s - _last_line(bar_s, total_s - RING_S)
        frame = round((total_s - ring_s) * bundle.latents.frame_rate_hz)
        return Ending(frame, RING_FADE_SHARE * (ring_s - silent_s), silent_s)
    if wanted == "ring":
        why = "needs a bar and the time to ring" if has_tonic else "takes a plan that names a key, and notes"
        raise _refused("ring is not possible", why, "fade, or leave it out")
    if bundle.codec is None or not options.finish:
        if wanted == "fade":
            raise _refused("fade has no effect", "only audio that is finished fades", "leave it out")
        return CUT
    known_s = 0.0 if inputs.source is None else len(inputs.source) / bundle.latents.frame_rate_hz
    new_s = total_s - known_s if options.repaint else total_s
    least_s = min(FADE_S, FADE_SHARE * new_s)
    line_s = _last_line(bar_s, total_s - least_s) if bar_s else total_s - least_s
    # A bar that is much of the whole is no measure of its end.
    fade_s = total_s - line_s if total_s - line_s <= max(least_s, 2 * FADE_SHARE * new_s) else least_s
    return Ending(None, fade_s - silent_s, silent_s)


def _last_line(bar_s: float, before_s: float) -> float:
    return int(before_s / bar_s + 1e-6) * bar_s


def _refused(what: str, why: str, fix: str) -> RequestError:
    return RequestError(f"{what}: {why}", field="ending", fix=fix)


@dataclass
class LastNotes:
    """The notes of a tonic chord that ring out from `first_frame` to before `end_frame`, in place of all others.

    silence `[C]`. chord: pitch classes, the tonic first. kept: layers that stay as they are. One thread at a time.
    """

    spec: NotesSpec
    silence: NDArray[np.float32]
    chord: tuple[int, ...]
    first_frame: int
    end_frame: int
    kept: frozenset[str] = frozenset()
    _levels: dict[str, NDArray[np.float32]] | None = None  # `[end - first, K]` by layer

    def written(self, new: Latents, start_frame: int, before: Latents) -> Latents:
        """Latents `[n, C]` from `start_frame` on with these notes; before `[m, C]`: what was made up to there."""
        first = max(self.first_frame - start_frame, 0)
        if first >= len(new):
            return new
        if self._levels is None:
            self._levels = self._ringing(np.concatenate((before, new[:first]))[-HEARD_FRAMES:])
        made, begin = new.copy(), start_frame + first - self.first_frame
        for layer in self.spec.layers:
            if layer.name in self._levels:
                channels, levels = list(layer.channels), self._levels[layer.name][begin:][: len(new) - first]
                made[first:, channels] = self.silence[channels]
                made[first : first + len(levels), channels] += np.float32(self.spec.scale) * levels
        return made

    def _ringing(self, heard: Latents) -> dict[str, NDArray[np.float32]]:
        """The levels of every layer, by what was heard of it."""
        found = {}
        for layer in self.spec.layers:
            channels = list(layer.channels)
            levels = np.maximum((heard - self.silence)[:, channels] / self.spec.scale, 0.0)  # [n, K]
            if layer.name not in self.kept and len(levels):
                envelope = envelope_of(self.spec, layer, heard, self.silence)
                found[layer.name] = self._layer_levels(layer, levels.astype(np.float32), envelope)
        return found

    def _layer_levels(
        self, layer: NoteLayerSpec, heard: NDArray[np.float32], envelope: EnvelopeSpec | None
    ) -> NDArray[np.float32]:
        """envelope: of its notes; None: they ring out up to the end, drums fall at once."""
        frames = np.arange(self.end_frame - self.first_frame, dtype=np.float32)[:, None]
        levels: NDArray[np.float32] = heard[-1] * PLAIN.release[-1] ** (frames + 1) * (frames < RELEASE_FRAMES)
        if heard.max() <= self.spec.on:
            return levels
        count = max(len(frames) - LAST_FRAMES, 1)
        decay = DRUMS_DECAY if layer.is_percussion else 1.0 - RUNG_OUT ** (1.0 / count)
        ringing = (1.0 - decay) ** frames[:, 0] if envelope is None else level_curve(envelope, len(frames))
        curve = heard.max() * ringing * np.clip((count - frames[:, 0]) / LAST_FRAMES, 0.0, 1.0)
        for key in self._keys(layer, heard):
            levels[:, key] = np.maximum(levels[:, key], curve)
        return levels

    def _keys(self, layer: NoteLayerSpec, heard: NDArray[np.float32]) -> list[int]:
        """The places of the keys that ring: of as many voices as were heard, near to the last of them."""
        if layer.is_percussion:
            return [int(np.argmin(layer.keys))]
        sounding = heard[heard.max(axis=1) > self.spec.on]
        voices = int(np.median((sounding > sounding.max(axis=1, keepdims=True) / 2).sum(axis=1)))
        last = int(np.argmax(sounding[-1]))
        chord, keys = self.chord[: max(voices, 1)], list(enumerate(layer.keys))
        places = [[place for place, key in keys if key % OCTAVE == pitch] for pitch in chord]
        return [min(those, key=lambda place: abs(place - last)) for those in places if those]
