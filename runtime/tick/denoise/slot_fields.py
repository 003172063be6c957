"""The tensors of a tick, declared once: inputs of graphs, storage per slot, neutral values, features that need them.

The step and rows graphs, their engines' specs, the memory of a bucket and its uploads are all drawn from TENSORS. A new
step parameter is one line here, one in the public options, its operation in the step graph and in the tests' oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from runtime.config.sampler import APG_NUMBERS, GuidanceRule
from runtime.engines.adapters import FACTORS_A, FACTORS_B, ROW_WEIGHTS

DIMENSIONS = {
    "S": "slots", "R": "rows", "T": "frames", "K": "conditions", "N": "negatives", "B": "bands", "Q": "adapter_rank",
    "I": "adapter_inputs", "O": "adapter_outputs",
}  # fmt: skip
ROWS_FEATURES = frozenset({"gain", "mask"})
# Variants of the rows graph that put the frames of rows in another order: of latents, and of contexts.
RING, CONTEXT_RING = frozenset({"ring"}), frozenset({"context", "ring"})
STEP_FEATURES = frozenset({"ab2", "blend", "dcw", "guidance", "mask", "ode_noise", "rcfg", "rescale", "sde", "target"})
# Features of the step that need another one.
NEEDS = {"rcfg": "guidance", "rescale": "guidance"}
GUIDANCE_FEATURES = frozenset({"guidance", *(name for name, needed in NEEDS.items() if needed == "guidance")})
# A guided slot's rows in a step outside of its guidance interval, where others are guided: nothing is added. Without
# negative rows its difference is 0, so that the momentum, where the rule has one, stays as it is.
PAUSED_GUIDANCE = {"guidance": None, "momentum": 1.0, "pauses_guidance": True}


@dataclass(frozen=True, slots=True)
class TickTensor:
    """One input of the rows or the step graph: its shape in letters, dtype, and the value that changes nothing.

    step, rows: the features with which that graph reads it, "a b" for any of them, "a+b" for both, "" for always; None
    where it never does. "apg" is one of them where the bundle's guidance follows that rule. kind: "field" has a row per
    slot that the host writes; "state" a row per slot that only the device writes, double buffered; "layout" follows
    from which rows are whose; "adapter" is of the decoder for adapters.
    """

    name: str
    letters: str
    step: str | None = None
    rows: str | None = None
    kind: str = "field"
    dtype: str = "float32"
    neutral: float = 0.0

    def shape(self, channels: int) -> tuple[int | str, ...]:
        """Dimensions, names for the free ones."""
        sizes: dict[str, int | str] = {**DIMENSIONS, "C": channels, "1": 1}
        return tuple(sizes[letter] for letter in self.letters)


TENSORS = (
    TickTensor("latents", "STC", step="", rows="", kind="state"),
    TickTensor("row_slots", "R", rows="", kind="layout", dtype="int64"),
    TickTensor("velocity", "RTC", step="", kind="layout"),
    TickTensor("positive_rows", "SK", step="", kind="layout", dtype="int64"),
    TickTensor("time", "S", step="", rows="mask", neutral=1.0),
    TickTensor("next_time", "S", step="", neutral=1.0),
    TickTensor("velocity_scale", "ST", step="", neutral=1.0),
    TickTensor("positive_weights", "SKT", step="blend", kind="layout"),
    TickTensor("negative_rows", "SN", step="guidance", kind="layout", dtype="int64"),
    TickTensor("momentum_state", "STC", step="guidance+apg", kind="state"),
    TickTensor("guidance", "ST", step="guidance", neutral=1.0),
    TickTensor("momentum", "ST", step="guidance+apg", neutral=APG_NUMBERS["momentum"]),
    TickTensor("rescale", "ST", step="rescale"),
    TickTensor("pauses_guidance", "S", step="rcfg+apg blend+guidance+apg", dtype="bool"),
    TickTensor("use_cached_negative", "S", step="rcfg", dtype="bool"),
    TickTensor("cached_negative_velocity", "STC", step="rcfg", kind="state"),
    TickTensor("keeps_difference", "S", step="rcfg", dtype="bool"),
    TickTensor("kept_difference", "STC", step="rcfg", kind="state"),
    TickTensor("extrapolation", "S", step="ab2"),
    TickTensor("previous_velocity", "STC", step="ab2", kind="state"),
    TickTensor("mask", "ST", step="mask", rows="mask", neutral=1.0),
    TickTensor("original", "STC", step="mask", rows="mask"),
    TickTensor("mask_noise", "STC", rows="mask"),
    TickTensor("channel_gain", "STC", rows="gain", neutral=1.0),
    TickTensor("target", "STC", step="target"),
    TickTensor("target_curve", "ST", step="target"),
    TickTensor("target_gate", "S", step="target"),
    TickTensor("step_noise", "STC", step="ode_noise sde"),
    TickTensor("ode_noise", "ST", step="ode_noise"),
    TickTensor("sde", "S", step="sde", dtype="bool"),
    TickTensor("source", "STC", step="sde"),
    TickTensor("sde_curve", "ST", step="sde", neutral=1.0),
    TickTensor("dcw_low", "SB", step="dcw"),
    TickTensor("dcw_high", "SB", step="dcw"),
    TickTensor("dcw_pix", "ST", step="dcw"),
    TickTensor("negative_weights", "SNT", step="blend+guidance", kind="layout"),
    TickTensor(FACTORS_A, "QI", kind="adapter"),
    TickTensor(FACTORS_B, "QO", kind="adapter"),
    TickTensor(ROW_WEIGHTS, "RQ", kind="adapter"),
)
RING_TENSORS = (
    TickTensor("frames", "RTC", kind="layout"),
    TickTensor("order", "RT", kind="layout", dtype="int64"),
)
FIELDS = {tensor.name: tensor for tensor in TENSORS if tensor.kind == "field"}
STATES = {tensor.name: tensor for tensor in TENSORS if tensor.kind == "state"}
LAYOUT = {tensor.name: tensor for tensor in TENSORS if tensor.kind == "layout"}
ADAPTERS = {tensor.name: tensor for tensor in TENSORS if tensor.kind == "adapter"}


def step_inputs(features: Iterable[str], rule: GuidanceRule = "apg") -> tuple[TickTensor, ...]:
    """The inputs of the step graph with these features, in order. Without `blend`, K and N are 1."""
    chosen = frozenset((*features, rule))
    found = tuple(tensor for tensor in TENSORS if _is_read(tensor.step, chosen))
    return found if "blend" in chosen else tuple(_one_condition(tensor) for tensor in found)


def rows_inputs(features: Iterable[str]) -> tuple[TickTensor, ...]:
    """The inputs of the rows graph with these features, in order."""
    chosen = frozenset(features)
    return RING_TENSORS if chosen >= RING else tuple(tensor for tensor in TENSORS if _is_read(tensor.rows, chosen))


def written_states(features: Iterable[str], rule: GuidanceRule = "apg") -> tuple[str, ...]:
    """The double-buffered states that a step with these features writes, latents first."""
    chosen = frozenset((*features, rule))
    return tuple(name for name, tensor in STATES.items() if _is_read(tensor.step, chosen))


def _is_read(condition: str | None, features: frozenset[str]) -> bool:
    if not condition:
        return condition is not None
    return any(features.issuperset(alternative.split("+")) for alternative in condition.split())


def _one_condition(tensor: TickTensor) -> TickTensor:
    return replace(tensor, letters=tensor.letters.replace("K", "1").replace("N", "1"))
