"""What to build: the deployment's `[build]` table, and whether bundle and shape ranges can go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engine_build.tick_inputs import ROWS_FEATURES, STEP_FEATURES
from runtime.config import Deployment, ShapeRanges, load_deployment
from runtime.engine import FEATURE_SEPARATOR, PLAIN, variant_name
from runtime.errors import ConfigError
from runtime.spec import Bundle, explain, load_bundle

Features = frozenset[str]
Optimization = Literal["basic", "extended", "all"]

ALL_STEP_FEATURES = variant_name(STEP_FEATURES)
STEP_VARIANTS = (
    PLAIN, "guidance", "dcw", "dcw+guidance", "blend", "blend+guidance", "mask", "guidance+mask", "target",
    "guidance+target", "ode_noise", "guidance+ode_noise", "sde", "guidance+sde", "guidance+rcfg", ALL_STEP_FEATURES,
)  # fmt: skip
ROWS_VARIANTS = (PLAIN, "gain", "mask", variant_name(ROWS_FEATURES))


class BuildConfig(BaseModel):
    """The `[build]` table.

    optimization: how far ONNX Runtime rewrites a graph. "extended" is valid on every machine of one architecture;
    "all" adds layouts of the processor it runs on, and its manifest names that processor. tolerance: the largest error
    against the graph, relative to the largest output. threads: 0 = all cores. inline_limit_bytes: weights that are
    larger together go into a data file of their own (one ONNX file holds 2 GiB, and rewriting may add constants).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    optimization: Optimization = "extended"
    tolerance: float = Field(default=1e-4, gt=0)
    threads: int = Field(default=0, ge=0, le=256)
    inline_limit_bytes: int = Field(default=1 << 29, ge=0, le=(2 << 30) - (64 << 20))
    step_variants: tuple[str, ...] = STEP_VARIANTS

    @field_validator("step_variants")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [variant_name(parse_variant(name)) for name in value]
        return tuple(dict.fromkeys([*names, ALL_STEP_FEATURES]))


@dataclass(frozen=True)
class BuildRequest:
    """One run of the builder: deployment, bundle and options, checked against each other."""

    deployment: Deployment
    bundle: Bundle
    options: BuildConfig


def parse_variant(name: str) -> Features:
    """ "dcw+guidance" -> {dcw, guidance}. Raises ValueError on features that the step graph does not have."""
    features = frozenset() if name == PLAIN else frozenset(name.split(FEATURE_SEPARATOR))
    if unknown := features - STEP_FEATURES:
        raise ValueError(f"unknown step features {sorted(unknown)}, expected some of {sorted(STEP_FEATURES)}")
    if "rcfg" in features and "guidance" not in features:
        raise ValueError(f"the variant {name!r} needs guidance too: guidance+rcfg")
    return features


def load_request(path: Path, *, threads: int | None = None) -> BuildRequest:
    """Read a deployment file and its bundle for building. Raises ConfigError."""
    return request_of(load_deployment(path), threads=threads)


def request_of(deployment: Deployment, *, threads: int | None = None) -> BuildRequest:
    """A deployment with its bundle and its `[build]` table, in which `threads` replaces its own. Raises ConfigError."""
    bundle = load_bundle(deployment.bundle)
    options = read_options(deployment, threads)
    check_ranges(deployment, bundle)
    return BuildRequest(deployment, bundle, options)


def read_options(deployment: Deployment, threads: int | None = None) -> BuildConfig:
    """The deployment's `[build]` table; `threads` replaces its own. Raises ConfigError."""
    table: dict[str, Any] = dict(deployment.tables.get("build", {}))
    if threads is not None:
        table["threads"] = threads
    try:
        return BuildConfig(**table)
    except ValidationError as error:
        raise ConfigError(f"{deployment.path}: [build] {explain(error)}") from error


def check_ranges(deployment: Deployment, bundle: Bundle) -> None:
    """The shape ranges hold what the bundle makes. Raises ConfigError with the file and the entry."""
    for index, ranges in enumerate(deployment.shapes):
        _check_frames(f"{deployment.path}: shapes.{index}.frames", ranges, bundle)
    where = f"{deployment.path}: shapes"
    canvas = bundle.latents.canvas_frames
    if not any(ranges.frames.holds(canvas) for ranges in deployment.shapes):
        held = ", ".join(f"{ranges.frames.min}..{ranges.frames.max}" for ranges in deployment.shapes)
        raise ConfigError(
            f"{where}: no range holds the bundle's canvas of {canvas} frames (frames: {held})",
            fix=f"let a frames range include {canvas}",
        )
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


def _check_tokens(where: str, deployment: Deployment, bundle: Bundle) -> None:
    if bundle.conditioner is None:
        return
    wanted = bundle.conditioner.max_tokens
    if deployment.max_tokens < wanted:
        raise ConfigError(
            f"{where}: at most {deployment.max_tokens} tokens, the bundle's conditioner makes up to {wanted}",
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
