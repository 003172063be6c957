"""Opening of built engines, with checks of manifest, machine and hash."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.base.errors import EngineError, EngineMismatchError, EngineNotBuiltError
from runtime.config.bundle import BUNDLE_FILE, Bundle
from runtime.config.deployment import (
    HOST_TARGETS,
    MERGING_TARGETS,
    PLAN_TARGETS,
    Deployment,
    Target,
    build_command,
)
from runtime.config.planner import PlannerSpec
from runtime.devices.device import Device, Stream
from runtime.devices.machine import machine_of
from runtime.engines.adapter_files import read_catalog
from runtime.engines.adapters import ADAPTED_DECODER, MERGED, AdapterUse, adapter_shapes, describe_merged
from runtime.engines.engine import Engine, EngineSet, LanguageEngines, decoder_shapes, features_of
from runtime.engines.manifest import (
    MANIFEST_SUFFIX,
    OPENVINO_SUFFIX,
    Manifest,
    machine_mismatch,
    manifest_path,
    read_manifest,
    verify_file,
)

if TYPE_CHECKING:
    from runtime.engines.merging import MergedWeights


def warm_up(engines: EngineSet, bundle: Bundle, deployment: Deployment) -> None:
    """Execute the decoders once at the smallest shape, to load their kernels.

    Raises EngineError, also for outputs that are not finite.
    """
    decoder, least = engines.decoder, deployment.shapes[0]
    shapes = decoder_shapes(
        decoder, bundle.decoder.inputs, rows=least.rows.min, frames=least.frames.min, tokens=least.tokens.min
    )
    feed = {name: np.ones(shape, decoder.inputs[name].dtype) for name, shape in shapes.items()}
    _check_finite(decoder, feed)
    if (adapted := engines.adapted) is not None:
        unused = adapter_shapes(adapted.inputs, least.rows.min)
        feed |= {name: np.zeros(shape, adapted.inputs[name].dtype) for name, shape in unused.items()}
        _check_finite(adapted, feed)


def settle_kernels(target: Target) -> bool:
    """Wait for the kernels that are being compiled, and keep them for the next start.

    False where a target compiles none while it runs: only TensorRT-RTX does.
    """
    if target != "tensorrt-rtx":
        return False
    from runtime.engines.tensorrt.rtx.specializer import settle

    settle()
    return True


def _check_finite(decoder: Engine, feed: Mapping[str, Any]) -> None:
    outputs = decoder.run(feed)
    if not all(np.isfinite(values).all() for values in outputs.values()):
        raise EngineMismatchError(f"the new {decoder.name}'s outputs are not finite", fix="build it again with --force")


OPENVINO_FIX = "pip install 'tickrt[openvino]'"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("onnxruntime", "onnxruntime-gpu", "openvino"),
    "cuda": ("onnxruntime-gpu",),
    "tensorrt-rtx": ("tensorrt-rtx",),
}


def tool_versions(target: Target) -> dict[str, str]:
    """Installed versions of the packages that build and run engines of a target."""
    if target == "tensorrt":
        return _tensorrt_version()
    versions = {}
    for package in PACKAGES[target]:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


@cache
def _packages(target: Target) -> dict[str, str]:
    """`tool_versions` of a target, read once for all engines: it takes as long as opening one."""
    return tool_versions("openvino" if target in HOST_TARGETS else target)


def _tensorrt_version() -> dict[str, str]:
    """The version that the library reports: the packages that contain it have many names."""
    if importlib.util.find_spec("tensorrt") is None:
        return {}
    from runtime.engines.tensorrt.binding import bind

    bind("tensorrt")
    from runtime.engines.tensorrt.library import library_version

    return {"tensorrt": library_version()}


def open_engine(
    folder: Path,
    name: str,
    device: Device,
    *,
    threads: int = 0,
    fix: str = "",
    in_tick: bool = False,
    stream: Stream | None = None,
    weights: MergedWeights | None = None,
) -> Engine:
    """Open one built engine. `in_tick`: ticks will execute it, so it allocates now what they need. `stream`: on which
    they do, by default the device's main one. `weights`: take the place of its own.

    `fix`: the build command, for EngineNotBuiltError and EngineMismatchError. Raises these, EngineError,
    OutOfMemoryError.
    """
    manifest = read_manifest(manifest_path(folder, name), fix=fix)
    _check_device(manifest, device, fix)
    if manifest.target in PLAN_TARGETS:
        _need_tensorrt(manifest)
    _check_machine(manifest, fix)
    verify_file(manifest, folder, fix=f"{fix} --force" if fix else "")
    options: dict[str, Any] = {"device": device, "fix": fix, "in_tick": in_tick, "stream": stream, "weights": weights}
    if manifest.target == "tensorrt-rtx":
        from runtime.engines.tensorrt.rtx.engine import RtxEngine

        return RtxEngine(manifest, folder, **options)
    if manifest.target in PLAN_TARGETS:
        from runtime.engines.tensorrt.engine import TensorRtEngine

        return TensorRtEngine(manifest, folder, **options)
    if manifest.engine_file.endswith(OPENVINO_SUFFIX):
        try:
            from runtime.engines.openvino import OpenVinoEngine
        except (ImportError, OSError) as error:
            raise EngineError(
                f"engine {name!r} needs OpenVINO, which does not load: {error}", fix=OPENVINO_FIX
            ) from error

        return OpenVinoEngine(manifest, folder, threads=threads, **options)
    from runtime.engines.onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(manifest, folder, threads=threads, **options)


def open_engines(
    deployment: Deployment,
    device: Device,
    *,
    target: Target | None = None,
    merged: Mapping[str, float] | None = None,
) -> EngineSet:
    """Open the decoder and every step and rows variant of a deployment, and read its adapters.

    merged: the adapters in the decoders' weights, with their strengths (default: the deployment's). Raises ConfigError,
    AdapterError, RequestError (an unknown adapter), EngineNotBuiltError, EngineMismatchError, EngineError,
    OutOfMemoryError; no engine stays open then.
    """
    folder, bundle = deployment.engine_folder(target), deployment.loaded_bundle
    fix = build_command(deployment.path, target or deployment.target)
    adapters = read_catalog(deployment)
    uses = adapters.find(deployment.merged_adapters if merged is None else merged)
    is_merged_before = (target or deployment.target) in MERGING_TARGETS
    if is_merged_before:
        _check_merged(read_manifest(manifest_path(folder, "decoder"), fix=fix), uses, fix)
    weights = None if is_merged_before else _merged_weights(deployment, uses)
    with ExitStack() as opened:

        def open_one(name: str, threads: int = 1, **how: Any) -> Engine:
            engine = open_engine(folder, name, device, threads=threads, fix=fix, in_tick=True, **how)
            opened.callback(engine.close)
            return engine

        open_decoder = partial(open_one, threads=deployment.runtime.threads, weights=weights)
        beside = partial(open_one, stream=device.beside)
        engines = EngineSet(
            decoder=open_decoder("decoder"),
            rows={features_of(name): open_one(name) for name in _variants(folder, "rows", fix)},
            steps={features_of(name): open_one(name) for name in _variants(folder, "step", fix)},
            adapted=open_one(ADAPTED_DECODER, deployment.runtime.threads, weights=weights)
            if adapters.max_rank
            else None,
            adapters=adapters,
            merged={adapter.id: strength for adapter, strength in uses},
            planner=None if bundle.planner is None else _planner(bundle.planner, beside),
        )
        _check_guidance(engines.steps, bundle, fix)
        opened.pop_all()
    return engines


def _planner(spec: PlannerSpec, open_one: Callable[[str], Engine]) -> LanguageEngines:
    draft = None if spec.draft is None else open_one("planner_draft")
    return LanguageEngines(open_one("planner"), open_one("sampler"), draft)


def merged_weights(deployment: Deployment) -> MergedWeights | None:
    """The decoder's weights with a deployment's merged adapters; None without any.

    Raises ConfigError, AdapterError, EngineMismatchError, RequestError (an unknown adapter).
    """
    return _merged_weights(deployment, read_catalog(deployment).find(deployment.merged_adapters))


def _check_merged(manifest: Manifest, uses: Sequence[AdapterUse], fix: str) -> None:
    """Check that a decoder was built with these adapters in its weights. Raises EngineMismatchError."""
    found, wanted = manifest.build.get(MERGED, {}), describe_merged(uses)
    if found != wanted:
        words = [", ".join(f"{id_} {each['strength']:g}" for id_, each in one.items()) for one in (found, wanted)]
        raise EngineMismatchError(
            f"the decoder was built with other adapters in its weights ({words[0] or 'none'}) than are asked for "
            f"({words[1] or 'none'}), and engines of {manifest.target} take no other weights",
            fix=f"name them in merged_adapters of [deployment], then {fix}; or use them per request (adapter_rank)",
        )


def _check_guidance(steps: Mapping[frozenset[str], Engine], bundle: Bundle, fix: str) -> None:
    """Check that the step engines guide as the bundle says now. Raises EngineMismatchError."""
    for features, engine in steps.items():
        wanted, found = bundle.guidance.made_with(features), engine.manifest.build.get("guidance")
        if wanted.get("guidance") != found:
            raise EngineMismatchError(
                f"{engine.name} was built with another [guidance] ({_words(found)}) than {bundle.folder / BUNDLE_FILE} "
                f"said when it was read ({_words(wanted.get('guidance'))})",
                fix=f"{fix}; a server that runs is started again",
            )


def _words(guidance: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (guidance or {"rule": "apg, as without it"}).items())


def _merged_weights(deployment: Deployment, uses: Sequence[AdapterUse]) -> MergedWeights | None:
    """The decoder's weights with these adapters; None without any, which spares the import of onnx."""
    bundle = deployment.loaded_bundle if uses else None
    if bundle is None or bundle.adapters is None:
        return None
    from runtime.engines.merging import MergedWeights

    return MergedWeights(bundle.graph_path(bundle.decoder.graph), bundle.adapters, uses)


def _need_tensorrt(manifest: Manifest) -> None:
    """Bind this process to an engine's TensorRT. Raises EngineError, also where it runs the other one."""
    from runtime.engines.tensorrt.binding import NAMES, bind

    bind(target := manifest.target)
    try:
        from runtime.engines.tensorrt import engine as tensorrt
    except (ImportError, OSError) as error:
        raise EngineError(
            f"engine {manifest.name!r} needs {NAMES[target]}, which is not installed or does not load: {error}",
            fix=f"pip install 'tickrt[{target}]'{_release(manifest)}",
        ) from error
    del tensorrt


def _check_device(manifest: Manifest, device: Device, fix: str) -> None:
    kind = "cpu" if manifest.target in HOST_TARGETS else "cuda"
    if device.kind != kind:
        raise EngineMismatchError(
            f"engine {manifest.name!r} was built for target {manifest.target} and needs a {kind} device, "
            f"this one is a {device.kind} device",
            fix=fix,
        )


def _check_machine(manifest: Manifest, fix: str) -> None:
    device = machine_of(manifest.target) if manifest.device else {}
    versions = tool_versions(manifest.target) if manifest.target in PLAN_TARGETS else _packages(manifest.target)
    if reason := machine_mismatch(manifest, device, versions):
        install = install_command(manifest, versions)
        raise EngineMismatchError(
            f"engine {manifest.name!r} was {reason}", fix=f"{install}, or {fix}" if install and fix else fix
        )


def install_command(manifest: Manifest, versions: Mapping[str, str]) -> str:
    """What installs the library that an engine needs, where `versions` lack it or it runs engines of its own release
    only; else ""."""
    if release := _release(manifest):
        return f"pip install{release}"
    return OPENVINO_FIX if "openvino" in manifest.needed_tools.keys() - versions.keys() else ""


def _release(manifest: Manifest) -> str:
    """The requirement of the release that runs an engine of tensorrt-rtx, for pip; others are built where they run."""
    release = manifest.tool_versions.get("tensorrt-rtx")
    return f" tensorrt-rtx=={release}" if release else ""


def _variants(folder: Path, kind: str, fix: str) -> list[str]:
    names = sorted(path.name.removesuffix(MANIFEST_SUFFIX) for path in folder.glob(f"{kind}.*{MANIFEST_SUFFIX}"))
    if not names:
        raise EngineNotBuiltError(f"no {kind} engine is built in {folder}", fix=fix)
    return names
