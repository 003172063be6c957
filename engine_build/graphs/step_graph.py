"""The solver as ONNX graphs over all slots at once: `rows` runs before the decoder, `step` after it.

A graph is written for a set of features; where a slot does not use a feature, its inputs have neutral values, so there
are no branches per slot. All arithmetic is float32 and per slot: a NaN stays in its slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx

from engine_build.graphs.graph_writer import GraphWriter
from runtime.base.errors import BuildError
from runtime.config.sampler import APG, GuidanceSpec
from runtime.engines.engine import variant_name
from runtime.tick.denoise.slot_fields import NEEDS, ROWS_FEATURES, STEP_FEATURES, TickTensor, rows_inputs, step_inputs

BLEND_EPSILON, NORM_EPSILON = 1e-8, 1e-12
LARGEST = float(np.finfo(np.float32).max)


class BlendRule(NamedTuple):
    """How a slot's positive rows are blended: the power (2, 4 or 8) of the mean of their clean latents, around
    `silence` `[C]`; 1: the mean of their velocities. energy_below: at times below it, the power is 2 at most.
    """

    power: int = 1
    silence: tuple[float, ...] = ()
    energy_below: float = 0.0


MEAN = BlendRule()


def rows_graph(channels: int, features: Iterable[str]) -> onnx.ModelProto:
    """Latents of all slots -> the decoder's input, one row per condition; steps 1 and 2. Raises BuildError.

    Outputs: hidden_states `[R,T,C]`; with `mask` also masked_latents `[S,T,C]`, in which the gain is not applied.
    """
    features = _checked(features, ROWS_FEATURES)
    graph = GraphWriter(f"rows.{variant_name(features)}")
    inputs = _Inputs(graph, channels, rows_inputs(features))
    latents = _mask_before(graph, inputs) if "mask" in features else inputs["latents"]
    gained = _scaled(graph, latents, inputs["channel_gain"]) if "gain" in features else latents
    hidden = graph.op("Gather", gained, inputs["row_slots"], axis=0)
    graph.output("hidden_states", hidden, ("rows", "frames", channels))
    if "mask" in features:
        graph.output("masked_latents", latents, ("slots", "frames", channels))
    return graph.model()


def step_graph(
    channels: int, features: Iterable[str], rule: BlendRule = MEAN, guidance: GuidanceSpec = APG
) -> onnx.ModelProto:
    """Latents and velocities of all slots -> their next latents; steps 3 to 7. Raises BuildError.

    Outputs: next_latents `[S,T,C]`, finite `[S]` bool; with `guidance` by the rule apg next_momentum_state, with `rcfg`
    next_cached_negative_velocity and next_kept_difference, with `ab2` next_previous_velocity, all `[S,T,C]`.
    """
    features = _checked(features, STEP_FEATURES)
    graph = GraphWriter(f"step.{variant_name(features)}")
    inputs = _Inputs(graph, channels, step_inputs(features, guidance.rule))
    velocity = _velocity(graph, inputs, "positive")
    if "blend" in features and rule.power > 1:
        velocity = _keep_level(graph, inputs, velocity, rule)
    if "guidance" in features:
        velocity = _guide(graph, inputs, velocity, channels, guidance)
    if "ab2" in features:
        velocity = _extrapolate(graph, inputs, velocity, channels)
    latents = _integrate(graph, inputs, velocity, features)
    if "dcw" in features:
        latents = _dcw(graph, inputs, velocity, latents, channels)
    finite = _finite(graph, latents)
    graph.output("next_latents", latents, ("slots", "frames", channels))
    graph.output("finite", finite, ("slots",), np.bool_)
    return graph.model()


class _Inputs(Mapping[str, str]):
    """The graph's inputs by name, and each as a column that broadcasts against `[S,T,C]`, made once."""

    def __init__(self, graph: GraphWriter, channels: int, specs: Iterable[TickTensor]) -> None:
        self._graph = graph
        self._specs = {spec.name: spec for spec in specs}
        for spec in self._specs.values():
            graph.input(spec.name, spec.shape(channels), np.dtype(spec.dtype))
        self._columns: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self._specs[name].name

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def column(self, name: str) -> str:
        """`[S]` -> `[S,1,1]`, `[S,T]` -> `[S,T,1]`."""
        if name not in self._columns:
            axes = [1, 2] if self._specs[name].letters == "S" else [2]
            with self._graph.scope("columns"):
                self._columns[name] = _unsqueeze(self._graph, name, *axes)
        return self._columns[name]


def _checked(features: Iterable[str], known: frozenset[str]) -> frozenset[str]:
    features = frozenset(features)
    if unknown := features - known:
        raise BuildError(f"unknown features {sorted(unknown)}, expected some of {sorted(known)}")
    for feature, needed in NEEDS.items():
        if feature in features and needed not in features:
            raise BuildError(f"the feature {feature} needs {needed}", fix=f"build {needed}+{feature}")
    return features


def _mask_before(graph: GraphWriter, inputs: _Inputs) -> str:
    """1. m x + (1-m)(t n + (1-t) o)."""
    with graph.scope("mask"):
        time = inputs.column("time")
        noised = _mix(graph, time, inputs["mask_noise"], inputs["original"])
        return _mix(graph, inputs.column("mask"), inputs["latents"], noised)


def _scaled(graph: GraphWriter, latents: str, gain: str) -> str:
    """2. The gain never enters the state."""
    with graph.scope("gain"):
        return graph.op("Mul", latents, gain)


def _velocity(graph: GraphWriter, inputs: _Inputs, side: str) -> str:
    """3. Each slot's own row, or the blend of its rows."""
    with graph.scope(side):
        rows = inputs[f"{side}_rows"]
        if f"{side}_weights" in inputs:
            return _blend(graph, inputs["velocity"], rows, inputs[f"{side}_weights"])
        only = graph.op("Squeeze", rows, graph.constant([1], np.int64))
        return graph.op("Gather", inputs["velocity"], only, axis=0)


def _blend(graph: GraphWriter, velocity: str, rows: str, weights: str) -> str:
    """sum(w_i v_i) / max(sum(w_i), 1e-8) per frame; a row of weight 0 is ignored, also where it is not finite."""
    with graph.scope("blend"):
        gathered = graph.op("Gather", velocity, rows, axis=0)  # [S,K,T,C]
        weight = _unsqueeze(graph, weights, 3)  # [S,K,T,1]
        unused = graph.op("Equal", weight, graph.constant(0.0))
        weighted = graph.op("Where", unused, graph.constant(0.0), graph.op("Mul", gathered, weight))
        conditions = graph.constant([1], np.int64)
        total = graph.op("ReduceSum", weighted, conditions, keepdims=0)
        share = graph.op("ReduceSum", weight, conditions, keepdims=0)
        return graph.op("Div", total, graph.op("Max", share, graph.constant(BLEND_EPSILON)))


def _keep_level(graph: GraphWriter, inputs: _Inputs, mean: str, rule: BlendRule) -> str:
    """3. x0 as the mean of signed powers of the rows' x0, each value by itself: the root of sum(w_i x0_i^p) / sum(w_i).

    The mean of velocities halves what one of two rows has alone. Nothing changes where rows agree, and not a bit where
    one row has all the weight: a slot without a blend does not depend on what others of its tick have.
    """
    with graph.scope("level"):
        time, weight = inputs.column("time"), _unsqueeze(graph, inputs["positive_weights"], 3)  # [S,1,1], [S,K,T,1]
        distance = graph.op("Sub", inputs["latents"], graph.constant(rule.silence))  # [S,T,C]
        is_late = None
        if rule.power > 2 and rule.energy_below > 0:
            is_late = graph.op("Less", time, graph.constant(rule.energy_below))
        powers = _signed_power(graph, _alone(graph, inputs, distance, weight), rule.power, is_late)
        weights = _over_rows(graph, weight)  # [S,T,1]
        whole = graph.op("Max", weights, graph.constant(BLEND_EPSILON))
        total = graph.op("Div", _over_rows(graph, graph.op("Mul", weight, powers)), whole)
        clean = _signed_root(graph, total, rule.power, is_late)  # [S,T,C]
        missing = graph.op("Sub", clean, graph.op("Sub", distance, graph.op("Mul", mean, time)))
        level = graph.op("Sub", mean, graph.op("Div", missing, time))
        largest = graph.op("ReduceMax", weight, graph.constant([1], np.int64), keepdims=0)
        return graph.op("Where", graph.op("Equal", largest, weights), mean, level)


def _alone(graph: GraphWriter, inputs: _Inputs, distance: str, weight: str) -> str:
    """How far each row's x0 is from silence `[S,K,T,C]`, 0 where it has no weight."""
    velocity = graph.op("Gather", inputs["velocity"], inputs["positive_rows"], axis=0)
    drift = graph.op("Mul", velocity, _unsqueeze(graph, inputs["time"], 1, 2, 3))
    unused = graph.op("Equal", weight, graph.constant(0.0))
    return graph.op("Where", unused, graph.constant(0.0), graph.op("Sub", _unsqueeze(graph, distance, 1), drift))


def _signed_power(graph: GraphWriter, value: str, power: int, is_late: str | None) -> str:
    """sign(x) |x|^p of `[S,K,T,C]` by products, of which the root is exactly x; p = 2 in the slots that are late."""
    energy = graph.op("Mul", value, graph.op("Abs", value))
    if power == 2:
        return energy
    square = graph.op("Mul", value, value)
    raised = graph.op("Mul", energy, square if power == 4 else graph.op("Mul", square, graph.op("Mul", square, square)))
    return graph.op("Where", _unsqueeze(graph, is_late, 1), energy, raised) if is_late else raised


def _signed_root(graph: GraphWriter, value: str, power: int, is_late: str | None) -> str:
    """The root of such powers `[S,T,C]`: a square root for each time that 2 divides the power."""
    late = root = graph.op("Sqrt", graph.op("Abs", value))
    for _ in range(power.bit_length() - 2):
        root = graph.op("Sqrt", root)
    return graph.op("Mul", graph.op("Sign", value), graph.op("Where", is_late, late, root) if is_late else root)


def _over_rows(graph: GraphWriter, values: str) -> str:
    """The sum over a slot's rows `[S,T,...]`."""
    return graph.op("ReduceSum", values, graph.constant([1], np.int64), keepdims=0)


def _guide(graph: GraphWriter, inputs: _Inputs, positive: str, channels: int, rule: GuidanceSpec) -> str:
    """4. Guidance by the bundle's rule (see GuidanceSpec), and the rescale.

    Written from v_pos, of which not a bit changes where the guidance is 1.
    """
    negative = _negative(graph, inputs, channels)
    with graph.scope("guidance"):
        if "pauses_guidance" in inputs:  # a cached or a blended negative differs from what it stands in for
            negative = graph.op("Where", inputs.column("pauses_guidance"), positive, negative)
        difference, length = _kept(graph, inputs, graph.op("Sub", positive, negative), channels), ""
        if rule.rule == "apg":
            difference = _momentum(graph, inputs, difference, channels)
            length = _norm(graph, positive, rule)
            difference = _project(graph, _limit(graph, difference, rule), positive, length, rule)
        strength = graph.op("Sub", inputs.column("guidance"), graph.constant(1.0))
        guided = graph.op("Add", positive, graph.op("Mul", strength, difference))
        return _rescale(graph, inputs, guided, positive, length, rule) if "rescale" in inputs else guided


def _negative(graph: GraphWriter, inputs: _Inputs, channels: int) -> str:
    """The negative rows' velocity, or the slot's cached one."""
    fresh = _velocity(graph, inputs, "negative")
    if "use_cached_negative" not in inputs:
        return fresh
    with graph.scope("rcfg"):
        negative = graph.op("Where", inputs.column("use_cached_negative"), inputs["cached_negative_velocity"], fresh)
    return _state(graph, "cached_negative_velocity", negative, channels)


def _kept(graph: GraphWriter, inputs: _Inputs, difference: str, channels: int) -> str:
    """The difference of the slot's last step where it keeps that (mode "alternate")."""
    if "keeps_difference" not in inputs:
        return difference
    with graph.scope("alternate"):
        difference = graph.op("Where", inputs.column("keeps_difference"), inputs["kept_difference"], difference)
    return _state(graph, "kept_difference", difference, channels)


def _state(graph: GraphWriter, name: str, value: str, channels: int) -> str:
    """The value of a state `[S,T,C]` behind the step."""
    graph.output(f"next_{name}", value, ("slots", "frames", channels))
    return f"next_{name}"


def _momentum(graph: GraphWriter, inputs: _Inputs, difference: str, channels: int) -> str:
    """M <- d + mu M; M is the difference from here on."""
    with graph.scope("momentum"):
        kept = graph.op("Mul", inputs.column("momentum"), inputs["momentum_state"])
        momentum = graph.op("Add", difference, kept)
    return _state(graph, "momentum_state", momentum, channels)


def _limit(graph: GraphWriter, difference: str, rule: GuidanceSpec) -> str:
    """d min(1, limit/|d|), written so that |d| = 0 divides nothing by zero; d itself where the limit is 0."""
    if not rule.norm_limit:
        return difference
    with graph.scope("limit"):
        limit = graph.constant(rule.norm_limit)
        length = graph.op("Max", _norm(graph, difference, rule), limit)
        return graph.op("Mul", difference, graph.op("Div", limit, length))


def _project(graph: GraphWriter, difference: str, positive: str, length: str, rule: GuidanceSpec) -> str:
    """d with `parallel` times its component along v_pos; all of d where v_pos is 0."""
    if rule.parallel == 1.0:
        return difference
    with graph.scope("project"):
        product = graph.op("Mul", difference, positive)
        along = graph.op("ReduceSum", product, _norm_axes(graph, rule), keepdims=1)
        share = graph.op("Div", graph.op("Div", along, length), length)
        if rule.parallel:
            share = graph.op("Mul", share, graph.constant(1.0 - rule.parallel))
        return graph.op("Sub", difference, graph.op("Mul", share, positive))


def _rescale(graph: GraphWriter, inputs: _Inputs, guided: str, positive: str, length: str, rule: GuidanceSpec) -> str:
    """r v |v_pos|/|v| + (1-r) v as v (1 + r (|v_pos|/|v| - 1)); |v| = 0 leaves v as it is, zero.

    Of whole generations not lengths, but standard deviations. length: of v_pos, where it is known.
    """
    with graph.scope("rescale"):
        if rule.norms == "all":
            length = _norm(graph, _around_mean(graph, positive), rule)
            found = _norm(graph, _around_mean(graph, guided), rule)
        else:
            length, found = length or _norm(graph, positive, rule), _norm(graph, guided, rule)
        excess = graph.op("Sub", graph.op("Div", length, found), graph.constant(1.0))
        factor = graph.op("Add", graph.op("Mul", inputs.column("rescale"), excess), graph.constant(1.0))
        return graph.op("Mul", guided, factor)


def _extrapolate(graph: GraphWriter, inputs: _Inputs, velocity: str, channels: int) -> str:
    """v + c (v - v_prev), c = h / (2 h_prev): two-step Adams-Bashforth for unequal steps; c = 0 leaves v as it is."""
    with graph.scope("ab2"):
        change = graph.op("Sub", velocity, inputs["previous_velocity"])
        extrapolated = graph.op("Add", velocity, graph.op("Mul", inputs.column("extrapolation"), change))
    _state(graph, "previous_velocity", velocity, channels)
    return extrapolated


def _integrate(graph: GraphWriter, inputs: _Inputs, velocity: str, features: frozenset[str]) -> str:
    """5 and 6. Euler where nothing changes x0; else through x0."""
    latents, clean = _euler(graph, inputs, velocity), ""
    if features & {"mask", "target", "sde"}:
        plain = _plain_clean(graph, inputs, velocity)
        clean = _changed_clean(graph, inputs, plain, features)
        if clean != plain:
            # Value by value: the rounding of a slot that changes nothing does not depend on what others have.
            is_plain = graph.op("Equal", clean, plain)
            latents = graph.op("Where", is_plain, latents, _ode(graph, inputs, clean))
    if "ode_noise" in features:
        latents = _add_noise(graph, inputs, latents)
    return _sde(graph, inputs, clean, latents) if "sde" in features else latents


def _euler(graph: GraphWriter, inputs: _Inputs, velocity: str) -> str:
    """x + (t'-t) s v."""
    with graph.scope("euler"):
        elapsed = _unsqueeze(graph, graph.op("Sub", inputs["next_time"], inputs["time"]), 1)
        factor = _unsqueeze(graph, graph.op("Mul", elapsed, inputs["velocity_scale"]), 2)
        return graph.op("Add", inputs["latents"], graph.op("Mul", velocity, factor))


def _plain_clean(graph: GraphWriter, inputs: _Inputs, velocity: str) -> str:
    """5. x0 = x - t s v."""
    with graph.scope("clean"):
        factor = graph.op("Mul", inputs.column("time"), inputs.column("velocity_scale"))
        return graph.op("Sub", inputs["latents"], graph.op("Mul", velocity, factor))


def _changed_clean(graph: GraphWriter, inputs: _Inputs, clean: str, features: frozenset[str]) -> str:
    """5. The mask, then the target; x0 itself where the share of both is neutral."""
    if "mask" in features:
        with graph.scope("mask"):
            clean = _mix(graph, inputs.column("mask"), clean, inputs["original"])
    if "target" in features:
        with graph.scope("target"):
            alpha = graph.op("Mul", inputs.column("target_curve"), inputs.column("target_gate"))
            clean = _mix(graph, alpha, inputs["target"], clean)
    return clean


def _ode(graph: GraphWriter, inputs: _Inputs, clean: str) -> str:
    """6. (t'/t) x + (1 - t'/t) x0; exactly x0 at t' = 0."""
    with graph.scope("ode"):
        ratio = graph.op("Div", inputs.column("next_time"), inputs.column("time"))
        return _mix(graph, ratio, inputs["latents"], clean)


def _add_noise(graph: GraphWriter, inputs: _Inputs, latents: str) -> str:
    """6. Plus noise * curve * t'."""
    with graph.scope("ode_noise"):
        amount = graph.op("Mul", inputs.column("ode_noise"), inputs.column("next_time"))
        return graph.op("Add", latents, graph.op("Mul", amount, inputs["step_noise"]))


def _sde(graph: GraphWriter, inputs: _Inputs, clean: str, ode: str) -> str:
    """6. t' noise + (1-t') (c x0 + (1-c) source) in the slots with the SDE sampler."""
    with graph.scope("sde"):
        mixed = _mix(graph, inputs.column("sde_curve"), clean, inputs["source"])
        noised = _mix(graph, inputs.column("next_time"), inputs["step_noise"], mixed)
        return graph.op("Where", inputs.column("sde"), noised, ode)


def _dcw(graph: GraphWriter, inputs: _Inputs, velocity: str, latents: str, channels: int) -> str:
    """7. The new x moves along its difference from y = x_before - t v, per frame (pix) and per Haar band."""
    with graph.scope("dcw"):
        drift = graph.op("Mul", velocity, inputs.column("time"))
        difference = graph.op("Sub", latents, graph.op("Sub", inputs["latents"], drift))
        pixels = graph.op("Mul", inputs.column("dcw_pix"), difference)
        moved = graph.op("Add", latents, pixels)
        return graph.op("Add", moved, _haar_correction(graph, inputs, difference, channels))


def _haar_correction(graph: GraphWriter, inputs: _Inputs, difference: str, channels: int) -> str:
    """lambda_l on the low band and lambda_h on the high band of the difference, transformed back.

    The transform is linear, so one level of it and its inverse come to half the sum and half the difference of a pair.
    """
    with graph.scope("haar"):
        first, second = _pairs(graph, difference, channels)
        low = graph.op("Mul", _band(graph, inputs, "low"), graph.op("Add", first, second))
        high = graph.op("Mul", _band(graph, inputs, "high"), graph.op("Sub", first, second))
        pairs = graph.op("Concat", graph.op("Add", low, high), graph.op("Sub", low, high), axis=2)
        frames = graph.op("Reshape", pairs, graph.constant([0, -1, channels], np.int64))
        zero, one = graph.constant([0], np.int64), graph.constant([1], np.int64)
        return graph.op("Slice", frames, zero, _length(graph, difference), one)


def _pairs(graph: GraphWriter, frames: str, channels: int) -> list[str]:
    """`[S,T,C]` -> the first and the second of each pair of frames, `[S,B,1,C]`; a zero frame is added to an odd T."""
    odd = graph.op("Mod", _length(graph, frames), graph.constant([2], np.int64))
    before, after = graph.constant([0, 0, 0, 0], np.int64), graph.constant([0], np.int64)
    even = graph.op("Pad", frames, graph.op("Concat", before, odd, after, axis=0))
    pairs = graph.op("Reshape", even, graph.constant([0, -1, 2, channels], np.int64))
    return graph.ops("Split", 2, pairs, axis=2, num_outputs=2)


def _band(graph: GraphWriter, inputs: _Inputs, band: str) -> str:
    """Half of lambda, `[S,B,1,1]`: lambda_l = t low, lambda_h = (1-t) high."""
    time = graph.op("Mul", _unsqueeze(graph, inputs["time"], 1), graph.constant(0.5))
    weight = time if band == "low" else graph.op("Sub", graph.constant(0.5), time)
    return _unsqueeze(graph, graph.op("Mul", inputs[f"dcw_{band}"], weight), 2, 3)


def _finite(graph: GraphWriter, latents: str) -> str:
    """Per slot: the sum is a number. NaN and infinity stay in a sum, and compare as false."""
    with graph.scope("finite"):
        total = graph.op("ReduceSum", latents, graph.constant([1, 2], np.int64), keepdims=0)
        return graph.op("Less", graph.op("Abs", total), graph.constant(LARGEST))


def _mix(graph: GraphWriter, share: str, inside: str, outside: str) -> str:
    """share * inside + (1 - share) * outside; exactly one of them where the share is 0 or 1."""
    rest = graph.op("Sub", graph.constant(1.0), share)
    return graph.op("Add", graph.op("Mul", share, inside), graph.op("Mul", rest, outside))


def _norm(graph: GraphWriter, value: str, rule: GuidanceSpec) -> str:
    """Norm per channel over time `[S,1,C]`, or of all `[S,1,1]`; at least 1e-12, so that dividing by it is safe."""
    squares = graph.op("ReduceSum", graph.op("Mul", value, value), _norm_axes(graph, rule), keepdims=1)
    return graph.op("Max", graph.op("Sqrt", squares), graph.constant(NORM_EPSILON))


def _norm_axes(graph: GraphWriter, rule: GuidanceSpec) -> str:
    return graph.constant([1] if rule.norms == "channel" else [1, 2], np.int64)


def _around_mean(graph: GraphWriter, value: str) -> str:
    """A slot's values without their mean over time and channels."""
    return graph.op("Sub", value, graph.op("ReduceMean", value, graph.constant([1, 2], np.int64), keepdims=1))


def _length(graph: GraphWriter, frames: str) -> str:
    """T as `[1]` int64."""
    return graph.op("Shape", frames, start=1, end=2)


def _unsqueeze(graph: GraphWriter, value: str, *axes: int) -> str:
    return graph.op("Unsqueeze", value, graph.constant(axes, np.int64))
