"""Plans of the same generation with drafts and without."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import parse_options
from runtime.tick.language.sequence import LiveSequence


def plans_with_and_without_drafts(deployment: Deployment, **options: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What the planner writes with speculation, what without, and how many times its draft model drafted."""
    plans, count, take = list[dict[str, Any]](), 0, LiveSequence.take_drafts

    def counted(live: LiveSequence, tokens: list[int]) -> None:
        nonlocal count
        count += 1
        take(live, tokens)

    for speculation in (True, False):
        runtime = deployment.runtime.model_copy(update={"speculation": speculation})
        with (
            patch.object(LiveSequence, "take_drafts", counted),
            open_pipeline(deployment.model_copy(update={"runtime": runtime})) as pipeline,
        ):
            generation = LongGeneration(pipeline, parse_options({"prompt": "calm", "seed": 3, **options}))
            assert generation.plan is not None
            codes = generation.plan.finish()
            plans.append({**generation.metadata().plan, "codes": codes})
            generation.close()
    return plans[0], plans[1], count
