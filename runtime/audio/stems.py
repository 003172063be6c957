"""Stems: the layers of a generation apart, which sum to its mix; or tracks that were extracted from it.

A codec that sums its layers and then saturates gives `mix = f(d_1 + ... + d_L)`. From the decode `f(d_l)` of each layer
follows `d_l`, and a stem is `d_l f(s) / s` with `s = d_1 + ... + d_L`: stems sum to the mix, sample by sample. In
float32 this is exact where no layer alone is within 1e-3 of full scale. Each stem, an extracted track too, has the gain
with which the mix is finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from runtime.audio.codec import Codec
from runtime.audio.finishing import soft_limited
from runtime.audio.formats import MIX
from runtime.audio.window_decoder import AudioDecoder
from runtime.audio.windows import Window
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents, Pcm

# Audio this near to full scale has no inverse in float32.
LARGEST = 1.0 - 2**-24
# The ratio of a tanh to its argument is 1 below this, as exactly as float64 has it.
LINEAR = 1e-8
WINDOW_FRAMES = 64


class StemDecoder:
    """Decodes the windows of one generation, in order, into its mix and its stems. One thread at a time.

    decoder: that of the generation, from its first window on. The bundle has [stems]. tracks: all latents `[T, C]` of
    each extracted track; {} where the bundle's stems are layers.
    """

    def __init__(self, decoder: AudioDecoder, codec: Codec, bundle: Bundle, tracks: Mapping[str, Latents] = {}) -> None:
        assert bundle.stems is not None
        self._decoder, self._codec, self._bundle, self._tracks = decoder, codec, bundle, tracks
        self._saturation = bundle.stems.saturation

    def decode(self, window: Window) -> dict[str, Pcm]:
        """The next window's PCM `[n, channels]` float32 of MIX and of each stem. Raises EngineError, RequestError."""
        layers = self._parts(window)
        undivided = self._codec.start(window) if self._tracks else None
        decoding = {name: self._codec.start(replace(window, values=values)) for name, values in layers.items()}
        mix = self._decoder.decode(window, self._codec)
        # Until workers of the codec have decoded them.
        decoded = [each.result() for each in decoding.values()]
        parts = decoded if self._tracks else summing(decoded, self._saturation)
        if (finisher := self._decoder.finisher) is not None:
            whole = np.asarray(np.sum(parts, axis=0), np.float32) if undivided is None else undivided.result()
            parts = finisher.finish_parts(whole, window.start_frame * self._codec.hop_samples, parts)
        trimmed = (self._codec.trimmed(part, window)[: len(mix)] for part in parts)
        return {MIX: mix, **dict(zip(decoding, trimmed, strict=True))}

    def _parts(self, window: Window) -> dict[str, Latents]:
        """The latents of each stem, `[margins + frames, C]`, that are decoded for a window."""
        start, end = window.start_frame, window.start_frame + len(window.values)
        tracks = {name: latents[start:end] for name, latents in self._tracks.items()}
        return tracks or layer_latents(self._bundle, window.values)


def limited_stems(
    codec: Codec, bundle: Bundle, latents: Latents, start_frame: int, before: int, frames: int
) -> Iterator[dict[str, Pcm]]:
    """PCM `[n, channels]` of MIX and of each layer, in windows, with the limit of live sessions, without their gain.

    A layer may be louder than all together: the gain would take it above full scale.
    latents `[before + frames + n, C]`, the first one being frame `start_frame`: what is around the frames is known, and
    not given. The bundle has [stems] whose stems are layers. Raises EngineError.
    """
    assert bundle.stems is not None
    gain = 10 ** (codec.spec.gain_db / 20)
    begin, end = (number * codec.hop_samples for number in (before, before + frames))
    cutter = codec.window_cutter(WINDOW_FRAMES, total_frames=len(latents), start_frame=start_frame)
    for window in cutter.cut(latents):
        decoding = {
            name: codec.start(replace(window, values=values))
            for name, values in layer_latents(bundle, window.values).items()
        }
        # Until workers of the codec have decoded them.
        parts = summing([each.result() for each in decoding.values()], bundle.stems.saturation)
        whole = np.asarray(np.sum(parts, axis=0), np.float32)
        mix = soft_limited(whole, gain) / np.float32(gain)
        is_silent = np.abs(whole) < LINEAR
        ratio = np.where(is_silent, np.float32(1.0), mix / np.where(is_silent, np.float32(1.0), whole))
        position = (window.first_frame - start_frame) * codec.hop_samples
        inside = slice(max(begin - position, 0), max(end - position, 0))
        found = {MIX: mix, **{name: part * ratio for name, part in zip(decoding, parts, strict=True)}}
        yield {name: codec.trimmed(pcm, window)[inside] for name, pcm in found.items()}


def layer_latents(bundle: Bundle, latents: Latents) -> dict[str, Latents]:
    """Latents `[T, C]` by layer of a bundle with [notes], with the channels of all other layers silent."""
    assert bundle.notes is not None
    silence = bundle.silence(1)[0]
    by_layer = {layer.name: layer.all_channels for layer in bundle.notes.layers}
    found = dict[str, Latents]()
    for name, channels in by_layer.items():
        others = [channel for other in by_layer.values() for channel in other if channel not in channels]
        found[name] = latents.copy()
        found[name][:, others] = silence[others]
    return found


def summing(decoded: Sequence[Pcm], saturation: str) -> list[Pcm]:
    """Stems `[n, channels]` of layers that were decoded apart: they sum to what the codec makes of all together."""
    if saturation == "none":
        return list(decoded)
    layers = [np.arctanh(np.clip(part.astype(np.float64), -LARGEST, LARGEST)) for part in decoded]
    total = np.sum(layers, axis=0)
    is_linear = np.abs(total) < LINEAR
    ratio = np.where(is_linear, 1.0, np.tanh(total) / np.where(is_linear, 1.0, total))
    return [(layer * ratio).astype(np.float32) for layer in layers]
