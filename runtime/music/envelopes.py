"""How notes run: the curve of an instrument, and generated notes that are given it.

Letters: T frames, C latent channels, K keys of all layers that have envelopes, I instruments of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Latents
from runtime.config.notes import EnvelopeSpec, NoteLayerSpec, NotesSpec
from runtime.music.tracker import DIP, RECOVERY, VELOCITY_FRAMES

# Of notes whose instrument is not known; and of hints, which say when a note sounds: how it runs follows from what
# plays it.
PLAIN = EnvelopeSpec(attack=(1.0, 0.92), decay=0.965, release=(0.35,))
HELD = EnvelopeSpec(attack=(1.0,), decay=1.0, sustain=1.0, release=(0.35,))
# A curve is known for so many frames, then it goes on as it ends.
CURVE_FRAMES = 1024
# A note that is held has rung out at this share of its level: it is struck again on the next beat.
RUNG_OUT = 0.15
# So many frames say what sounds at their end: what has sounded for longer is known by its level.
HEARD_FRAMES = 128
# Instruments that fall no further than this share are steady then.
STEADY = 0.05
# A level that rises by so much in a frame is that of a note that begins.
BEGINNING = 0.2
# What sounds is not given less than this share of `off`; it swells by this share of `on` a frame.
HEARD, SWELL = 1.02, 0.25
# What a loop holds over its seam, for so many frames by then, is struck again there, but for instruments that have not
# fallen below a share of their level after 10 s.
LONG_FRAMES, SUSTAINED_FRAMES, SUSTAINED = 12, 250, 0.25
# It is held while it is generated with this share of its level.
IS_HELD = 0.6


def level_curve(envelope: EnvelopeSpec, num_frames: int) -> NDArray[np.float32]:
    """`[num_frames]`: the level of a note of full velocity, with its end."""
    curve = _held_curve(envelope, num_frames)
    released = envelope.release[: num_frames - 1]
    if released:
        curve[num_frames - len(released) :] *= released
    return curve.astype(np.float32)


def instruments_of(layer: NoteLayerSpec, timbres: NDArray[np.float32]) -> NDArray[np.int64]:
    """The place of the instrument that is nearest to each timbre `[n, timbre channels]`, in levels; `[n]`."""
    points = np.array([each.levels for each in layer.instruments], np.float32)  # [I, timbre channels]
    nearest: NDArray[np.int64] = np.argmin(np.square(timbres[:, None] - points).sum(axis=2), axis=1)
    return nearest


def envelope_of(spec: NotesSpec, layer: NoteLayerSpec, latents: Latents, silence: Latents) -> EnvelopeSpec | None:
    """That of the instrument which a layer of latents `[n, C]` plays; None where nothing tells. silence `[C]`."""
    channels = list(layer.timbre_channels)
    if not len(latents) or not layer.instruments:
        return None
    timbre = np.median((latents - silence)[:, channels], axis=0) / np.float32(spec.scale)
    return layer.instruments[int(instruments_of(layer, timbre[None])[0])].envelope


def _held_curve(envelope: EnvelopeSpec, num_frames: int) -> NDArray[np.float64]:
    """`[num_frames]`: without an end."""
    attack, sustain = envelope.attack, envelope.sustain
    frames = np.maximum(np.arange(num_frames) - len(attack) + 1, 0)
    curve = attack[-1] * (sustain + (1.0 - sustain) * envelope.decay**frames)
    curve[: len(attack)] = attack[:num_frames]
    return curve


class _Layout(NamedTuple):
    """What a bundle's envelopes are on its keys.

    channels, layer_of `[K]`: of each key; sounding: the channels of all keys. layers: with the row of the first
    instrument of each. falls `[I, CURVE_FRAMES]`: levels from the highest one of a note on, as its shares. rise_frames
    `[I]`: up to that; pause_frames `[I]`: the levels of slow attacks are not even.
    """

    channels: NDArray[np.int64]
    layer_of: NDArray[np.int64]
    sounding: list[int]
    layers: tuple[tuple[NoteLayerSpec, int], ...]
    falls: NDArray[np.float32]
    rise_frames: NDArray[np.int64]
    pause_frames: NDArray[np.int64]


@lru_cache(maxsize=8)
def _layout(spec: NotesSpec) -> _Layout:
    layers = list[tuple[NoteLayerSpec, int]]()
    falls, highest = list[NDArray[np.float64]](), list[int]()
    for layer in spec.layers:
        if layer.is_percussion or not any(each.envelope for each in layer.instruments):
            continue
        layers.append((layer, len(falls)))
        for instrument in layer.instruments:
            envelope = instrument.envelope or HELD
            highest.append(int(np.argmax(envelope.attack)))
            curve = _held_curve(envelope, CURVE_FRAMES + highest[-1])[highest[-1] :]
            falls.append(curve / curve[0])
    return _Layout(
        np.array([channel for layer, _ in layers for channel in layer.channels]),
        np.repeat(np.arange(len(layers)), [len(layer.channels) for layer, _ in layers]),
        [channel for layer in spec.layers for channel in layer.channels],
        tuple(layers),
        np.array(falls, np.float32),
        np.maximum(np.array(highest) + 2, VELOCITY_FRAMES),
        np.where(np.array(highest) > 1, 2, 1),
    )


class Marks(NamedTuple):
    """What holds for frames of latents.

    beats `[T]`: where held notes may be struck again; None: where others begin. given `[T, C]`: where the notes are
    those of a caller, which are not struck again. fixed `[T, C]`: what stays as it is.
    """

    beats: NDArray[np.bool_] | None = None
    given: NDArray[np.bool_] | None = None
    fixed: NDArray[np.bool_] | None = None

    def part(self, first: int, last: int | None = None) -> Marks:
        """Those of some of the frames."""
        return Marks(*(None if values is None else values[first:last] for values in self))


NO_MARKS = Marks()


class Breath:
    """Gives the notes of latents, which arrive in pieces, in order, of any length, the envelopes of their instruments.

    A note is as loud as it is generated up to its highest level; then it falls, at least as its instrument does. One
    that has rung out while it is held is struck again on a beat. One thread at a time. silence `[C]`.
    """

    def __init__(self, spec: NotesSpec, silence: Latents) -> None:
        self._spec, self._silence, self._layout = spec, silence, _layout(spec)
        self._last: Latents | None = silence  # the frame before, as it is generated, [C]; None: not known
        size = len(self._layout.channels)
        self._row = np.zeros(size, np.int64)  # of the instruments that play; all of these are [K]
        self._is_on = np.zeros(size, bool)
        # Of the note that sounds: its highest level, the frames since then and since its beginning.
        self._peak = np.zeros(size, np.float32)
        self._age, self._since = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._top = np.zeros(size, np.float32)  # its highest level, as it is generated
        # The last two levels, as they are generated, and as they are heard.
        silent = np.zeros(size, np.float32)
        self._before, self._heard = (silent, silent), (silent, silent)
        self._rung_out = RUNG_OUT
        self._least, self._swell = np.float32(HEARD * spec.off), np.float32(SWELL * spec.on)

    def hear(self, latents: Latents) -> None:
        """Go on behind latents `[T, C]` that have their envelopes; what sounds in their first frame began long before.

        How they were generated is not known: a note that sounds is struck in the next frame only where that is a beat.
        """
        if not len(latents):
            return
        self.shaped(latents[:1])
        held = self._layout.falls[self._row, -1]  # [K]
        is_steady = self._is_on & (held > STEADY)
        self._peak[is_steady] /= held[is_steady]
        self._age[is_steady] = CURVE_FRAMES - 1
        self._since[:] = CURVE_FRAMES
        self.shaped(latents[1:], Marks(fixed=np.ones(latents[1:].shape, bool)))
        unknown = np.full_like(self._peak, np.inf)
        self._top[:], self._before, self._last = self._peak, (unknown, unknown), None
        self._rung_out = DIP

    def repeat(self) -> None:
        """Go on with the first of the latents that it has had, as of a loop.

        What is held over the seam is struck there again where that is a beat; what sustains keeps its level.
        """
        falls = self._layout.falls
        fall, is_long = falls[self._row, self._age], self._is_on & (self._since > LONG_FRAMES)
        sustains = falls[self._row, SUSTAINED_FRAMES] > SUSTAINED
        steady = is_long & sustains
        self._peak[steady] *= fall[steady] / falls[self._row, -1][steady]  # of what rings out the last one may be 0
        self._age[steady | (is_long & (fall < DIP))] = CURVE_FRAMES - 1

    def shaped(self, latents: Latents, marks: Marks = NO_MARKS) -> Latents:
        """The next latents `[T, C]`."""
        if not len(latents):
            return latents
        channels, scale = self._layout.channels, np.float32(self._spec.scale)
        silence = self._silence[channels]
        levels = (latents[:, channels] - silence) / scale  # [T, K]
        beats = self._begin(latents) if marks.beats is None else marks.beats
        self._last = latents[-1].copy()
        strikes = np.repeat(beats[:, None], levels.shape[1], axis=1)
        if marks.given is not None:
            strikes &= ~marks.given[:, channels]
        may_change = np.ones(levels.shape, bool) if marks.fixed is None else ~marks.fixed[:, channels]
        rows = self._rows(latents)
        made = self._heard_levels(levels, rows, strikes, may_change)
        self._row = rows[-1]
        shaped = latents.copy()
        shaped[:, channels] = np.where(made < levels, silence + scale * made, latents[:, channels])
        return shaped

    def _begin(self, latents: Latents) -> NDArray[np.bool_]:
        """`[T]`: whether a level rises as that of a note that begins."""
        last = latents[0] if self._last is None else self._last
        levels = np.concatenate((last[None], latents))[:, self._layout.sounding]
        rises: NDArray[np.bool_] = np.diff(levels, axis=0).max(axis=1) > BEGINNING * self._spec.scale
        return rises

    def _rows(self, latents: Latents) -> NDArray[np.int64]:
        """The row of each key's instrument, `[T, K]`."""
        levels = (latents - self._silence) / np.float32(self._spec.scale)
        rows = [
            first + instruments_of(layer, levels[:, list(layer.timbre_channels)])
            for layer, first in self._layout.layers
        ]
        return np.stack(rows, axis=1)[:, self._layout.layer_of]

    def _heard_levels(
        self,
        levels: NDArray[np.float32],
        rows: NDArray[np.int64],
        strikes: NDArray[np.bool_],
        may_change: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """The levels `[T, K]` with their envelopes. rows: of instruments; may_change: where levels may fall; `[T, K]`.

        One frame after the other. Its time is that of calls of NumPy: they write into arrays that are there already.
        """
        spec, layout = self._spec, self._layout
        is_on, peak, age, since, top = self._is_on, self._peak, self._age, self._since, self._top
        raw, heard = np.stack((*self._before, *levels)), np.stack((*self._heard, *levels))  # [2 + T, K]
        rises, falls = levels > RECOVERY * np.minimum(raw[:-2], raw[1:-1]), layout.falls.ravel()
        size = levels.shape[1]
        ones, last, zeros = np.ones(size, np.int64), np.full(size, CURVE_FRAMES - 1), np.zeros(size, np.int64)
        recovery, swell, full = np.full((3, size), [[RECOVERY], [self._swell], [1.0]], np.float32)
        none, least = np.zeros(size, np.float32), np.full(size, self._least)
        mark, again, rising = np.empty((3, size), bool)
        share, most = np.empty((2, size), np.float32)
        frames = zip(
            levels, levels >= spec.off, levels > spec.on, rises, rows * CURVE_FRAMES,
            layout.rise_frames[rows], layout.pause_frames[rows], strikes, np.logical_or.reduce(strikes, axis=1),
            may_change, heard, heard[1:], heard[2:], strict=False,
        )  # fmt: skip
        for level, sounds, may, recovers, start, rise, pause, strike, may_strike, changes, older, old, new in frames:
            is_on &= sounds
            age += ones
            np.minimum(age, last, out=age)
            since += ones
            fall = falls.take(start + age)
            np.minimum(older, old, out=most)
            most *= recovery
            np.multiply(peak, fall, share)
            np.minimum(level, share, out=share)
            np.greater(share, most, again)
            again |= recovers
            again &= np.greater_equal(since, rise, mark)
            if may_strike:
                again |= strike & (level > IS_HELD * top) & (fall < self._rung_out)
            self._rung_out = RUNG_OUT
            again |= np.logical_not(is_on, mark)
            begins = np.logical_and(again, may, again)
            is_on |= begins
            np.putmask(since, begins, zeros)
            np.putmask(top, begins, none)
            np.maximum(top, level, out=top)
            np.less(since, rise, rising)
            rising &= np.less_equal(age, pause, mark)
            np.greater(level, peak, mark)
            mark &= rising
            mark |= begins
            np.putmask(peak, mark, level)
            np.putmask(age, mark, zeros)
            np.putmask(fall, mark, full)
            np.multiply(peak, fall, most)
            np.maximum(most, least, out=most)
            # A note that is held is heard as one, however it falls; it swells, but not so fast as it would be struck.
            np.add(old, swell, share)
            np.minimum(most, share, out=share)
            rising |= begins
            np.putmask(share, rising, most)
            np.minimum(level, share, out=share)
            np.putmask(new, np.logical_and(is_on, changes, mark), share)
        self._before, self._heard = (raw[-2], raw[-1]), (heard[-2], heard[-1])
        return heard[2:]
