"""The step and rows graphs against the numpy oracle, for many sets of features."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import oracle
from numpy.typing import NDArray

from engine_build.graphs.step_graph import MEAN, BlendRule, rows_graph, step_graph
from runtime.base.errors import BuildError
from runtime.config.sampler import APG, GuidanceSpec
from runtime.engines.engine import variant_name
from runtime.requests.request import DCW_READS, Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target
from runtime.tick.denoise.slot_fields import (
    ROWS_FEATURES,
    STEP_FEATURES,
    TENSORS,
    rows_inputs,
    step_inputs,
)

Arrays = dict[str, NDArray[Any]]
Features = frozenset[str]

FULL = STEP_FEATURES
COMMON = [
    frozenset(variant.split())
    for variant in (
        "", "guidance", "dcw", "dcw guidance", "blend", "blend guidance", "mask", "guidance mask", "target",
        "guidance target", "ode_noise", "guidance ode_noise", "sde", "guidance sde", "guidance rcfg",
        "guidance rescale", "ab2", "ab2 guidance", "ab2 blend guidance", "ab2 guidance mask", " ".join(FULL),
    )
]  # fmt: skip
ALL = [
    frozenset(chosen)
    for size in range(len(FULL) + 1)
    for chosen in itertools.combinations(sorted(FULL), size)
    if not {"rcfg", "rescale"} & {*chosen} or "guidance" in chosen
]
NEUTRAL = {"velocity_scale": 1.0, "guidance": 1.0, "momentum": -0.75, "mask": 1.0, "sde_curve": 1.0}
STEPS = 6
EIGHTH = BlendRule(8, (-0.25,) * 4, 0.8)


@cache
def session(
    kind: str, channels: int, features: Features, rule: BlendRule = MEAN, guidance: GuidanceSpec = APG
) -> ort.InferenceSession:
    graph = step_graph(channels, features, rule, guidance) if kind == "step" else rows_graph(channels, features)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def execute(
    kind: str, channels: int, features: Features, feeds: Arrays, rule: BlendRule = MEAN, guidance: GuidanceSpec = APG
) -> Arrays:
    opened = session(kind, channels, features, rule, guidance)
    names = [output.name for output in opened.get_outputs()]
    return dict(zip(names, opened.run(names, feeds), strict=True))


@dataclass
class Slot:
    """One generation at one step, with a velocity for each of its conditions."""

    request: GenerationRequest
    state: oracle.State
    velocities: dict[int, NDArray[np.float32]]
    step_noise: NDArray[np.float32]
    k: int

    @property
    def times(self) -> tuple[float, float]:
        times = oracle.schedule(STEPS, self.request.shift, 1.0)
        return float(times[self.k]), float(times[self.k + 1])

    def expected(self, rule: BlendRule = MEAN, guidance: GuidanceSpec = APG) -> oracle.State:
        as_in_oracle = oracle.Rule(rule.power, np.array(rule.silence or 0.0), rule.energy_below, guidance)

        def decode(x: object, t: float, tokens: NDArray[np.float32], context: object) -> NDArray[np.float32]:
            return self.velocities[int(tokens[0, 0])]

        noises = oracle.Noises(self.step_noise, step=lambda k: self.step_noise)
        masked = replace(self.request, mask=None)
        if self.request.mask is None:
            return oracle.step(masked, self.state, decode, noises, self.k, *self.times, as_in_oracle)
        # The rows graph has done the part before the decoder: a mask noise that gives x back undoes the oracle's.
        t = self.times[0]
        undone = (self.state.x - (1 - t) * np.float64(self.request.original)) / t
        mask = replace(self.request.mask, noise=undone)
        return oracle.step(
            replace(self.request, mask=mask), self.state, decode, noises, self.k, *self.times, as_in_oracle
        )


class Maker:
    """Random slots that use random subsets of the features; the first one of a batch uses all of them."""

    def __init__(self, seed: int, frames: int, channels: int) -> None:
        self.random = np.random.default_rng(seed)
        self.frames, self.channels = frames, channels
        self._ids = itertools.count()
        self._velocities: dict[int, NDArray[np.float32]] = {}

    def latents(self) -> NDArray[np.float32]:
        return self.random.standard_normal((self.frames, self.channels)).astype(np.float32)

    def curve(self, low: float, high: float) -> Any:
        if self.random.random() < 0.4:
            return float(self.random.uniform(low, high))
        return self.random.uniform(low, high, self.frames).astype(np.float32)

    def condition(self, weighted: bool) -> Condition:
        number = next(self._ids)
        self._velocities[number] = self.latents()
        return Condition(np.full((1, 1), number, np.float32), self.curve(0.0, 1.0) if weighted else 1.0)

    def conditions(self, features: Features) -> tuple[Condition, ...]:
        count = int(self.random.integers(1, 4)) if "blend" in features else 1
        return tuple(self.condition("blend" in features) for _ in range(count))

    def slot(self, features: Features) -> Slot:
        self._velocities = {}
        k = int(self.random.integers(STEPS))
        request = self.request(features)
        kept = self.latents() if request.guidance_mode != "full" and k > 0 else None
        parts = list(request.conditions), list(request.negatives) or None
        before = (np.float64(self.latents()), -0.2, parts) if request.solver == "ab2" and k > 0 else None
        state = oracle.State(np.float64(self.latents()), np.float64(self.latents()), kept, before)
        return Slot(request, state, self._velocities, self.latents(), k)

    def request(self, features: Features) -> GenerationRequest:
        source = self.latents()
        return GenerationRequest(
            frames=self.frames,
            conditions=self.conditions(features),
            negatives=self.conditions(features) if "guidance" in features else (),
            guidance_mode="initialize" if "rcfg" in features else "full",
            solver=next((name for name in ("sde", "ab2") if name in features), "ode"),
            steps=STEPS,
            shift=3.0,
            source=source,
            mask=LatentMask(self.curve(0, 1), original=self.latents()) if "mask" in features else None,
            target=Target(self.latents(), curve=self.curve(0, 1), gate=0.2) if "target" in features else None,
            parameters=self.parameters(features),
        )

    def parameters(self, features: Features) -> StepParameters:
        guided = "guidance" in features
        return StepParameters(
            velocity_scale=self.curve(0.5, 1.5),
            guidance=self.curve(1, 8) if guided else None,
            momentum=self.curve(-0.9, 0) if guided else None,
            rescale=self.curve(0, 1) if "rescale" in features else None,
            sde_curve=self.curve(0, 1) if "sde" in features else None,
            ode_noise=self.curve(0, 0.5) if "ode_noise" in features else None,
            dcw=self.dcw() if "dcw" in features else None,
        )

    def dcw(self) -> Dcw:
        mode = str(self.random.choice(["low", "high", "double", "pix"]))
        return Dcw(mode, **{name: self.curve(-0.2, 0.2) for name in DCW_READS[mode]})  # type: ignore[arg-type]

    def some(self, features: Features) -> Features:
        chosen = frozenset(f for f in sorted(features) if self.random.random() < 0.5)
        return chosen | {"guidance"} if chosen & {"rcfg", "rescale"} else chosen

    def batch(self, features: Features, count: int) -> list[Slot]:
        return [self.slot(features), *(self.slot(self.some(features)) for _ in range(count - 1))]


def feeds_of(slots: list[Slot], features: Features, channels: int, guidance: GuidanceSpec = APG) -> Arrays:
    """The graph's inputs for a batch, neutral where a slot does not use a feature. One last slot is empty."""
    frames = slots[0].request.frames
    sizes = {"S": len(slots) + 1, "T": frames, "C": channels, "B": -(-frames // 2), "1": 1}
    sizes["K"] = max(len(slot.request.conditions) for slot in slots)
    sizes["N"] = max(1, *(len(slot.request.negatives) for slot in slots))
    feeds: Arrays = {}
    for spec in step_inputs(features, guidance.rule):
        if spec.name != "velocity":
            shape = [sizes[letter] for letter in spec.letters]
            feeds[spec.name] = np.full(shape, NEUTRAL.get(spec.name, 0), spec.dtype)
    feeds["time"][:], feeds["next_time"][:] = 1, 1
    velocities: list[NDArray[np.float32]] = []
    for slot_index, slot in enumerate(slots):
        _fill(feeds, slot_index, slot, velocities)
    feeds["velocity"] = np.stack(velocities)
    return feeds


def _fill(feeds: Arrays, slot_index: int, slot: Slot, velocities: list[NDArray[np.float32]]) -> None:
    request, p = slot.request, slot.request.parameters
    _set(feeds, slot_index, "latents", slot.state.x)
    _set(feeds, slot_index, "time", slot.times[0])
    _set(feeds, slot_index, "next_time", slot.times[1])
    _set(feeds, slot_index, "step_noise", slot.step_noise)
    _set_rows(feeds, slot_index, "positive", slot, request.conditions, velocities)
    for name in ("velocity_scale", "guidance", "momentum", "rescale", "sde_curve", "ode_noise"):
        if getattr(p, name) is not None:
            _set(feeds, slot_index, name, getattr(p, name))
    if request.negatives:
        _set_rows(feeds, slot_index, "negative", slot, request.negatives, velocities)
        _set(feeds, slot_index, "momentum_state", slot.state.momentum)
    elif "negative_rows" in feeds:
        feeds["negative_rows"][slot_index] = feeds["positive_rows"][slot_index, 0]
        if "negative_weights" in feeds:
            _neutral_negative(feeds, slot_index)
    if slot.state.kept is not None:
        _set(feeds, slot_index, "cached_negative_velocity", slot.state.kept)
        _set(feeds, slot_index, "use_cached_negative", True)
    if slot.state.before is not None:
        velocity, length, _ = slot.state.before
        _set(feeds, slot_index, "previous_velocity", velocity)
        is_last = slot.times[1] == 0  # Euler's
        _set(feeds, slot_index, "extrapolation", 0.0 if is_last else (slot.times[1] - slot.times[0]) / (2 * length))
    if request.mask is not None:
        _set(feeds, slot_index, "mask", request.mask.mask)
        _set(feeds, slot_index, "original", request.mask.original)
    if request.target is not None:
        _set(feeds, slot_index, "target", request.target.latents)
        _set(feeds, slot_index, "target_curve", request.target.curve)
        _set(feeds, slot_index, "target_gate", max(0.0, slot.k / (STEPS - 1) - 0.2) / 0.8)
    if request.solver == "sde":
        _set(feeds, slot_index, "sde", True)
        _set(feeds, slot_index, "source", request.source)
    if p.dcw is not None:
        _set_dcw(feeds, slot_index, p.dcw)


def _neutral_negative(feeds: Arrays, slot_index: int) -> None:
    """The blend of the negatives is the blend of the positives; it needs as many places."""
    count = feeds["positive_rows"].shape[1]
    if feeds["negative_rows"].shape[1] < count:
        for name in ("negative_rows", "negative_weights"):
            grown = np.zeros((len(feeds[name]), count, *feeds[name].shape[2:]), feeds[name].dtype)
            grown[:, : feeds[name].shape[1]] = feeds[name]
            feeds[name] = grown
    feeds["negative_rows"][slot_index, :count] = feeds["positive_rows"][slot_index]
    feeds["negative_weights"][slot_index, :count] = feeds["positive_weights"][slot_index]


def _set(feeds: Arrays, slot_index: int, name: str, value: Any) -> None:
    if name in feeds:
        feeds[name][slot_index] = value


def _set_rows(
    feeds: Arrays,
    slot_index: int,
    side: str,
    slot: Slot,
    conditions: Iterable[Condition],
    velocities: list[NDArray[np.float32]],
) -> None:
    for place, condition in enumerate(conditions):
        feeds[f"{side}_rows"][slot_index, place] = len(velocities)
        velocities.append(slot.velocities[int(condition.tokens[0, 0])])
        if f"{side}_weights" in feeds:
            feeds[f"{side}_weights"][slot_index, place] = condition.weight


def _set_dcw(feeds: Arrays, slot_index: int, dcw: Dcw) -> None:
    bands = feeds["dcw_low"].shape[1]
    if dcw.mode == "pix":
        _set(feeds, slot_index, "dcw_pix", dcw.low)
    if dcw.mode in ("low", "double"):
        _set(feeds, slot_index, "dcw_low", oracle.resample(dcw.low, bands)[:, 0])
    if dcw.mode in ("high", "double"):
        _set(feeds, slot_index, "dcw_high", oracle.resample(dcw.high, bands)[:, 0])


def check_against_oracle(
    slots: list[Slot], features: Features, channels: int, rule: BlendRule = MEAN, guidance: GuidanceSpec = APG
) -> None:
    results = execute("step", channels, features, feeds_of(slots, features, channels, guidance), rule, guidance)
    assert results["finite"][:-1].all()
    for slot_index, slot in enumerate(slots):
        expected = slot.expected(rule, guidance)
        np.testing.assert_allclose(results["next_latents"][slot_index], expected.x, atol=2e-5, rtol=1e-5)
        if slot.request.negatives and guidance.rule == "apg":
            np.testing.assert_allclose(results["next_momentum_state"][slot_index], expected.momentum, atol=1e-5)
        if expected.before is not None:
            np.testing.assert_allclose(results["next_previous_velocity"][slot_index], expected.before[0], atol=2e-5)
        if expected.kept is not None:
            np.testing.assert_allclose(results["next_cached_negative_velocity"][slot_index], expected.kept, atol=1e-6)


@pytest.mark.parametrize("features", COMMON, ids=variant_name)
@pytest.mark.parametrize(("frames", "count"), [(8, 1), (7, 3), (12, 5)])
def test_a_variant_agrees_with_the_oracle(features: Features, frames: int, count: int) -> None:
    check_against_oracle(Maker(frames, frames, 4).batch(features, count), features, 4)


def test_sets_of_features_agree_with_the_oracle() -> None:
    """All of at most two features, and of the others every fifth: each has a graph of its own, which takes long."""
    assert len(ALL) == 640
    for seed, features in enumerate(
        features for index, features in enumerate(ALL) if len(features) < 3 or index % 5 == 0
    ):
        frames, count = 1 + seed % 9, 1 + seed % 4
        check_against_oracle(Maker(seed, frames, 3).batch(features, count), features, 3)


RULES = {
    "plain": GuidanceSpec(rule="plain"),
    "plain, rescaled by channel": GuidanceSpec(rule="plain", norms="channel"),
    "apg over all": GuidanceSpec(norms="all", norm_limit=3.0, parallel=0.3),
    "apg without a limit": GuidanceSpec(norm_limit=0.0),
    "apg without a projection": GuidanceSpec(norms="all", parallel=1.0),
}
GUIDED = [features for features in COMMON if "guidance" in features]


@pytest.mark.parametrize("guidance", RULES.values(), ids=RULES)
@pytest.mark.parametrize("features", GUIDED, ids=variant_name)
def test_every_rule_of_guidance_agrees_with_the_oracle(features: Features, guidance: GuidanceSpec) -> None:
    for frames, count in ((8, 1), (7, 3)):
        check_against_oracle(Maker(frames, frames, 4).batch(features, count), features, 4, guidance=guidance)


@pytest.mark.parametrize("guidance", RULES.values(), ids=RULES)
def test_by_every_rule_a_slot_has_the_same_bits_beside_others_that_are_guided(guidance: GuidanceSpec) -> None:
    slots = Maker(5, 10, 4).batch(frozenset(), 4)
    plain = execute("step", 4, frozenset(), feeds_of(slots, frozenset(), 4))
    for features in (frozenset({"guidance", "rescale"}), FULL):
        found = execute("step", 4, features, feeds_of(slots, features, 4, guidance), guidance=guidance)
        np.testing.assert_array_equal(found["next_latents"], plain["next_latents"])
        guided = [Maker(seed, 10, 4).slot(features) for seed in range(4)]
        own = execute("step", 4, features, feeds_of(guided, features, 4, guidance), guidance=guidance)
        full = execute("step", 4, FULL, feeds_of(guided, FULL, 4, guidance), guidance=guidance)
        for name, values in own.items():
            np.testing.assert_array_equal(full[name][:-1], values[:-1], err_msg=name)


@pytest.mark.parametrize("features", GUIDED, ids=variant_name)
def test_a_plain_rule_costs_four_operations_and_no_state(features: Features) -> None:
    graph = step_graph(4, features, guidance=RULES["plain"]).graph
    assert not {"momentum", "momentum_state", "pauses_guidance"} & {value.name for value in graph.input}
    assert "next_momentum_state" not in {value.name for value in graph.output}
    nodes = [node for node in graph.node if node.name.startswith("guidance/")]
    own = [node.op_type for node in nodes if not {"columns", "alternate"} & set(node.name.split("/"))]
    assert own[:4] == ["Sub", "Sub", "Mul", "Add"]
    assert (len(own) == 4) == ("rescale" not in features)


def test_numbers_that_every_step_reads_are_not_in_the_graph() -> None:
    changed = GuidanceSpec(momentum=0.5, rescale=0.7)
    assert all(step_graph(4, features, guidance=changed) == step_graph(4, features) for features in GUIDED)


BLENDS = [features for features in COMMON if "blend" in features]


@pytest.mark.parametrize(("power", "energy_below"), [(2, 0.0), (4, 0.0), (4, 0.6), (8, 0.0), (8, 0.6)])
@pytest.mark.parametrize("features", BLENDS, ids=variant_name)
def test_blends_that_keep_their_level_agree_with_the_oracle(
    features: Features, power: int, energy_below: float
) -> None:
    rule = BlendRule(power, (-0.25, 0.5, 0.0, 1.0), energy_below)
    for frames, count in ((8, 1), (7, 3), (12, 5)):
        check_against_oracle(Maker(frames, frames, 4).batch(features, count), features, 4, rule)


LEVELS = BlendRule(4, (-0.25, -0.25))


def blended(*clean: Any, weights: list[float], rule: BlendRule = LEVELS) -> NDArray[np.float32]:
    """What a last step makes of parts that predict these latents `[T, C]`."""
    random, time = np.random.default_rng(5), 0.75
    parts = np.array(clean, np.float32)
    latents = random.standard_normal(parts.shape[1:]).astype(np.float32)
    feeds = {
        "latents": latents[None],
        "velocity": (latents - parts) / np.float32(time),
        "positive_rows": np.arange(len(parts))[None],
        "time": np.array([time], np.float32),
        "next_time": np.zeros(1, np.float32),
        "velocity_scale": np.ones((1, len(latents)), np.float32),
        "positive_weights": np.tile(np.array(weights, np.float32)[None, :, None], (1, 1, len(latents))),
    }
    return execute("step", parts.shape[2], frozenset({"blend"}), feeds, rule)["next_latents"][0]


def test_what_one_part_has_alone_is_kept_and_what_all_have_stays() -> None:
    silent = [-0.25, -0.25]
    made = blended([[5.75, 5.75], silent], [silent, silent], weights=[1, 1])
    np.testing.assert_allclose(made, [[-0.25 + 6 * 0.5 ** (1 / 4)] * 2, silent], atol=1e-5)
    np.testing.assert_allclose(blended(*[[[5.75, 1.0]]] * 3, weights=[1, 2, 5]), [[5.75, 1.0]], atol=1e-5)


@pytest.mark.parametrize(("energy_below", "power"), [(0.74, 8), (0.75, 8), (0.76, 2)])
def test_below_a_time_the_mean_is_that_of_energies(energy_below: float, power: int) -> None:
    silent, rule = [-0.25, -0.25], LEVELS._replace(power=8, energy_below=energy_below)
    made = blended([[5.75, 5.75]], [silent], weights=[1, 1], rule=rule)  # at time 0.75
    np.testing.assert_allclose(made, [[-0.25 + 6 * 0.5 ** (1 / power)] * 2], atol=1e-5)


def test_what_cancels_out_stays_small() -> None:
    made = blended([[5.75, 5.75]], [[-6.25, -6.25]], weights=[1, 1])
    np.testing.assert_allclose(made, [[-0.25, -0.25]], atol=0.06)
    made = blended([[5.75, 5.75]], [[-6.25, -6.25]], weights=[3, 2])
    np.testing.assert_allclose(made, [[-0.25 + 6 * 0.2 ** (1 / 4)] * 2], atol=1e-4)


def test_a_part_without_weight_changes_nothing_even_where_it_is_not_finite() -> None:
    alone = [[5.75, -0.25], [1.0, 2.0]]
    for other in (np.full((2, 2), np.nan), np.full((2, 2), np.inf), np.full((2, 2), 3.0)):
        np.testing.assert_allclose(blended(alone, other, weights=[0.3, 0]), alone, atol=1e-5)


def test_a_slot_with_one_condition_is_bit_identical_beside_blends() -> None:
    made = [blended([[5.75, 0.3], [1.0, 2.0]], np.zeros((2, 2)), weights=[1, 0], rule=rule) for rule in (LEVELS, MEAN)]
    assert (made[0] == made[1]).all()


def test_without_a_power_the_graph_is_the_same() -> None:
    for features in COMMON:
        assert step_graph(4, features, BlendRule(1, (0.5,) * 4)) == step_graph(4, features)


@pytest.mark.parametrize("mode", ["low", "high", "double", "pix"])
@pytest.mark.parametrize("frames", [1, 2, 5, 6])
def test_every_mode_of_dcw(mode: Any, frames: int) -> None:
    maker = Maker(frames, frames, 4)
    slot = maker.slot(frozenset({"dcw"}))
    dcw = Dcw(mode, **{name: maker.curve(-0.3, 0.3) for name in DCW_READS[mode]})
    slot.request = replace(slot.request, parameters=StepParameters(dcw=dcw))
    check_against_oracle([slot], frozenset({"dcw"}), 4)


@pytest.mark.parametrize("features", COMMON[1:], ids=variant_name)
def test_neutral_values_give_the_plain_result(features: Features) -> None:
    slots = Maker(5, 10, 4).batch(frozenset(), 4)
    plain = execute("step", 4, frozenset(), feeds_of(slots, frozenset(), 4))
    superset = execute("step", 4, features, feeds_of(slots, features, 4))
    np.testing.assert_array_equal(superset["next_latents"], plain["next_latents"])
    np.testing.assert_array_equal(superset["finite"], plain["finite"])


@pytest.mark.parametrize("features", COMMON, ids=variant_name)
def test_a_slot_has_the_same_bits_in_the_graph_with_all_features(features: Features) -> None:
    """So a generation does not depend on what others of its tick need."""
    slots = [Maker(seed, 10, 4).slot(features) for seed in range(4)]
    own = execute("step", 4, features, feeds_of(slots, features, 4), EIGHTH)
    full = execute("step", 4, FULL, feeds_of(slots, FULL, 4), EIGHTH)
    for name in own:
        np.testing.assert_array_equal(full[name][:-1], own[name][:-1], err_msg=name)


@pytest.mark.parametrize("features", [f for f in COMMON if "ab2" not in f], ids=variant_name)
def test_a_slot_that_extrapolates_nothing_is_bit_identical_beside_those_that_do(features: Features) -> None:
    """Also where another generation left its velocity in the slot."""
    slots = Maker(14, 10, 4).batch(features, 4)
    without = execute("step", 4, features, feeds_of(slots, features, 4))
    feeds = feeds_of(slots, features | {"ab2"}, 4)
    feeds["previous_velocity"][:] = np.random.default_rng(14).standard_normal(feeds["previous_velocity"].shape)
    feeds["extrapolation"][1] = 0.5
    results = execute("step", 4, features | {"ab2"}, feeds)
    for name, before in without.items():
        np.testing.assert_array_equal(results[name][[0, 2, 3, 4]], before[[0, 2, 3, 4]], err_msg=name)
    assert not np.array_equal(results["next_latents"][1], without["next_latents"][1])


@pytest.mark.parametrize("features", COMMON, ids=variant_name)
def test_an_empty_slot_stays_as_it_is(features: Features) -> None:
    slots = Maker(6, 6, 4).batch(features, 2)
    feeds = feeds_of(slots, features, 4)
    feeds["latents"][-1] = 2.5
    np.testing.assert_allclose(execute("step", 4, features, feeds)["next_latents"][-1], 2.5, atol=1e-6)


@pytest.mark.parametrize("features", [frozenset(), frozenset({"blend", "guidance"}), FULL], ids=variant_name)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_slot_does_not_change_other_slots(features: Features, value: float) -> None:
    slots = Maker(7, 7, 4).batch(features, 4)
    clean_feeds = feeds_of(slots, features, 4)
    clean = execute("step", 4, features, clean_feeds)
    for name, bad in _poisoned(clean_feeds, 1, value).items():
        results = execute("step", 4, features, clean_feeds | {name: bad})
        for output, before in clean.items():
            others = [0, 2, 3, 4]
            np.testing.assert_array_equal(results[output][others], before[others], err_msg=f"{name} -> {output}")
        assert results["finite"].tolist()[:4] == [True, bool(np.isfinite(results["next_latents"][1]).all()), True, True]


def _poisoned(feeds: Arrays, slot_index: int, value: float) -> Arrays:
    """Each float input with a bad value in one slot_index (for the velocity, in that slot's rows)."""
    result = {}
    for name, array in feeds.items():
        if array.dtype == np.float32:
            result[name] = array.copy()
            result[name][feeds["positive_rows"][slot_index, 0] if name == "velocity" else slot_index] = value
    return result


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_nonfinite_value_clears_the_finite_flag(value: float) -> None:
    feeds = feeds_of(Maker(8, 6, 4).batch(frozenset(), 3), frozenset(), 4)
    feeds["latents"][1, 5, 3] = value
    assert execute("step", 4, frozenset(), feeds)["finite"].tolist() == [True, False, True, True]


@pytest.mark.parametrize("case", ["no difference", "no velocity", "nothing at all"])
def test_guidance_divides_nothing_by_zero(case: str) -> None:
    features = frozenset({"guidance"})
    slot = Maker(10, 6, 4).slot(features)
    slot.state = replace(slot.state, momentum=np.zeros((6, 4)))
    positive, negative = (int(c[0].tokens[0, 0]) for c in (slot.request.conditions, slot.request.negatives))
    if case in ("no velocity", "nothing at all"):
        slot.velocities[positive] *= 0
    if case in ("no difference", "nothing at all"):
        slot.velocities[negative] = slot.velocities[positive]
    check_against_oracle([slot], features, 4)


def test_guidance_with_extreme_differences_agrees_with_float64() -> None:
    features = frozenset({"guidance"})
    for scale in (1e-6, 1e-3, 1e3, 1e6):
        slot = Maker(11, 64, 4).slot(features)
        for number in slot.velocities:
            slot.velocities[number] = slot.velocities[number] * np.float32(scale)
        feeds = feeds_of([slot], features, 4)
        found = execute("step", 4, features, feeds)["next_latents"][0]
        np.testing.assert_allclose(found, slot.expected().x, atol=2e-5 * max(1.0, scale))


def test_a_mask_of_zero_keeps_the_original_exactly_at_the_end() -> None:
    features = frozenset({"guidance", "mask"})
    slot = Maker(12, 8, 4).slot(features)
    slot.k = STEPS - 1
    slot.request = replace(slot.request, mask=replace(slot.request.mask, mask=np.float32([1, 0] * 4)))
    result = execute("step", 4, features, feeds_of([slot], features, 4))["next_latents"][0]
    np.testing.assert_array_equal(result[1::2], slot.request.original[1::2])  # type: ignore[index]
    assert not np.array_equal(result[0::2], slot.request.original[0::2])  # type: ignore[index]


def test_plain_is_one_multiply_and_one_add_over_the_latents() -> None:
    graph = onnx.shape_inference.infer_shapes(step_graph(64, ())).graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in (*graph.value_info, *graph.output)}
    assert sorted(
        node.op_type for node in graph.node if ranks[node.output[0]] == 3 and "Unsqueeze" not in node.name
    ) == [
        "Add",
        "Gather",
        "Mul",
    ]


def test_graphs_are_what_other_tools_read() -> None:
    for features in COMMON:
        model = step_graph(64, features)
        onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True, data_prop=True)
        assert (model.ir_version, model.opset_import[0].version) == (10, 20)
        assert len({node.name for node in model.graph.node}) == len(model.graph.node)
        assert {node.domain for node in model.graph.node} == {""}
    assert any(node.name.startswith("guidance/project/") for node in step_graph(64, ["guidance"]).graph.node)


def test_inputs_follow_the_features() -> None:
    always = {"latents", "velocity", "positive_rows", "time", "next_time", "velocity_scale"}
    assert {spec.name for spec in step_inputs(())} == always
    assert {spec.name for spec in step_inputs(FULL)} == {spec.name for spec in TENSORS if spec.step is not None}
    shapes = {spec.name: spec.letters for spec in step_inputs(["guidance"])}
    assert (shapes["positive_rows"], shapes["negative_rows"]) == ("S1", "S1")
    assert [value.name for value in step_graph(4, FULL).graph.input] == [spec.name for spec in step_inputs(FULL)]


def test_the_same_features_give_the_same_bytes() -> None:
    first = step_graph(8, ["mask", "dcw"]).SerializeToString(deterministic=True)
    assert first == step_graph(8, ["dcw", "mask"]).SerializeToString(deterministic=True)


@pytest.mark.parametrize("features", [["magic"], ["gain"], ["rcfg"], ["rescale"]])
def test_unknown_features_are_refused(features: list[str]) -> None:
    with pytest.raises(BuildError, match=features[0]):
        step_graph(8, features)
    with pytest.raises(BuildError, match="expected some of"):
        rows_graph(8, ["guidance"])


@pytest.mark.parametrize("features", [frozenset(f) for n in range(3) for f in itertools.combinations(ROWS_FEATURES, n)])
def test_rows_are_gathered_masked_and_gained(features: Features) -> None:
    random = np.random.default_rng(13)
    sizes = {"S": 3, "R": 5, "T": 6, "C": 4}
    feeds: Arrays = {
        spec.name: random.random([sizes[letter] for letter in spec.letters], np.float32)
        for spec in rows_inputs(features)
        if spec.name != "row_slots"
    }
    feeds["row_slots"] = np.array([2, 0, 0, 1, 2])
    x = feeds["latents"]
    if "mask" in features:
        t, m = feeds["time"][:, None, None], feeds["mask"][..., None]
        x = m * x + (1 - m) * (t * feeds["mask_noise"] + (1 - t) * feeds["original"])
    gained = x * feeds["channel_gain"] if "gain" in features else x
    results = execute("rows", 4, features, feeds)
    np.testing.assert_allclose(results["hidden_states"], gained[feeds["row_slots"]], atol=1e-6)
    assert ("masked_latents" in results) == ("mask" in features)
    if "mask" in features:
        np.testing.assert_allclose(results["masked_latents"], x, atol=1e-6)


@pytest.mark.parametrize("features", [frozenset(), ROWS_FEATURES])
def test_a_nonfinite_slot_does_not_change_other_rows(features: Features) -> None:
    specs = rows_inputs(features)
    sizes = {"S": 3, "R": 3, "T": 2, "C": 4}
    feeds: Arrays = {spec.name: np.ones([sizes[letter] for letter in spec.letters], spec.dtype) for spec in specs}
    feeds["row_slots"] = np.array([0, 1, 2])
    for name in (spec.name for spec in specs if spec.dtype == "float32"):
        bad = feeds[name].copy()
        bad[1] = np.nan
        hidden = execute("rows", 4, features, feeds | {name: bad})["hidden_states"]
        assert np.isfinite(hidden[[0, 2]]).all()
        assert np.isnan(hidden[1]).any()
