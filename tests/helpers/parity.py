"""Scenarios with results of an independent implementation: as requests, and run by the tick loop.

A folder has decoder.onnx, inputs.npz, scenarios.json and expected.npz, which its README describes; TICKRT_PARITY_DIR
names another folder of the same format. An unknown key in a scenario is an error.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target
from runtime.tick.loop.events import Event, Failed, Finished, Started
from runtime.tick.loop.tick_loop import TickLoop

DATA = Path(__file__).parents[1] / "data" / "tick_parity"
SESSION = "parity"
STEP_VARIANTS = ("plain", "guidance", "blend", "mask", "target", "sde", "dcw", "guidance+rcfg")
STEP_NAMES = {
    "velocity_scale": "velocity_scale",
    "guidance_scale": "guidance",
    "guidance_curve": "guidance",
    "guidance": "guidance",
    "apg_momentum": "momentum",
    "momentum": "momentum",
    "cfg_rescale": "rescale",
    "cfg_rescale_curve": "rescale",
    "rescale": "rescale",
    "x0_target_strength": "x0_strength",
    "x0_strength": "x0_strength",
    "sde_denoise_curve": "sde_curve",
    "sde_curve": "sde_curve",
    "ode_noise_curve": "ode_noise",
    "ode_noise": "ode_noise",
    "channel_gain": "channel_gain",
}
REQUEST_NAMES = {
    "id", "submit_at_tick", "encoder_hidden_states", "context_latents", "noise", "seed", "source_latents", "denoise",
    "negative", "rcfg_mode", "x0_target", "x0_target_curve", "x0_target_gate", "initial_noise_curve", "latent_mask",
    "temporal_weight", "step_range", "extra_conditions", *STEP_NAMES,
}  # fmt: skip
SCENARIO_NAMES = {"steps", "shift", "depth", "requests", "finishes", "dcw", "shared_at_tick", "channel_gain"}


def folder() -> Path:
    """The folder of the vectors."""
    return Path(os.environ.get("TICKRT_PARITY_DIR", DATA))


def load() -> tuple[dict[str, Any], dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """Scenarios, inputs and expected arrays."""
    scenarios = json.loads((folder() / "scenarios.json").read_text())
    return scenarios, dict(np.load(folder() / "inputs.npz")), dict(np.load(folder() / "expected.npz"))


def write_deployment(
    target: Path, *, depth: int = 4, max_rows: int = 16, step_variants: Sequence[str] = STEP_VARIANTS
) -> Path:
    """A bundle around the reference decoder (it has no condition mask), and a deployment that uses it."""
    bundle = target / "reference"
    bundle.mkdir()
    shutil.copy(folder() / "decoder.onnx", bundle / "decoder.onnx")
    (bundle / "bundle.toml").write_text(BUNDLE)
    path = target / "reference.toml"
    path.write_text(DEPLOYMENT.format(depth=depth, max_rows=max_rows, step_variants=list(step_variants)))
    return path


@dataclass
class Run:
    """Results by request: final latents, latents after each tick, ticks of the first step and of the delivery."""

    finals: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    states: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)


def run_scenario(loop: TickLoop, scenario: dict[str, Any], inputs: dict[str, NDArray[np.float32]]) -> Run:
    """Submit requests and set session parameters at the scenario's ticks until everything is delivered."""
    _refuse_unknown(scenario, SCENARIO_NAMES)
    run = Run()
    requests = [(item["submit_at_tick"], request_of(item, scenario, inputs)) for item in scenario["requests"]]
    first = loop.stats().ticks
    for tick in range(max(at for at, _ in requests) + 2 * scenario["steps"]):
        live = [request.id for at, request in requests if at < tick and request.id not in run.finals]
        replies = {name: loop.snapshot(name) for name in live}
        for request in (request for at, request in requests if at == tick):
            loop.submit(request, lambda event: _note(run, event, first))
        loop.update(SESSION, session_parameters(scenario, tick, inputs))
        loop.tick()
        for name, reply in replies.items():
            if reply.exception(0) is None:  # an exception: the last step is launched and not done
                run.states.setdefault(name, []).append(reply.result(0)["latents"])
    for name, final in run.finals.items():
        run.states.setdefault(name, []).append(final)
    return run


def _note(run: Run, event: Event, first: int) -> None:
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Started):
        run.started[event.request_id] = event.tick - first
    if isinstance(event, Finished):
        run.finals[event.request_id] = event.latents
        run.delivered[event.request_id] = event.tick - first


def session_parameters(scenario: dict[str, Any], tick: int, inputs: dict[str, NDArray[np.float32]]) -> dict[str, Any]:
    """The session's step parameters in a tick, by name."""
    table = {name: scenario[name] for name in ("dcw", "channel_gain") if name in scenario}
    for change in sorted(scenario.get("shared_at_tick", {}), key=int):
        if int(change) <= tick:
            table |= scenario["shared_at_tick"][change]
    return _step_parameters(table, inputs)


def request_of(
    item: dict[str, Any], scenario: dict[str, Any], inputs: dict[str, NDArray[np.float32]]
) -> GenerationRequest:
    """One request of a scenario."""
    _refuse_unknown(item, REQUEST_NAMES)
    source = _value(item.get("source_latents"), inputs)
    context = _value(item["context_latents"], inputs)
    mode = item.get("rcfg_mode") or "full"
    return GenerationRequest(
        frames=len(context),
        conditions=(_condition(item, inputs), *(_condition(c, inputs) for c in item.get("extra_conditions", ()))),
        negatives=tuple(_condition(c, inputs) for c in item.get("negative", ())),
        guidance_mode=mode,
        steps=scenario["steps"],
        shift=scenario["shift"],
        denoise=item.get("denoise", 1.0),
        seed=item.get("seed", 0),
        context=context,
        source=source,
        noise=_value(item.get("noise"), inputs),
        initial_noise_curve=_value(item.get("initial_noise_curve"), inputs),
        mask=_mask(item.get("latent_mask"), inputs),
        target=_target(item, inputs),
        parameters=StepParameters(**_step_parameters({k: v for k, v in item.items() if k in STEP_NAMES}, inputs)),
        session=SESSION,
        id=item["id"],
    )


def _condition(item: dict[str, Any], inputs: dict[str, NDArray[np.float32]]) -> Condition:
    start, end = item.get("step_range") or (0.0, 1.0)
    weight = _value(item.get("temporal_weight", 1.0), inputs)
    return Condition(_value(item["encoder_hidden_states"], inputs), weight, start, end)


def _mask(item: dict[str, Any] | None, inputs: dict[str, NDArray[np.float32]]) -> LatentMask | None:
    if item is None:
        return None
    _refuse_unknown(item, {"mask", "original_latents", "noise"})
    original, noise = _value(item.get("original_latents"), inputs), _value(item.get("noise"), inputs)
    return LatentMask(_value(item["mask"], inputs), original, noise)


def _target(item: dict[str, Any], inputs: dict[str, NDArray[np.float32]]) -> Target | None:
    if "x0_target" not in item:
        return None
    curve = _value(item.get("x0_target_curve"), inputs)
    return Target(_value(item["x0_target"], inputs), curve, item.get("x0_target_gate", 0.0))


def _step_parameters(table: dict[str, Any], inputs: dict[str, NDArray[np.float32]]) -> dict[str, Any]:
    values = {STEP_NAMES[name]: _value(value, inputs) for name, value in table.items() if name != "dcw"}
    dcw = table.get("dcw")
    if dcw is not None:
        _refuse_unknown(dcw, {"mode", "low", "high", "wavelet"})
        assert dcw.get("wavelet", "haar") == "haar"
        low, high = _value(dcw.get("low", 0.0), inputs), _value(dcw.get("high", 0.0), inputs)
        values["dcw"] = Dcw(dcw["mode"], low, high)
    return values


def _value(value: Any, inputs: dict[str, NDArray[np.float32]]) -> Any:
    """A number, or an expression over the inputs such as "1+4*curve_ramp"; the batch dimension of 1 is removed."""
    if not isinstance(value, str):
        return value
    result = np.asarray(eval(value, {"__builtins__": {}}, inputs), np.float32)
    return result[0] if result.ndim == 3 else result


def _refuse_unknown(table: dict[str, Any], known: set[str]) -> None:
    unknown = set(table) - known
    if unknown:
        raise KeyError(f"the scenario uses {sorted(unknown)}, which is not supported")


BUNDLE = """
schema_version = 1
name = "reference"
family = "flow"
[latents]
channels = 64
frame_rate_hz = 25.0
frame_multiple = 2
canvas_frames = 48
[decoder]
graph = "decoder.onnx"
[decoder.inputs]
latents = "hidden_states"
time = "timestep"
condition = "encoder_hidden_states"
context = "context_latents"
[decoder.outputs]
velocity = "velocity"
[context]
overlap_frames = 8
silence = [{zeros}]
""".replace("{zeros}", ", ".join(["0.0"] * 64))

DEPLOYMENT = """
[deployment]
bundle = "reference"
[[shapes]]
rows = {{ min = 1, opt = 4, max = {max_rows} }}
frames = {{ min = 2, opt = 48, max = 64 }}
tokens = {{ min = 1, opt = 12, max = 32 }}
[runtime]
depth = {depth}
threads = 2
[build]
step_variants = {step_variants}
"""
