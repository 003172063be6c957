"""The tick parity vectors as requests: what an independent implementation made of the same inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target

FOLDER = Path(__file__).parents[1] / "data" / "tick_parity"
DECODER = FOLDER / "decoder.onnx"
FRAMES, CHANNELS, CONDITION_WIDTH = 48, 64, 48
TOLERANCE = 4e-5

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Expected:
    """One request of a scenario, the tick it enters at, and what becomes of it. `id` is the request's id."""

    id: str
    submit_tick: int
    request: GenerationRequest
    final: Array
    after_each_step: Array | None


@dataclass(frozen=True)
class Scenario:
    """Requests of one run; `overrides` are the session's parameters from a tick on (None takes them away)."""

    name: str
    depth: int
    expected: tuple[Expected, ...]
    overrides: dict[int, StepParameters | None]

    def parameters_at(self, tick: int) -> StepParameters | None:
        """The session's parameters that hold in a tick."""
        said = [at for at in sorted(self.overrides) if at <= tick]
        return self.overrides[said[-1]] if said else None


def scenario_names() -> list[str]:
    """The 14 scenarios."""
    return list(_table())


def load_scenario(name: str) -> Scenario:
    """One scenario with its expected latents."""
    table, results = _table()[name], _arrays("expected.npz")
    expected = tuple(
        Expected(
            id=item["id"],
            submit_tick=item["submit_at_tick"],
            request=_request(item, table),
            final=results[f"{name}/{item['id']}/final"],
            after_each_step=results.get(f"{name}/{item['id']}/after_each_step"),
        )
        for item in table["requests"]
    )
    overrides = {int(tick): _override(said) for tick, said in table.get("shared_at_tick", {}).items()}
    return Scenario(name, table["depth"], expected, overrides)


def _request(item: dict[str, Any], table: dict[str, Any]) -> GenerationRequest:
    first = Condition(_tokens(item), weight=_value(item.get("temporal_weight", 1.0)))
    more = [Condition(_tokens(c), weight=_value(c["temporal_weight"])) for c in item.get("extra_conditions", [])]
    return GenerationRequest(
        frames=FRAMES,
        conditions=(first, *more),
        negatives=tuple(Condition(_tokens(c)) for c in item.get("negative", [])),
        steps=table["steps"],
        shift=table["shift"],
        denoise=item.get("denoise", 1.0),
        guidance_mode=item.get("rcfg_mode", "full"),
        context=_value(item["context_latents"]),
        source=_optional(item, "source_latents"),
        noise=_value(item["noise"]),
        initial_noise_curve=_optional(item, "initial_noise_curve"),
        mask=_mask(item),
        target=_target(item),
        parameters=_parameters(item, table),
        session="parity",
        id=item["id"],
    )


def _parameters(item: dict[str, Any], table: dict[str, Any]) -> StepParameters:
    dcw = {name: value for name, value in table.get("dcw", {}).items() if name != "wavelet"}
    return StepParameters(
        velocity_scale=_optional(item, "velocity_scale"),
        guidance=item.get("guidance_scale"),
        rescale=_optional(item, "cfg_rescale"),
        dcw=Dcw(**dcw) if dcw else None,
    )


def _mask(item: dict[str, Any]) -> LatentMask | None:
    if "latent_mask" not in item:
        return None
    said = item["latent_mask"]
    return LatentMask(_value(said["mask"]), original=_value(said["original_latents"]), noise=_value(said["noise"]))


def _target(item: dict[str, Any]) -> Target | None:
    if "x0_target" not in item:
        return None
    return Target(_value(item["x0_target"]), curve=_value(item["x0_target_curve"]), gate=item["x0_target_gate"])


def _override(said: dict[str, Any]) -> StepParameters | None:
    values = {name: _value(value) for name, value in said.items() if value is not None}
    return StepParameters(**values) if values else None


def _tokens(item: dict[str, Any]) -> Array:
    return np.asarray(_value(item["encoder_hidden_states"]), np.float32)


def _optional(item: dict[str, Any], name: str) -> Any:
    return _value(item[name]) if name in item else None


def _value(said: Any) -> Any:
    """A number, or an expression over the inputs such as "1+4*curve_ramp"; the leading batch dimension is dropped."""
    if not isinstance(said, str):
        return said
    inputs = _arrays("inputs.npz")
    value = np.asarray(eval(said, {"__builtins__": {}}, dict(inputs)), np.float32)
    return value[0] if value.ndim == 3 else value


@cache
def _table() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "scenarios.json").read_text(encoding="utf-8")))


@cache
def _arrays(name: str) -> dict[str, Array]:
    with np.load(FOLDER / name) as file:
        return {key: file[key] for key in file.files}
