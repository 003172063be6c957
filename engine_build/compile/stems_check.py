"""Do a codec's layers sum to its mix? [stems] of a bundle says so; the graph is asked with seeded latents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.reference_session import graph_session
from runtime.audio.stems import layer_latents, summing
from runtime.base.errors import BuildError
from runtime.config.bundle import Bundle

LIMIT_DB = -60.0
FRAMES = 64
# How many notes sound, of all that could.
SHARE = 0.15


def check_stems(bundle: Bundle, options: BuildConfig) -> float:
    """The error in dB of the sum of all stems against the mix. Raises BuildError where it is above LIMIT_DB."""
    assert bundle.codec is not None
    assert bundle.notes is not None
    assert bundle.stems is not None
    roles, rng = bundle.codec.decode, np.random.default_rng(0)
    frames = FRAMES + bundle.codec.decode.missing(FRAMES)
    shape = (frames, bundle.latents.channels)
    levels = rng.uniform(0.2, 1.0, shape) * (rng.random(shape) < SHARE)
    silence = bundle.silence(1)[0]
    latents = (bundle.notes.scale * levels + silence).astype(np.float32)
    session = graph_session(read_graph(bundle.graph_path(roles.graph)), options)

    def decode(values: NDArray[np.float32]) -> NDArray[np.float32]:
        feeds: dict[str, NDArray[np.generic]] = {roles.inputs.latents: values[None]}
        if roles.inputs.start_frame is not None:
            feeds[roles.inputs.start_frame] = np.zeros(1, np.int64)
        (audio,) = session.run([roles.outputs.audio], feeds)
        return np.asarray(audio[0].T)

    mix = decode(latents)
    stems = summing([decode(each) for each in layer_latents(bundle, latents).values()], bundle.stems.saturation)
    error = np.sum(stems, axis=0, dtype=np.float64) - mix
    error_db = 10 * float(np.log10(np.square(error).mean() + 1e-30) - np.log10(np.square(mix).mean() + 1e-30))
    if not error_db <= LIMIT_DB:
        raise BuildError(
            f"the stems of {bundle.name} differ from its mix by {error_db:.0f} dB, allowed are {LIMIT_DB:.0f}",
            fix="leave [stems] out of bundle.toml, or say its saturation",
        )
    return error_db
