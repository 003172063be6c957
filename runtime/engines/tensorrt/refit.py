"""Other weights for a plan that was built with refit: compared once with its own, then replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import EngineMismatchError
from runtime.devices.device import Device
from runtime.engines.tensorrt.binding import REFIT_LOSES_BIAS, trt
from runtime.engines.tensorrt.errors import check_trt, dtype_name
from runtime.engines.tensorrt.host_execution import HostExecution
from runtime.engines.tensorrt.library import LoadedEngine, library, library_version

if TYPE_CHECKING:
    from runtime.engines.merging import MergedWeights

LOSES_BIAS_FIX = "install another release of TensorRT, then build again; or use adapters per request (adapter_rank)"
# Of an output's largest value: how far it may move when a plan gets its own weights again.
TOLERANCE = 1e-3
SMALLEST_PEAK = 1e-6

Arrays = Mapping[str, NDArray[Any]]


def refit(plan: LoadedEngine, device: Device, weights: MergedWeights, label: str) -> None:
    """Replace weights of a plan, before it has contexts. Raises EngineMismatchError, EngineError.

    It gets its own weights first: its outputs have to stay what they are, or a refit changes more than weights.
    """
    if not plan.engine.refittable:
        raise EngineMismatchError(
            f"{label} takes no other weights, adapters cannot be merged", fix="refit = true in [build], and build again"
        )
    if library_version().startswith(REFIT_LOSES_BIAS):
        what = f"TensorRT {library_version()} may lose the bias of a product whose weights are replaced"
        raise EngineMismatchError(f"{label} cannot be refitted: {what}", fix=LOSES_BIAS_FIX)
    feeds = _feeds(plan)
    before = _run(plan, device, feeds)
    _replace(plan.engine, label, weights, weights.read_base)
    _check_equal(label, before, _run(plan, device, feeds))
    _replace(plan.engine, label, weights, weights.read)


def _feeds(plan: LoadedEngine) -> Arrays:
    """Inputs of the first shape range's smallest shapes: the same every time, numbers in (0, 1], whole ones 0."""
    random, least = np.random.default_rng(0), plan.ranges[0].least
    feeds = {}
    for name, info in plan.inputs.items():
        kind = np.dtype(info.dtype)
        is_float = kind.kind not in "iub"
        values = random.uniform(0.05, 1.0, least[name]) if is_float else np.zeros(least[name])
        feeds[name] = values.astype(kind)
    return feeds


def _run(plan: LoadedEngine, device: Device, feeds: Arrays) -> Arrays:
    host = HostExecution(plan, device)
    try:
        return host.run(feeds)
    finally:
        host.close()


def _check_equal(label: str, before: Arrays, after: Arrays) -> None:
    for name, values in before.items():
        wide, found = values.astype(np.float64), after[name].astype(np.float64)
        peak = max(float(np.abs(wide).max(initial=0.0)), SMALLEST_PEAK)
        off = float(np.abs(found - wide).max(initial=0.0)) / peak
        if not off <= TOLERANCE:
            raise EngineMismatchError(
                f"{label} gives another {name} when its own weights are set again (off by {off:.2g} of its largest "
                f"value): a refit with TensorRT {library_version()} loses a part of it",
                fix=LOSES_BIAS_FIX,
            )


def _replace(engine: trt.ICudaEngine, label: str, weights: MergedWeights, read: Callable[[str], NDArray[Any]]) -> None:
    log = library().logger
    refitter = trt.Refitter(engine, log)
    kept = [_set_weights(refitter, label, read, weights.changed(refitter.get_all_weights(), label))]
    # Weights that TensorRT stores together with those are set, too.
    kept.append(_set_weights(refitter, label, read, refitter.get_missing_weights()))
    check_trt(refitter.refit_cuda_engine(), f"{label} cannot be refitted", log.take)
    del kept


def _set_weights(
    refitter: trt.Refitter, label: str, read: Callable[[str], NDArray[Any]], names: Sequence[str]
) -> list[NDArray[Any]]:
    """Set weights by their names in the plan; the arrays must live until the refit is done."""
    arrays = []
    for name in names:
        kind = refitter.get_weights_prototype(name).dtype
        values = np.ascontiguousarray(read(name).astype(np.dtype(dtype_name(kind))))
        found = refitter.set_named_weights(name, trt.Weights(kind, values.ctypes.data, values.size))
        check_trt(found, f"{label} does not take the weight {name!r}", library().logger.take, kind=EngineMismatchError)
        arrays.append(values)
    return arrays
