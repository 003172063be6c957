"""Whether engines can replace others between two ticks."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.base.errors import EngineMismatchError
from runtime.engines.engine import Engine, EngineSet, variant_name
from runtime.engines.manifest import TensorInfo


def check_replaceable(old: EngineSet, new: EngineSet) -> None:
    """Check that `new` has the tensors of `old` and all its variants. Raises EngineMismatchError."""
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
    if old.adapted is not None and new.adapted is not None:
        _check_tensors(old.adapted, new.adapted)
    elif old.adapted is not None:
        raise EngineMismatchError("the new engines lack the decoder for adapters", fix="build it, with adapter_rank")
    if old.planner is not None:
        if new.planner is None or len(new.planner.all) != len(old.planner.all):
            raise EngineMismatchError("the new engines lack the planner or its draft", fix="build them")
        for mine, others in zip(old.planner.all, new.planner.all, strict=True):
            _check_tensors(mine, others)


def _check_tensors(old: Engine, new: Engine) -> None:
    for kind, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        if _described(before) != _described(after):
            raise EngineMismatchError(
                f"the new engine {new.name!r} has other {kind}s than the current one: "
                f"{_described(after)}, expected {_described(before)}",
                fix="start another server for another model",
            )


def _described(infos: Mapping[str, TensorInfo]) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Dtypes and shapes; what a graph calls its free dimensions does not count."""
    return {
        name: (info.dtype, tuple("free" if isinstance(size, str) else size for size in info.shape))
        for name, info in infos.items()
    }
