"""Deployment files: bundle, engine folder, target, shape ranges and tick loop settings; which model made something.

The [build] and [server] tables are validated by the packages that use them; every other table is validated here, and
unknown ones are refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from runtime.base.errors import ConfigError, did_you_mean
from runtime.base.files import expanded, own_entries, plain_name, user_folder
from runtime.config.bundle import BUNDLE_FILE, Bundle, load_bundle
from runtime.config.explain import read_toml, validated

Target = Literal["cpu", "openvino", "cuda", "tensorrt", "tensorrt-rtx"]
# Targets whose engines are TensorRT plans.
PLAN_TARGETS: tuple[Target, ...] = ("tensorrt", "tensorrt-rtx")
# Targets whose tensors are in host memory.
HOST_TARGETS: tuple[Target, ...] = ("cpu", "openvino")
# Targets whose engines have the deployment's merged adapters in their weights when they are built.
MERGING_TARGETS: tuple[Target, ...] = ("openvino", "tensorrt-rtx")
# The packed rank of an execute's adapters is a multiple of this, so that few shapes occur.
ADAPTER_RANK_MULTIPLE = 8
# Padded tokens cost little on a GPU, a shape whose graph is not captured yet costs two slow ticks.
CPU_TOKEN_MULTIPLE, GPU_TOKEN_MULTIPLE = 8, 96
# Of an adapter, whose id is the name of its file.
AdapterId = Annotated[str, AfterValidator(plain_name)]
Strength = Annotated[float, Field(ge=-4.0, le=4.0)]


class ShapeRange(BaseModel):
    """min, opt, max of one dimension (TensorRT's optimization profile, one entry)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(ge=1)
    opt: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"needs min <= opt <= max, got {self.min}, {self.opt}, {self.max}")
        return self

    def holds(self, value: int) -> bool:
        """Whether `value` lies inside."""
        return self.min <= value <= self.max

    def nearest(self, value: int) -> int:
        """The size inside that is nearest to `value`."""
        return min(max(value, self.min), self.max)


class ShapeRanges(BaseModel):
    """Shapes that one engine accepts: rows R, frames T, condition tokens L (1 for a decoder without tokens)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: ShapeRange
    frames: ShapeRange
    tokens: ShapeRange = ShapeRange(min=1, opt=1, max=1)

    def holds(self, rows: int, frames: int, tokens: int) -> bool:
        """Whether all three lie inside."""
        return self.rows.holds(rows) and self.frames.holds(frames) and self.tokens.holds(tokens)


# How much of a hash is shown.
SHOWN = 12


@dataclass(frozen=True)
class ModelIdentity:
    """A model's files and the precision of its engines. bundle_sha256: of bundle.toml's values and the files it names.

    "" is not known, and differs from what is.
    """

    bundle_sha256: str = ""
    precision: str = ""

    def difference(self, other: ModelIdentity) -> str:
        """What of `other` is another than here, as the end of "it was made by"; "" where nothing is."""
        if self == other:
            return ""
        if not other.bundle_sha256:
            return "a model that is not named"
        if self.bundle_sha256 != other.bundle_sha256:
            return f"another model ({other.bundle_sha256[:SHOWN]}; this is {self.bundle_sha256[:SHOWN]})"
        return f"this model in another precision ({other.precision}; this is {self.precision})"


class RuntimeConfig(BaseModel):
    """The tick loop. Each optimization can be disabled for comparison; latents stay the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(default=8, ge=1, le=64, description="Slots: generations in flight at a time.")
    queue: int = Field(default=32, ge=0, le=4096, description="Places where generations wait for a slot.")
    ticks_in_flight: int = Field(default=2, ge=1, le=2, description="2 launches a tick while the previous one runs.")
    threads: int = Field(
        default=0, ge=0, le=256, description="Threads of the CPU; 0 = all cores, or as many as the build found best."
    )
    fused_guidance: bool = Field(default=True, description="Negative rows share an execute with the positive ones.")
    capture: bool = Field(default=True, description="A GPU replays recurring ticks as captured graphs.")
    captured_graphs: int = Field(default=256, ge=2, le=1024, description="Captured graphs that are kept.")
    token_multiple: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Condition tokens are padded to a multiple of it, so that few shapes recur; 0: 8 on the CPU, 96 on "
        "a GPU.",
    )
    adapter_rank: int = Field(
        default=0,
        ge=0,
        le=512,
        multiple_of=ADAPTER_RANK_MULTIPLE,
        description="The ranks of all LoRA adapters that generations use at a time, in sum; 0: no generation uses one, "
        "and no engine for them is built.",
    )
    planner_sequences: int = Field(
        default=4, ge=1, le=64, description="Sequences that the bundle's planner writes at a time."
    )
    planner_steps: int = Field(
        default=0,
        ge=0,
        le=8,
        description="Tokens of each sequence that a tick draws, one after the other; 0: 1 on the CPU, 4 on a GPU, "
        "where they are drawn beside the rest of the tick.",
    )
    speculation: bool = Field(
        default=True, description="A tick verifies several drafted tokens at once; the tokens stay the same."
    )


class Deployment(BaseModel):
    """A parsed deployment file. Paths are absolute; `tables` holds the tables of other packages, not validated.

    adapters: the folder of LoRA adapters. merged_adapters: those that the decoder's weights begin with, each with its
    strength.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    bundle: Path
    engines: Path
    target: Target = "cpu"
    shapes: tuple[ShapeRanges, ...] = Field(min_length=1)
    runtime: RuntimeConfig = RuntimeConfig()
    adapters: Path | None = None
    merged_adapters: dict[AdapterId, Strength] = {}
    tables: dict[str, dict[str, Any]] = {}

    @cached_property
    def loaded_bundle(self) -> Bundle:
        """The bundle, read when it is first asked for; copies of this deployment have the same. Raises ConfigError."""
        return load_bundle(self.bundle)

    def engine_folder(self, target: Target | None = None) -> Path:
        """The folder of this deployment's engines for a target."""
        return self.engines / (target or self.target)

    @property
    def max_rows(self) -> int:
        """The most rows of one execute."""
        return max(shape.rows.max for shape in self.shapes)

    @property
    def max_tokens(self) -> int:
        """The most condition tokens of one row."""
        return max(shape.tokens.max for shape in self.shapes)

    @property
    def token_multiple(self) -> int:
        """Condition tokens of an execute are padded to a multiple of this, within the engines' ranges."""
        return self.runtime.token_multiple or (
            CPU_TOKEN_MULTIPLE if self.target in HOST_TARGETS else GPU_TOKEN_MULTIPLE
        )

    @property
    def planner_steps(self) -> int:
        """Tokens of each sequence that a tick draws."""
        return self.runtime.planner_steps or (1 if self.target in HOST_TARGETS else GPU_PLANNER_STEPS)

    def rows_limit(self, frames: int, tokens: int) -> int:
        """The most rows of one execute at this length; 0 where no range contains it."""
        return max((s.rows.max for s in self.shapes if s.frames.holds(frames) and s.tokens.holds(tokens)), default=0)


class _Head(BaseModel):
    """The table [deployment]; paths are relative to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: Path
    engines: Path | None = None
    target: Target = "cpu"
    adapters: Path | None = None
    merged_adapters: dict[AdapterId, Strength] = {}


class _File(BaseModel):
    """The tables of a deployment file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment: _Head
    shapes: tuple[ShapeRanges, ...] = Field(min_length=1)
    runtime: RuntimeConfig = RuntimeConfig()
    build: dict[str, Any] = {}
    server: dict[str, Any] = {}


# A tick of a large decoder takes as long as a dozen of the planner's decodes.
GPU_PLANNER_STEPS = 4
OTHER_TABLES = ("build", "server")
PACKAGES = Path(__file__).resolve().parents[2]
PACKAGED = PACKAGES / "tickrt" / "configs"  # where a wheel has the folder configs/
SHIPPED = PACKAGED if PACKAGED.is_dir() else PACKAGES / "configs"


def resolve_deployment(path: Path) -> Path:
    """The deployment file at `path`, or the shipped one of that name ("demo"). Raises ConfigError."""
    path = expanded(path)
    if path.is_file():
        return path
    names = {file.stem: file for file in own_entries(SHIPPED, ".toml")}
    if str(path) in names:
        return names[str(path)]
    if path.is_dir():
        kind = "a bundle's folder" if (path / BUNDLE_FILE).is_file() else "a folder"
        raise ConfigError(f"{path} is {kind}, expected a deployment: a TOML file such as configs/demo.toml")
    similar = did_you_mean(str(path), names)
    fix = f"name a TOML file, or a shipped one: {', '.join(names)}"
    raise ConfigError(f"no configuration at {path}", fix=f"{similar} Or {fix}" if similar else fix)


def load_deployment(path: Path) -> Deployment:
    """Read and validate a deployment file, or the shipped deployment of that name.

    Raises ConfigError with the file, the key and what was expected.
    """
    path = resolve_deployment(path)
    table = read_toml(path)
    if "deployment" not in table and {"latents", "decoder"} & table.keys():
        raise ConfigError(
            f"{path} is a bundle, expected a deployment", fix="name a TOML file whose [deployment] names this bundle"
        )
    file = validated(_File, table, str(path))
    base, head = path.resolve().parent, file.deployment
    folder = engine_cache() if base == PACKAGED else base / ".engines"
    return Deployment(
        path=path.resolve(),
        bundle=(base / expanded(head.bundle)).resolve(),
        engines=(base / expanded(head.engines or folder / path.stem)).resolve(),
        target=head.target,
        shapes=file.shapes,
        runtime=file.runtime,
        adapters=None if head.adapters is None else (base / expanded(head.adapters)).resolve(),
        merged_adapters=head.merged_adapters,
        tables={name: getattr(file, name) for name in OTHER_TABLES if name in file.model_fields_set},
    )


def engine_cache() -> Path:
    """Where engines of an installed package's deployments are built: in $TICKRT_CACHE, else in the user's cache folder.

    Each version of the package has a folder of its own, because its bundle may differ. Raises ConfigError.
    """
    named = os.environ.get("TICKRT_CACHE")
    cache = Path(named) if named else user_folder(partial(platformdirs.user_cache_path, "tickrt"), "set TICKRT_CACHE")
    return expanded(cache).absolute() / "engines" / metadata.version("tickrt")


def build_command(deployment_path: Path, target: str) -> str:
    """The command that builds a deployment's engines, with a relative path for files below the current folder."""
    path = Path(os.path.relpath(deployment_path))
    shown = deployment_path if path.parts[:1] == ("..",) else path
    if deployment_path.parent == PACKAGED:
        shown = Path(deployment_path.stem)
    return f"tickrt-build {shown} --target {target}"
