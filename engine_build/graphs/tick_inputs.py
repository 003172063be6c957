"""The inputs of the rows and step graphs: one table, from which graphs, builds and checks read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROWS_FEATURES = frozenset({"gain", "mask"})
STEP_FEATURES = frozenset({"blend", "dcw", "guidance", "mask", "ode_noise", "rcfg", "sde", "target"})

DIMENSIONS = {"S": "slots", "R": "rows", "T": "frames", "K": "conditions", "N": "negatives", "B": "bands"}


@dataclass(frozen=True)
class InputSpec:
    """An input: its shape in shape letters, its dtype, and the features that need it (none = always there)."""

    name: str
    letters: str
    features: frozenset[str] = frozenset()
    dtype: str = "float32"

    def wanted(self, features: frozenset[str]) -> bool:
        """Whether a graph with these features has it."""
        return not self.features or bool(self.features & features)

    def shape(self, channels: int) -> tuple[int | str, ...]:
        """Dimensions, names for the free ones."""
        sizes: dict[str, int | str] = {**DIMENSIONS, "C": channels, "1": 1}
        return tuple(sizes[letter] for letter in self.letters)


def _specs(features: str, *specs: tuple[str, ...]) -> list[InputSpec]:
    return [InputSpec(name, letters, frozenset(features.split()), *dtype) for name, letters, *dtype in specs]


ROWS_INPUTS = (
    *_specs("", ("latents", "STC"), ("row_slots", "R", "int64")),
    *_specs("mask", ("time", "S"), ("mask", "ST"), ("original", "STC"), ("mask_noise", "STC")),
    *_specs("gain", ("channel_gain", "STC")),
)
STEP_INPUTS = (
    *_specs("", ("latents", "STC"), ("velocity", "RTC"), ("positive_rows", "SK", "int64")),
    *_specs("", ("time", "S"), ("next_time", "S"), ("velocity_scale", "ST")),
    *_specs("blend", ("positive_weights", "SKT")),
    *_specs("guidance", ("negative_rows", "SN", "int64"), ("momentum_state", "STC")),
    *_specs("guidance", ("guidance", "ST"), ("momentum", "ST"), ("rescale", "ST")),
    *_specs("rcfg", ("use_cached_negative", "S", "bool"), ("cached_negative_velocity", "STC")),
    *_specs("mask", ("mask", "ST"), ("original", "STC")),
    *_specs("target", ("target", "STC"), ("target_curve", "ST"), ("target_gate", "S")),
    *_specs("ode_noise sde", ("step_noise", "STC")),
    *_specs("ode_noise", ("ode_noise", "ST")),
    *_specs("sde", ("sde", "S", "bool"), ("source", "STC"), ("sde_curve", "ST")),
    *_specs("dcw", ("dcw_low", "SB"), ("dcw_high", "SB"), ("dcw_pix", "ST")),
)
NEGATIVE_WEIGHTS = InputSpec("negative_weights", "SNT")


def step_inputs(features: Iterable[str]) -> tuple[InputSpec, ...]:
    """The inputs of the step graph with these features, in order. Without `blend`, K and N are 1."""
    features = frozenset(features)
    specs = [spec for spec in STEP_INPUTS if spec.wanted(features)]
    if "blend" not in features:
        return tuple(_one_condition(spec) for spec in specs)
    return (*specs, NEGATIVE_WEIGHTS) if "guidance" in features else tuple(specs)


def rows_inputs(features: Iterable[str]) -> tuple[InputSpec, ...]:
    """The inputs of the rows graph with these features, in order."""
    return tuple(spec for spec in ROWS_INPUTS if spec.wanted(frozenset(features)))


def _one_condition(spec: InputSpec) -> InputSpec:
    letters = spec.letters.replace("K", "1").replace("N", "1")
    return InputSpec(spec.name, letters, spec.features, spec.dtype)
