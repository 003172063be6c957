"""Which tensor of a decoder or codec graph has which role: by shape first, then by name, else by asking.

No tensor has a role only because it is left: probe.py executes the graph, and refuses what does not act as its role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine_build.graphs.graph_file import Graph
from runtime.base.errors import ConfigError, did_you_mean
from runtime.engines.manifest import TensorInfo

Dimension = int | str
# Parts of usual tensor names, by role; they decide where several shapes fit.
NAMES: Mapping[str, tuple[str, ...]] = {
    "velocity": ("velocity", "output", "sample", "pred"),
    "latents": ("latent", "hidden_states", "sample", "noisy"),
    "time": ("time", "sigma"),
    "context": ("context", "known"),
    "condition": ("encoder_hidden_states", "cond", "text", "emb", "prompt", "pool", "context"),
    "condition_mask": ("mask",),
    "time_end": ("_r", "end", "next", "target"),
    "guidance": ("guidance", "cfg"),
    "frame_numbers": ("frame_number",),
}
REQUIRED = ("velocity", "latents", "time")
SHAPES = {
    "velocity": "an output [B, T, C] with a fixed number of channels C",
    "latents": "an input [B, T, C] of the velocity's shape",
    "time": "an input [B] for the flow time",
    "context": "an input [B, T, 2 C]",
    "condition": "an input [B, L, D] or [B, D] with a fixed width D",
    "condition_mask": "an input [B, L], where L is that of the condition [B, L, D]",
    "time_end": "an input [B] for the time where a jump ends, beside the time",
    "guidance": "an input [B] for the guidance that is built in, beside the time where a jump ends",
    "frame_numbers": "an input [B, T] for the number of each frame",
}


# Roles whose shape says enough where only one tensor has it.
UNMISTAKABLE = ("velocity", "latents")
# Of the inputs [B], whose names have parts in common: a time is none of these by its name.
NO_TIME = ("time_end", "guidance")
# Roles that a shape alone says nothing of.
NAMED = (*NO_TIME, "frame_numbers")
# Role -> the one with whose tensor it shares its frames or tokens.
BESIDE = {"latents": "velocity", "context": "latents", "condition_mask": "condition", "frame_numbers": "latents"}


@dataclass(frozen=True)
class AssignedRole:
    """The tensor that was chosen for a role, and why."""

    role: str
    tensor: TensorInfo
    reason: str


Ask = Callable[[str, Sequence[TensorInfo]], TensorInfo | None]


def decoder_roles(graph: Graph, given: Mapping[str, str], ask: Ask) -> dict[str, AssignedRole]:
    """Role -> choice for every tensor of a velocity decoder. `given`: role -> tensor name.

    ask: called where several tensors fit a role. Raises ConfigError where the graph cannot be a velocity decoder.
    """
    _check_given(graph, given)
    rest = [info for info in graph.inputs if info.name not in given.values()]
    found: dict[str, AssignedRole] = {}
    tensors = {info.name: info for info in (*graph.inputs, *graph.outputs)}
    # In this order: what fits a role is told by the shapes of those before it.
    for role in NAMES:
        if role == "guidance" and "time_end" not in found:
            if role in given:
                raise ConfigError("guidance is of jumps, which end at time_end", fix="--role time_end=NAME, too")
            continue
        if role in given:
            found[role] = AssignedRole(role, _given(graph, role, tensors[given[role]], found), "given")
            continue
        fitting = [info for info in (graph.outputs if role == "velocity" else rest) if _fits(role, info, found)]
        fitting = [info for info in fitting if role not in NAMED or _is_named(role, info)]
        if beside := found.get(BESIDE.get(role, "")):
            # Exporters name an axis anew in each tensor, or by what makes it: a name is a hint, and no condition.
            fitting = [info for info in fitting if _may_equal(info, beside.tensor, 1)] or fitting
        choice = _choose(graph, role, fitting, ask)
        if choice is not None:
            found[role] = choice
            rest = [info for info in rest if info is not choice.tensor]
    _check_all_used(graph, found)
    _check_types(graph, list(found.values()))
    return found


def codec_roles(graph: Graph, channels: int) -> dict[str, AssignedRole]:
    """Roles latents, audio and start_frame of a codec's decoding graph. Raises ConfigError where it is none."""
    found: dict[str, AssignedRole] = {}
    latents = [info for info in graph.inputs if len(info.shape) == 3 and info.shape[2] == channels]
    starts = [info for info in graph.inputs if len(info.shape) == 1 and info.dtype == "int64"]
    audio = [info for info in graph.outputs if len(info.shape) == 3]
    if len(latents) != 1 or len(audio) != 1:
        raise _refused(
            graph, f"a codec that decodes these latents: one input [B, T, {channels}], one output [B, channels, N]"
        )
    found["latents"] = AssignedRole("latents", latents[0], f"the input [B, T, {channels}]")
    if len(starts) == 1:
        found["start_frame"] = AssignedRole("start_frame", starts[0], "the int64 input [B]")
    found["audio"] = AssignedRole("audio", audio[0], "the output with three dimensions")
    _check_all_used(graph, found)
    _check_types(graph, [choice for choice in found.values() if choice.role != "start_frame"])
    return found


def listed(tensors: Sequence[TensorInfo]) -> str:
    """Names, dtypes and shapes, as text."""
    return ", ".join(f"{info.name} {info.dtype}[{', '.join(_shown(info))}]" for info in tensors) or "none"


def _shown(info: TensorInfo) -> list[str]:
    """Dimensions as text; ? for one without a name."""
    return ["?" if _is_unnamed(info, axis) else str(size) for axis, size in enumerate(info.shape)]


def _fits(role: str, info: TensorInfo, found: Mapping[str, AssignedRole]) -> bool:
    rank, last = len(info.shape), info.shape[-1] if info.shape else 0
    if role == "velocity":
        return rank == 3 and isinstance(last, int)
    if role in ("time", *NO_TIME):
        return rank == 1 and info.dtype != "bool"  # a flag is no number
    channels = int(found["velocity"].tensor.shape[2])
    if role == "latents":
        return rank == 3 and last == channels
    if role == "context":
        return rank == 3 and last == 2 * channels
    if role == "condition":
        return rank in (2, 3) and isinstance(last, int)
    if role == "frame_numbers":
        return rank == 2 and isinstance(last, str)
    # A mask, [R,L]: only a condition of three dimensions has one. Where the number of tokens is free, a fixed size is
    # the width of another condition.
    shape = found["condition"].tensor.shape if "condition" in found else ()
    is_open = [isinstance(size, str) for size in (*shape[1:2], last)]
    return rank == 2 and len(shape) == 3 and (all(is_open) or last == shape[1])


def _choose(graph: Graph, role: str, fitting: Sequence[TensorInfo], ask: Ask) -> AssignedRole | None:
    """The only tensor that fits, or the only one of these whose name is usual; else what the user says.

    Of `[R, L, D]` and `[R, L]` the former is the condition, although a vector `[R, D]` fits too. The only tensor's name
    may be usual for another role: then the user is asked, too.
    """
    fitting = [info for info in fitting if len(info.shape) == max(len(other.shape) for other in fitting)]
    named = [info for info in fitting if _is_named(role, info)]
    if not fitting and role in REQUIRED:
        raise _refused(graph, f"a velocity decoder: it has not {SHAPES[role]}")
    if not fitting:
        return None
    if len(fitting) == 1 and (named or role in UNMISTAKABLE or not _is_named_otherwise(role, fitting[0])):
        return AssignedRole(role, fitting[0], "the only one of this shape")
    if len(named) == 1:
        return AssignedRole(role, named[0], "by its shape and its name")
    chosen = ask(role, fitting)
    return None if chosen is None else AssignedRole(role, chosen, "asked")


def _is_named(role: str, info: TensorInfo) -> bool:
    name = info.name.lower()
    others = NO_TIME if role == "time" else ()
    return any(part in name for part in NAMES[role]) and not any(part in name for one in others for part in NAMES[one])


def _is_named_otherwise(role: str, info: TensorInfo) -> bool:
    return role == "context" or any(
        part in info.name.lower() for other, parts in NAMES.items() if other != role for part in parts
    )


def _may_equal(one: TensorInfo, other: TensorInfo, axis: int) -> bool:
    """Whether two tensors may have one size there: not where both are fixed, or both named, and differ."""
    sizes = {type(info.shape[axis]): info.shape[axis] for info in (one, other)}
    is_open = len(sizes) == 2 or _is_unnamed(one, axis) or _is_unnamed(other, axis)
    return is_open or one.shape[axis] == other.shape[axis]


def _is_unnamed(info: TensorInfo, axis: int) -> bool:
    """Whether a dimension has the name that read_graph gives to one without."""
    return info.shape[axis] == f"{info.name}.{axis}"


def _check_given(graph: Graph, given: Mapping[str, str]) -> None:
    for role, name in given.items():
        if role not in NAMES:
            raise ConfigError(
                f"there is no role {role!r}", fix=did_you_mean(role, NAMES) or f"one of {', '.join(NAMES)}"
            )
        tensors = graph.outputs if role == "velocity" else graph.inputs
        names = [info.name for info in tensors]
        if name not in names:
            fix = did_you_mean(name, names) or f"one of {', '.join(names)}"
            raise ConfigError(f"--role {role}={name}: {graph.label} has no such tensor", fix=fix)


def _given(graph: Graph, role: str, info: TensorInfo, found: Mapping[str, AssignedRole]) -> TensorInfo:
    if not _fits(role, info, found):
        raise ConfigError(
            f"{graph.label}: {listed([info])} is not {SHAPES[role]}",
            fix=f"--role {role}=NAME of another one, or leave it out",
        )
    return info


def _check_all_used(graph: Graph, found: Mapping[str, AssignedRole]) -> None:
    used = {choice.tensor.name for choice in found.values()}
    rest = [info for info in (*graph.inputs, *graph.outputs) if info.name not in used]
    if rest:
        raise ConfigError(
            f"{graph.label} has tensors that no role fits: {listed(rest)}",
            fix="export the graph without them: a second condition joined to the first, numbers that stay the same as "
            "constants; --role ROLE=NAME names a decoder's tensor",
        )


def _check_types(graph: Graph, choices: Sequence[AssignedRole]) -> None:
    for choice in choices:
        if choice.tensor.dtype != "float32":
            hint = " (the flow time, from 1 to 0)" if choice.role == "time" else ""
            raise ConfigError(
                f"{graph.label}: {choice.role} {choice.tensor.name!r} is {choice.tensor.dtype}, expected float32{hint}",
                fix="export the graph in float32; [build] precision lowers it for a GPU",
            )


def _refused(graph: Graph, what: str) -> ConfigError:
    return ConfigError(
        f"{graph.label} is not {what}; inputs: {listed(graph.inputs)}; outputs: {listed(graph.outputs)}",
        fix="configs/docs/pages/model.md says what a graph needs; --role ROLE=NAME names a tensor",
    )
