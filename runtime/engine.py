"""What an engine is, whatever compiled it: named tensors in, named tensors out, bound once, launched often."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from runtime.config import Deployment, Target
from runtime.device import Device, Stream, Tensor
from runtime.errors import EngineError, EngineMismatchError, EngineNotBuiltError
from runtime.here import gpu_machine, machine, tool_versions
from runtime.manifest import (
    MANIFEST_SUFFIX,
    Manifest,
    TensorInfo,
    build_command,
    manifest_path,
    read_manifest,
    verify_file,
)
from runtime.nodes import NodeTimes
from runtime.tensors import check_tensors

FEATURE_SEPARATOR = "+"
PLAIN = "plain"


class Execution(Protocol):
    """An engine with addresses and shapes bound: ready to launch any number of times.

    Before a graph captures it, it is held: then it has to itself what the graph bakes in. One thread, one stream.
    """

    def launch(self, stream: Stream) -> None:
        """Put one execute on the stream. Raises EngineError."""

    def hold(self, stream: Stream) -> None:
        """Put one execute on the stream, with what a captured graph bakes in, for this execution alone from now on.

        Launches that follow can be captured. Raises EngineError.
        """

    def release(self) -> None:
        """Give back what was held, if anything was; the graph that captured it is closed."""


class Engine(Protocol):
    """One graph, compiled for one target."""

    name: str
    manifest: Manifest
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    def bind(self, tensors: Mapping[str, Tensor]) -> Execution:
        """Bind every input and output. Raises ShapeError where a tensor does not fit the graph."""

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """One blocking execute on host arrays, outputs allocated: for work outside the tick."""

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """Time of every node over `runs` executes after a warm-up, in execution order. Profiling slows the whole."""

    def close(self) -> None:
        """Release the engine's memory."""


def run_once(engine: Engine, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """One blocking execute with fresh outputs, inputs checked. Raises ShapeError, EngineError."""
    check_tensors(engine.name, engine.inputs, feeds)
    return engine.run(feeds)


def features_of(name: str) -> frozenset[str]:
    """The features in an engine's name: "step.dcw+guidance" -> {dcw, guidance}."""
    variant = name.partition(".")[2]
    return frozenset() if variant in ("", PLAIN) else frozenset(variant.split(FEATURE_SEPARATOR))


def variant_name(features: frozenset[str]) -> str:
    """Features sorted and joined, "plain" for none."""
    return FEATURE_SEPARATOR.join(sorted(features)) or PLAIN


def smallest_superset(variants: Mapping[frozenset[str], Engine], features: frozenset[str]) -> frozenset[str]:
    """The built variant with the fewest features that has all of these. Raises EngineNotBuiltError."""
    fitting = [variant for variant in variants if features <= variant]
    if not fitting:
        raise EngineNotBuiltError(
            f"no step engine has the features {variant_name(features)}; built: "
            + ", ".join(sorted(variant_name(variant) for variant in variants))
        )
    return min(fitting, key=lambda variant: (len(variant), sorted(variant)))


@dataclass(frozen=True)
class EngineSet:
    """The engines that a tick executes: the decoder, and the variants of what runs before (rows) and after it
    (steps)."""

    decoder: Engine
    rows: Mapping[frozenset[str], Engine]
    steps: Mapping[frozenset[str], Engine]

    def close(self) -> None:
        """Release all of them."""
        for engine in (self.decoder, *self.rows.values(), *self.steps.values()):
            engine.close()


def open_engine(
    folder: Path, name: str, device: Device, *, threads: int = 0, fix: str = "", in_tick: bool = False
) -> Engine:
    """Open one built engine: manifest first, then the file's hash, then the file. `in_tick`: ticks will execute it, so
    that what they need is taken now.

    Raises EngineNotBuiltError, EngineMismatchError (both with the build command `fix`), OutOfMemoryError.
    """
    path = manifest_path(folder, name)
    if not path.is_file():
        raise EngineNotBuiltError(f"engine {name!r} is not built: no {path}", fix=fix)
    manifest = read_manifest(path, fix=fix)
    _check_device(manifest, device, fix)
    if manifest.target == "tensorrt":
        _need_tensorrt(name)
    _check_valid_here(manifest, fix)
    verify_file(manifest, folder, fix=f"{fix} --force" if fix else "")
    if manifest.target == "tensorrt":
        from runtime.engines.tensorrt import TensorRtEngine

        return TensorRtEngine(manifest, folder, device=device, fix=fix, in_tick=in_tick)
    from runtime.engines.onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(manifest, folder, device=device, threads=threads, fix=fix, in_tick=in_tick)


def open_engines(deployment: Deployment, device: Device, *, target: Target | None = None) -> EngineSet:
    """Open the decoder and every step and rows variant of a deployment. Raises EngineNotBuiltError,
    EngineMismatchError, OutOfMemoryError; nothing stays open then."""
    folder = deployment.engine_folder(target)
    fix = build_command(deployment.path, target or deployment.target)
    with ExitStack() as opened:

        def open_one(name: str, threads: int = 1) -> Engine:
            engine = open_engine(folder, name, device, threads=threads, fix=fix, in_tick=True)
            opened.callback(engine.close)
            return engine

        engines = EngineSet(
            decoder=open_one("decoder", deployment.runtime.threads),
            rows={features_of(name): open_one(name) for name in _variants(folder, "rows", fix)},
            steps={features_of(name): open_one(name) for name in _variants(folder, "step", fix)},
        )
        opened.pop_all()
    return engines


def _need_tensorrt(name: str) -> None:
    try:
        from runtime.engines import tensorrt
    except (ImportError, OSError) as error:
        raise EngineError(
            f"engine {name!r} needs TensorRT, which is not installed or does not load: {error}",
            fix="pip install 'tickrt[tensorrt]'",
        ) from error
    del tensorrt


def _check_device(manifest: Manifest, device: Device, fix: str) -> None:
    kind = "cpu" if manifest.target == "cpu" else "cuda"
    if device.kind != kind:
        raise EngineMismatchError(
            f"engine {manifest.name!r} was built for target {manifest.target} and runs on a {kind} device, "
            f"this one is {device.kind}",
            fix=fix,
        )


def _check_valid_here(manifest: Manifest, fix: str) -> None:
    """A plan that is version compatible runs on later versions too; its own header says on which."""
    here = _this_machine(manifest.target)
    found = {name: here.get(name, "") for name in manifest.device}
    built = dict(manifest.device)
    if not manifest.build.get("version_compatible", False):
        found |= tool_versions(manifest.target)
        built |= manifest.tool_versions
    if built != found:
        raise EngineMismatchError(f"engine {manifest.name!r} was built for {built}, this machine has {found}", fix=fix)


def _this_machine(target: Target) -> dict[str, str]:
    if target == "cpu":
        return machine()
    from runtime.cuda import probe

    return {**machine(), **gpu_machine(probe())}


def _variants(folder: Path, kind: str, fix: str) -> list[str]:
    names = sorted(path.name.removesuffix(MANIFEST_SUFFIX) for path in folder.glob(f"{kind}.*{MANIFEST_SUFFIX}"))
    if not names:
        raise EngineNotBuiltError(f"no {kind} engine is built in {folder}", fix=fix)
    return names
