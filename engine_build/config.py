"""Build options: the deployment's `[build]` table, and what it stands for on a target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from engine_build.compile.worker import WATCHDOG_S
from runtime.base.errors import ConfigError, EngineError
from runtime.config.deployment import HOST_TARGETS, Deployment, Target
from runtime.config.explain import TABLE, VALUE, TomlTable
from runtime.devices.machine import cpu_flags, machine_of
from runtime.engines.engine import FEATURE_SEPARATOR, PLAIN, variant_name
from runtime.tick.denoise.slot_fields import CONTEXT_RING, NEEDS, RING, ROWS_FEATURES, STEP_FEATURES

Features = frozenset[str]
# Raised with every change to what a precision recipe does to a graph: engines of an older version are rebuilt.
RECIPE_VERSION = 6
# Likewise with every change to how cpu_graph and with_slot_sums rewrite graphs.
CPU_GRAPH_VERSION = 4
# Weights whose sum is larger go into a file beside an engine of ONNX Runtime: an ONNX file holds at most 2 GiB, and its
# optimization may add constants.
INLINE_LIMIT_BYTES = 1 << 29
Optimization = Literal["basic", "extended", "all"]
# Of the target cpu: the library of its engines.
Library = Literal["onnxruntime", "openvino", "auto"]
BACKENDS: tuple[Library, ...] = get_args(Library)
Precision = Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
Verbosity = Literal["none", "layer_names", "detailed"]
HardwareCompatibility = Literal["none", "ampere_plus", "same_compute_capability"]

# What an engine is for. Each kind has a precision, an optimization level and a workspace of its own.
Kind = Literal["decoder", "codec", "encoders", "planner"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# The engines of all kinds but encoders, by the part of their names before "_" or ".".
KIND_OF: Mapping[str, Kind] = {
    "decoder": "decoder", "rows": "decoder", "step": "decoder", "codec": "codec", "planner": "planner",
    "sampler": "planner",
}  # fmt: skip
# Published plans of codecs end the process at their first execute on cards from this compute capability on, unless they
# are built at a low optimization level.
LEVEL, CODEC_LEVEL, CODEC_LEVEL_FROM = 3, 1, (12, 0)

ALL_STEP_FEATURES = variant_name(STEP_FEATURES)
STEP_VARIANTS = (
    PLAIN, "guidance", "dcw", "dcw+guidance", "blend", "blend+guidance", "mask", "guidance+mask", "target",
    "guidance+target", "ode_noise", "guidance+ode_noise", "sde", "guidance+sde", "guidance+rcfg", "guidance+rescale",
    "ab2", "ab2+guidance", "ab2+blend+guidance", "ab2+guidance+mask", ALL_STEP_FEATURES,
)  # fmt: skip
ROWS_VARIANTS = (PLAIN, "gain", "mask", *map(variant_name, (ROWS_FEATURES, RING, CONTEXT_RING)))
# Instructions of x86 with which products of 8 bits, summed in 32, are faster than float32; on ARM that is not measured.
FAST_INT8_FLAGS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8"})
# The options that change what TensorRT builds.
TENSORRT_OPTIONS = (
    "optimization_level", "workspace_mib", "refit", "verbosity", "version_compatible", "hardware_compatibility",
)  # fmt: skip
# Of these, what TensorRT-RTX reads: its engines are portable, and tied to one release; it refits none without a GPU.
RTX_OPTIONS = ("optimization_level", "workspace_mib", "verbosity", "capabilities")
# What it does not do, by the option that asks for it.
RTX_REFUSES = {
    "refit": "its engines take no other weights: those of [deployment] merged_adapters are in them",
    "version_compatible": "its engines run on the release that built them",
    "hardware_compatibility": "its engines are portable without it, and [build] capabilities narrows them",
    "timing_cache": "it measures no kernels, so it has no timings to keep",
}
# Cards of compute capability 8.0 to 12.1. 7.5 is Turing; 9.0 and 10.0 (H100, B200) are no RTX cards.
RTX_CAPABILITIES = ("SM80", "SM86", "SM89", "SM120", "SM121")
# Those with products in fp8.
FP8_CAPABILITIES = ("SM89", "SM120", "SM121")
# In the names of cards that multiply bf16 at half the rate of fp16, and the first capability with products in bf16.
CONSUMER_CARDS = ("GeForce", "TITAN")
BF16_CAPABILITY = (8, 0)
# What codecs are in where the decoder is in 16 or 8 bits, and where their noise would be heard.
CODEC_PRECISION: Literal["fp16"] = "fp16"
QUIET_PRECISION: Literal["tf32"] = "tf32"
# Precisions of decoders, and what is around 8-bit products on a GPU: its range is float32's, so no scale is out of it.
EIGHT_BITS = ("fp8", "int8")
EIGHT_BITS_BASE: Literal["bf16"] = "bf16"

# The largest accepted error, relative to an output's largest value, where [build] names none. A GPU sums in another
# order than the reference; TF32 keeps 10 bits of a factor's mantissa, as float16 does, bfloat16 keeps 7. Engines are
# compared on random inputs, which are beyond what 8-bit scales are made for.
CPU_TOLERANCES = {"fp32": 1e-4, "int8": 0.2}
GPU_TOLERANCES = {"fp32": 1e-3, "tf32": 1e-2, "fp16": 2e-2, "bf16": 8e-2, "fp8": 0.5, "int8": 0.5}


Value = TypeVar("Value")


class PerKind(TomlTable, Generic[Value]):
    """A value per kind of engine. Default: that of the option."""

    decoder: Value | None = None
    codec: Value | None = None
    encoders: Value | None = None
    planner: Value | None = None


def _tag(value: object) -> str:
    return TABLE if isinstance(value, PerKind | Mapping) else VALUE


ONE, ALL = Tag(VALUE), Tag(TABLE)
Level = Annotated[int, Field(ge=0, le=5)]
Mebibytes = Annotated[int, Field(ge=1, le=1 << 20)]
# One value for all kinds of engines, or a table.
Precisions = Annotated[Annotated[Precision, ONE] | Annotated[PerKind[Precision], ALL], Discriminator(_tag)]
Levels = Annotated[Annotated[Level | None, ONE] | Annotated[PerKind[Level], ALL], Discriminator(_tag)]
Workspaces = Annotated[Annotated[Mebibytes | None, ONE] | Annotated[PerKind[Mebibytes], ALL], Discriminator(_tag)]
# The options that have a value per kind of engine.
PER_KIND = ("precision", "optimization_level", "workspace_mib")


class BuildConfig(BaseModel):
    """The `[build]` table. Rows and step graphs are always float32.

    A value per kind of engine is a table, such as `precision = { decoder = "bf16", codec = "fp16" }`: decoder (with
    rows and step graphs), codec, encoders (text, lyrics, timbre, structure) and planner (with its sampler).

    `optimization` is ONNX Runtime's, openvino_device OpenVINO's; from `optimization_level` on, options are TensorRT's,
    of which TensorRT-RTX has optimization_level, workspace_mib, verbosity and capabilities.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tolerance: float | None = Field(
        default=None,
        gt=0,
        description="The largest error against the graph, relative to the largest output. Default: by precision.",
    )
    threads: int = Field(default=0, ge=0, le=256, description="CPU threads of an engine; 0 = all cores.")
    watchdog_s: float = Field(
        default=WATCHDOG_S,
        ge=0,
        le=86_400,
        description="A build process that for so many seconds uses no CPU, reads, writes and says nothing hangs, in "
        "most cases for lack of memory: it is killed, and its task tried once more. 0 = it may wait for ever.",
    )
    precision: Precisions = Field(
        default="fp32",
        description="On the GPU targets, of all kinds of engines but the codec, or a table. The codec is in fp32 "
        "beside a decoder in fp32, else by default in fp16, or in tf32 where fp16 would be heard as noise. fp8 and "
        "int8 are for decoders: what is not in 8 bits is then in bf16, on the target cpu in float32, which knows int8 "
        "alone; all is in fp32 on openvino. fp16 keeps what may be beyond its range in float32. auto: fp16 on GeForce "
        "and RTX cards, bf16 on those of data centres; on the target cpu int8 if the processor has VNNI or AMX and no "
        "adapters are merged into the weights, else fp32.",
    )
    step_variants: tuple[str, ...] = Field(
        default=STEP_VARIANTS, description="The sets of step features that have a graph of their own."
    )

    optimization: Optimization = Field(
        default="extended",
        description="Graph optimization level. On the CPU basic also leaves attention and rotary embedding as they "
        "are; extended is valid on every machine of one architecture; all adds layouts of the processor it runs on, "
        "which the manifest names.",
    )
    backend: Library = Field(
        default="onnxruntime",
        description="Of the target cpu: the library of its engines. auto: OpenVINO for each graph that it executes in "
        "at most 0.9 of ONNX Runtime's time, measured at build. With openvino and auto, what ticks execute beside a "
        "decoder in fp32 without adapters stays in onnxruntime, and so does what OpenVINO does not take.",
    )
    openvino_device: str = Field(
        default="CPU", min_length=1, description='Of the target openvino: "CPU", or an Intel "GPU" or "NPU".'
    )

    optimization_level: Levels = Field(
        default=None,
        description="0 builds fastest, 5 searches longest. Or a table. Default: 3, and 1 of the codec where an engine "
        "may run on cards from compute capability 12 on.",
    )
    workspace_mib: Workspaces = Field(
        default=None, description="Memory limit of a tactic, or a table. Default: the whole device."
    )
    refit: bool = Field(default=False, description="Weights can be replaced in the plan.")
    verbosity: Verbosity = Field(default="layer_names", description="detailed shows single kernels in profiles.")
    version_compatible: bool = Field(default=False, description="Plans that run on later versions, slower.")
    hardware_compatibility: HardwareCompatibility = Field(
        default="none", description="Plans that run on other GPUs, slower."
    )
    timing_cache: bool | str = Field(
        default=True, description="true, false, or its folder, relative to the deployment file. Not for tensorrt-rtx."
    )
    capabilities: tuple[str, ...] = Field(
        default=(), description='The RTX cards that engines of tensorrt-rtx are for, as in ["SM89"]. Default: all.'
    )

    @field_validator("precision")
    @classmethod
    def _known_precisions(cls, value: Precisions) -> Precisions:
        if isinstance(value, PerKind):
            for kind in KINDS:
                if kind != "decoder" and getattr(value, kind) in EIGHT_BITS:
                    raise ValueError(f'{kind} = "{getattr(value, kind)}": 8 bits are for decoders')
        return value

    @field_validator("step_variants")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [variant_name(parse_variant(name)) for name in value]
        return tuple(dict.fromkeys([*names, ALL_STEP_FEATURES]))

    @field_validator("capabilities")
    @classmethod
    def _known_cards(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "SM75" in value:
            raise ValueError("Turing (SM75) is too old: TensorRT-RTX multiplies no float32 matrices on it")
        if unknown := sorted(set(value) - set(RTX_CAPABILITIES)):
            raise ValueError(f"no RTX card has {', '.join(unknown)}, expected some of {', '.join(RTX_CAPABILITIES)}")
        return tuple(name for name in RTX_CAPABILITIES if name in value)

    def of(self, engine: str) -> BuildConfig:
        """The options of a kind of engine, or of the engine of this name, with one value each."""
        kind = KIND_OF.get(engine.partition(".")[0].partition("_")[0], "encoders")
        return self.model_copy(update={name: self._value(name, kind) for name in PER_KIND})

    def _value(self, name: str, kind: Kind) -> Any:
        """The value that the table names for a kind of engine, else its default."""
        value = self._named(name, kind)
        if value is None:
            return {"precision": "fp32", "optimization_level": LEVEL}.get(name)
        return value

    def is_default(self, name: str, kind: Kind) -> bool:
        """Whether the table names no value for a kind of engine."""
        return self._named(name, kind) is None

    def _named(self, name: str, kind: Kind) -> Any:
        value = getattr(self, name)
        if isinstance(value, PerKind):
            return getattr(value, kind)
        if name == "precision" and kind != "decoder":
            return None if kind == "codec" else EIGHT_BITS_BASE if value in EIGHT_BITS else value
        return value

    def check_target(self, target: str) -> None:
        """Check that a target does what the options ask of it. Raises ConfigError."""
        if target == "tensorrt" and self.capabilities:
            fix = 'hardware_compatibility = "ampere_plus", or --target tensorrt-rtx'
            raise ConfigError("[build] capabilities is for the target tensorrt-rtx, not for tensorrt", fix=fix)
        defaults = {name: type(self).model_fields[name].default for name in RTX_REFUSES}
        asked = [name for name, default in defaults.items() if getattr(self, name) not in (False, default)]
        if target == "tensorrt-rtx" and asked:
            name = asked[0]
            raise ConfigError(f"[build] {name} is not for tensorrt-rtx: {RTX_REFUSES[name]}", fix=f"remove {name}")
        self._check_eight_bits(target)

    def _check_eight_bits(self, target: str) -> None:
        precision = self.of("decoder").precision
        if target in ("cuda", "openvino") and precision in EIGHT_BITS:
            fix = 'precision = "bf16", "fp16" or "fp32" in [build], or --target tensorrt'
            if target == "openvino":
                fix = 'precision = "fp32" in [build], or --target cpu'
            raise ConfigError(f'precision = "{precision}" is not for the target {target}', fix=fix)
        if precision != "fp8":
            return
        names = ", ".join(f'"{name}"' for name in FP8_CAPABILITIES)
        if target == "tensorrt-rtx" and not (self.capabilities and set(self.capabilities) <= set(FP8_CAPABILITIES)):
            found = ", ".join(name for name in self.capabilities if name not in FP8_CAPABILITIES) or "a portable engine"
            raise ConfigError(
                f'precision = "fp8" needs cards of compute capability 8.9 or later, and {found} is for earlier ones',
                fix=f'capabilities = [{names}] or some of them in [build], or precision = "int8"',
            )
        if target == "tensorrt" and self.hardware_compatibility == "ampere_plus":
            raise ConfigError(
                'precision = "fp8" needs compute capability 8.9 or later, and "ampere_plus" is for 8.0 too',
                fix='hardware_compatibility = "same_compute_capability", or precision = "int8" in [build]',
            )

    def tolerance_for(self, target: str, precision: str) -> float:
        """The largest accepted error of a target's engines in a precision."""
        if self.tolerance is not None:
            return self.tolerance
        if target == "cpu":
            return CPU_TOLERANCES[precision]
        return GPU_TOLERANCES[precision]


class PrecisionChoice(NamedTuple):
    """What `precision = "auto"` stands for, and why."""

    precision: Precision
    reason: str


def choose_precision(
    deployment: Deployment,
    target: Target,
    flags: Collection[str] | None = None,
    card: Mapping[str, str] | None = None,
) -> PrecisionChoice:
    """What "auto" is on a target, of decoders on the target cpu. flags: of the processor; card: as of for_target.

    GeForce cards multiply bf16, which is always summed in 32 bits, at half the rate of fp16 summed in 16.
    """
    if target == "tensorrt-rtx":
        return PrecisionChoice("fp16", "most RTX cards are GeForce cards, which are faster in it")
    if target == "openvino":
        return PrecisionChoice("fp32", "engines of OpenVINO are in float32")
    if target != "cpu":
        return _precision_of(_card_here(target) if card is None else card)
    if deployment.merged_adapters:
        return PrecisionChoice("fp32", "adapters are merged into the weights, which 8 bits cannot hold exactly")
    found = sorted(FAST_INT8_FLAGS & set(cpu_flags() if flags is None else flags))
    if not found:
        return PrecisionChoice("fp32", f"this processor has none of {', '.join(sorted(FAST_INT8_FLAGS))}")
    return PrecisionChoice("int8", f"this processor has {', '.join(found)}")


def _precision_of(card: Mapping[str, str]) -> PrecisionChoice:
    if not card:
        return PrecisionChoice("bf16", "there is no GPU here, and one of a data centre is assumed")
    name, capability = card["gpu"], card["compute_capability"]
    if any(word in name for word in CONSUMER_CARDS):
        return PrecisionChoice("fp16", f"{name} is a consumer's card, which is faster in it")
    if _numbers(capability) < BF16_CAPABILITY:
        return PrecisionChoice("fp16", f"{name} has compute capability {capability}, products in bf16 need 8.0")
    return PrecisionChoice("bf16", f"{name} is as fast in it as in fp16")


def for_target(
    options: BuildConfig, deployment: Deployment, target: Target, card: Mapping[str, str] | None = None
) -> BuildConfig:
    """The options with a value per kind of engine in place of "auto" and of defaults.

    card: the GPU's name ("gpu") and "compute_capability"; default: this machine's, empty where there is none.
    """
    card = _card_here(target) if card is None else card
    values = {name: {kind: getattr(options.of(kind), name) for kind in KINDS} for name in PER_KIND}
    precisions, levels = values["precision"], values["optimization_level"]
    for kind in (kind for kind in KINDS if precisions[kind] == "auto" and kind != "codec"):
        chosen = choose_precision(deployment, target, card=card).precision
        precisions[kind] = "fp32" if chosen in EIGHT_BITS and kind != "decoder" else chosen
    if has_automatic_codec(options):
        is_full = target in HOST_TARGETS or precisions["decoder"] in ("fp32", "tf32")
        precisions["codec"] = "fp32" if is_full else CODEC_PRECISION
    if options.is_default("optimization_level", "codec") and _may_run_on(CODEC_LEVEL_FROM, options, target, card):
        levels["codec"] = CODEC_LEVEL
    return options.model_copy(update={name: PerKind[Any](**values[name]) for name in PER_KIND})


def has_automatic_codec(options: BuildConfig) -> bool:
    """Whether the codec's precision is chosen here, and not by the deployment."""
    return options.is_default("precision", "codec") or options.of("codec").precision == "auto"


def _may_run_on(least: tuple[int, int], options: BuildConfig, target: Target, card: Mapping[str, str]) -> bool:
    """Whether a target's engines may run on a card of compute capability `least` or later."""
    if target == "tensorrt-rtx":
        return any(int(name.removeprefix("SM")) >= least[0] * 10 for name in options.capabilities or RTX_CAPABILITIES)
    if target != "tensorrt":
        return False
    if options.hardware_compatibility == "ampere_plus":
        return True
    return bool(card) and _numbers(card["compute_capability"]) >= least


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def _card_here(target: Target) -> Mapping[str, str]:
    """The first GPU of this machine, where the target uses one; empty where there is none."""
    try:
        return machine_of(target) if target in ("cuda", "tensorrt") else {}
    except EngineError:
        return {}


def parse_variant(name: str) -> Features:
    """ "dcw+guidance" -> {dcw, guidance}. Raises ValueError on features that the step graph does not have."""
    features = frozenset() if name == PLAIN else frozenset(name.split(FEATURE_SEPARATOR))
    if unknown := features - STEP_FEATURES:
        raise ValueError(f"unknown step features {sorted(unknown)}, expected some of {sorted(STEP_FEATURES)}")
    for feature, needed in NEEDS.items():
        if feature in features and needed not in features:
            raise ValueError(f"the variant {name!r} needs {needed} too: {needed}+{feature}")
    return features
