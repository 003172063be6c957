"""Putting engines in the place of others while generations run: whether they fit, and warming them before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runtime.config import Deployment
from runtime.engine import Engine, EngineSet, variant_name
from runtime.errors import EngineMismatchError
from runtime.manifest import TensorInfo
from runtime.spec import Bundle

Variants = Mapping[frozenset[str], Engine]


def check_replaceable(old: EngineSet, new: EngineSet) -> None:
    """`new` takes and gives the same tensors, and has every variant that `old` has. Raises EngineMismatchError."""
    _check_tensors(old.decoder, new.decoder)
    for kind, before, after in (("rows", old.rows, new.rows), ("step", old.steps, new.steps)):
        missing = [variant_name(features) for features in before if features not in after]
        if missing:
            raise EngineMismatchError(
                f"the new engines lack the {kind} variants {', '.join(sorted(missing))}",
                fix="build them with the same step_variants",
            )
        for features, engine in before.items():
            _check_tensors(engine, after[features])


def warm_up(engines: EngineSet, bundle: Bundle, deployment: Deployment) -> None:
    """Execute the decoder once at the least shape, so that what loads lazily is loaded. Raises EngineError."""
    shape, roles = deployment.shapes[0], bundle.decoder.inputs
    inputs = engines.decoder.inputs
    rows, frames = inputs[roles.latents].shape[:2]
    sizes = {rows: shape.rows.min, frames: shape.frames.min, inputs[roles.condition].shape[1]: shape.tokens.min}
    feeds = {name: np.ones([_size(size, sizes) for size in info.shape], info.dtype) for name, info in inputs.items()}
    outputs = engines.decoder.run(feeds)
    if not all(np.isfinite(values).all() for values in outputs.values()):
        raise EngineMismatchError("the new decoder gives values that are not finite", fix="build it again with --force")


def _size(size: int | str, sizes: Mapping[int | str, int]) -> int:
    return size if isinstance(size, int) else sizes[size]


def _check_tensors(old: Engine, new: Engine) -> None:
    for kind, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        if _described(before) != _described(after):
            raise EngineMismatchError(
                f"the new engine {new.name!r} has other {kind}s than the one that runs: "
                f"{_described(after)}, expected {_described(before)}",
                fix="start a server of its own for another model",
            )


def _described(infos: Mapping[str, TensorInfo]) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    return {name: (info.dtype, tuple(info.shape)) for name, info in infos.items()}
