"""Which library runs an engine on the CPU: OpenVINO, or ONNX Runtime where it does not take a graph or errs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine_build.compile.targets import BuildTask
from engine_build.specs.engine_spec import IN_PLACE
from runtime.base.errors import BuildError, EngineError
from runtime.engines.manifest import BACKEND, OPENVINO_SUFFIX, Manifest, manifest_path, write_manifest

OPENVINO, ONNX_RUNTIME = "openvino", "onnxruntime"
# Compiles one engine, measures it, and writes its manifest beside it.
Build = Callable[[BuildTask], Manifest]


def in_backend(task: BuildTask, build: Build) -> tuple[Manifest, Path]:
    """Build an engine in its target's library; returns its manifest, which names that and why, and its folder."""
    if task.decision.wanted.target != "openvino":
        return build(task), task.engine.parent
    try:
        return _named(build(in_library(task, OPENVINO)), task, OPENVINO, "of the target")
    except (BuildError, EngineError) as error:
        task.log.add("WARNING", f"{task.decision.spec.name} runs in ONNX Runtime: {error.what}")
        return _named(build(in_library(task, ONNX_RUNTIME)), task, ONNX_RUNTIME, error.what)


def in_library(task: BuildTask, library: str) -> BuildTask:
    """The task, for a library, in a folder of its own. Raises BuildError where it is known not to do it."""
    if library == OPENVINO and any(port.values == IN_PLACE for port in task.decision.spec.outputs):
        raise BuildError("its caches are written in place, which OpenVINO does not do")
    folder = task.engine.parent / library
    folder.mkdir()
    suffix = OPENVINO_SUFFIX if library == OPENVINO else ".onnx"
    return replace(task, engine=folder / f"{task.decision.spec.name}{suffix}")


def _named(manifest: Manifest, task: BuildTask, library: str, reason: str) -> tuple[Manifest, Path]:
    """The manifest with the library and the reason, also in its file."""
    folder = task.engine.parent / library
    manifest = manifest.model_copy(update={"facts": {**manifest.facts, BACKEND: f"{library}: {reason}"}})
    write_manifest(manifest_path(folder, manifest.name), manifest)
    return manifest, folder
