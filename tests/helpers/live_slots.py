"""Live slots and shape ranges without engines: what row layout, step binding and step noise read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runtime.config.deployment import Deployment, RuntimeConfig, ShapeRange, ShapeRanges, Target
from runtime.requests.request import Condition, GenerationRequest, StepParameters
from runtime.tick.denoise.prepared import prepare, resolve
from runtime.tick.denoise.row_layout import LiveSlot
from runtime.tick.scheduling.slot import Slot

FRAMES, CHANNELS, WIDTH, MAX_TOKENS = 16, 2, 2, 32


def deployment(
    max_rows: int = 8, *, depth: int = 4, fused_guidance: bool = True, target: Target = "cpu", tokens: int = MAX_TOKENS
) -> Deployment:
    """A deployment of one shape range, which no file describes."""
    ranges = ShapeRanges(
        rows=ShapeRange(min=1, opt=1, max=max_rows),
        frames=ShapeRange(min=2, opt=16, max=64),
        tokens=ShapeRange(min=1, opt=8, max=tokens),
    )
    runtime = RuntimeConfig(depth=depth, fused_guidance=fused_guidance)
    return Deployment(
        path=Path("x.toml"), bundle=Path("b"), engines=Path("e"), target=target, shapes=(ranges,), runtime=runtime
    )


def condition(tokens: int = 3, **changes: Any) -> Condition:
    """A condition of so many tokens."""
    return Condition(np.ones((tokens, WIDTH), np.float32), **changes)


def request(**changes: Any) -> GenerationRequest:
    """A generation of FRAMES frames, with one condition and 4 steps unless changed."""
    return GenerationRequest(**{"frames": FRAMES, "conditions": (condition(),), "steps": 4, **changes})


def live_slot(index: int = 0, *, step: int = 0, session: StepParameters | None = None, **changes: Any) -> LiveSlot:
    """A slot at a step of its generation; `session`: step parameters over the request's."""
    asked = request(**changes)
    work = prepare(asked, resolve(asked, session or StepParameters()), CHANNELS)
    slot = Slot(asked.id, None, work, asked.frames, asked.steps, step=step, index=index)
    return LiveSlot(slot, work, work.has_cached_negative, work.previous)


def guided(scale: float = 3.0, **changes: Any) -> dict[str, Any]:
    """Changes of a request that make it guided, with one negative."""
    return {"negatives": (condition(5),), "parameters": StepParameters(guidance=scale), **changes}
