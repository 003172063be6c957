"""FFmpeg's meter of loudness and true peak (its filter ebur128), through PyAV."""

from __future__ import annotations

import math
from dataclasses import dataclass

import av
import av.filter
import numpy as np

from runtime.config.codec import Pcm


@dataclass(frozen=True)
class Measured:
    """Integrated loudness in LUFS, the largest true peak in dBTP."""

    integrated_lufs: float
    true_peak_dbtp: float


def measured(pcm: Pcm, sample_rate_hz: int) -> Measured:
    """Of `[N, 2]` float32, at least half a second."""
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=sample_rate_hz, format="flt", layout="stereo")
    meter, sink = graph.add("ebur128", "metadata=1:peak=true"), graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm, np.float32).reshape(1, -1), "flt", "stereo")
    frame.sample_rate, frame.pts = sample_rate_hz, 0
    source.push(frame)
    source.push(None)
    values: dict[str, str] = {}
    while True:
        try:
            values |= sink.pull().metadata
        except av.error.EOFError:
            break
    peak = float(values["lavfi.r128.true_peak"])
    return Measured(float(values["lavfi.r128.I"]), 20 * math.log10(peak) if peak else -math.inf)
