"""What a build is given: a deployment with its bundle and its `[build]` table, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_build.config import BuildConfig, for_target, has_automatic_codec
from runtime.base.errors import ConfigError
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment, ShapeRanges, Target, load_deployment
from runtime.config.explain import validated


@dataclass(frozen=True)
class BuildRequest:
    """A deployment to build. has_automatic_codec: whether the codec's precision is not chosen by the deployment."""

    deployment: Deployment
    options: BuildConfig
    has_automatic_codec: bool = True

    @property
    def bundle(self) -> Bundle:
        """The deployment's."""
        return self.deployment.loaded_bundle

    def for_target(self, target: Target) -> BuildRequest:
        """With a value per kind of engine in place of "auto" and of defaults."""
        return replace(self, options=for_target(self.options, self.deployment, target))


def load_request(path: Path, *, threads: int | None = None) -> BuildRequest:
    """Read a deployment file and its bundle for building. Raises ConfigError."""
    return request_of(load_deployment(path), threads=threads)


def request_of(deployment: Deployment, *, threads: int | None = None) -> BuildRequest:
    """A deployment with its `[build]` table, in which `threads` replaces its own. Raises ConfigError."""
    bundle, options = deployment.loaded_bundle, read_options(deployment, threads)
    check_ranges(deployment, bundle)
    return BuildRequest(deployment, options, has_automatic_codec(options))


def read_options(deployment: Deployment, threads: int | None = None) -> BuildConfig:
    """The deployment's `[build]` table; `threads` replaces its own. Raises ConfigError."""
    table: dict[str, Any] = dict(deployment.tables.get("build", {}))
    if threads is not None:
        table["threads"] = threads
    return validated(BuildConfig, table, f"{deployment.path}: [build]")


def check_ranges(deployment: Deployment, bundle: Bundle) -> None:
    """Check that the shape ranges contain the bundle's sizes. Raises ConfigError with the file and the entry."""
    for index, ranges in enumerate(deployment.shapes):
        _check_frames(f"{deployment.path}: shapes.{index}.frames", ranges, bundle)
    where = f"{deployment.path}: shapes"
    canvas = bundle.latents.canvas_frames
    if not any(ranges.frames.holds(canvas) for ranges in deployment.shapes):
        held = ", ".join(f"{ranges.frames.min}..{ranges.frames.max}" for ranges in deployment.shapes)
        raise ConfigError(
            f"{where}: no range contains the bundle's canvas of {canvas} frames (frames: {held})",
            fix=f"let a frames range include {canvas}",
        )
    _check_rows(where, deployment)
    _check_tokens(where, deployment, bundle)
    _check_overlap(bundle)


def _check_frames(where: str, ranges: ShapeRanges, bundle: Bundle) -> None:
    multiple = bundle.latents.frame_multiple
    for name in ("min", "opt", "max"):
        value = getattr(ranges.frames, name)
        if value % multiple:
            near = bundle.latents.round_up(value)
            raise ConfigError(
                f"{where}.{name} is {value}, expected a multiple of the bundle's frame_multiple {multiple}",
                fix=f"{name} = {near}",
            )


def _check_rows(where: str, deployment: Deployment) -> None:
    least = min(deployment.shapes, key=lambda ranges: ranges.rows.min).rows
    if least.min > 1:
        raise ConfigError(
            f"{where}: no range takes fewer than {least.min} rows; a tick of one generation has one",
            fix=f"rows = {{ min = 1, opt = {least.opt}, max = {least.max} }} in one of them; where the graph's first "
            "axis is fixed, export it again with a dynamic one, or with 1",
        )


def _check_tokens(where: str, deployment: Deployment, bundle: Bundle) -> None:
    if bundle.text_encoder is None:
        return
    wanted = bundle.text_encoder.max_tokens + bundle.text_encoder.prefix_tokens
    if deployment.max_tokens < wanted:
        raise ConfigError(
            f"{where}: at most {deployment.max_tokens} tokens, the bundle's text encoder makes up to {wanted}",
            fix=f"tokens = {{ max = {wanted} }} or more",
        )


def _check_overlap(bundle: Bundle) -> None:
    if bundle.context is None:
        return
    overlap, latents = bundle.context.overlap_frames, bundle.latents
    if overlap % latents.frame_multiple or overlap >= latents.canvas_frames:
        raise ConfigError(
            f"{bundle.folder}: context.overlap_frames is {overlap}, expected a multiple of {latents.frame_multiple} "
            f"below the canvas of {latents.canvas_frames} frames"
        )
