"""Which ticks are common, and the generations that make them: so their graphs are captured before the first request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from uuid import uuid4

import numpy as np

from runtime.config.bundle import Bundle
from runtime.config.deployment import PLAN_TARGETS, Deployment
from runtime.requests.request import MAX_STEPS, Condition, GenerationRequest

# A launch runs plainly, then warmed up, then captured, and states have two sides. Two more ticks, because generations
# that are submitted one by one may meet one side more often.
TICKS_PER_SHAPE = 2 * 3 + 2
NUM_TOKEN_BUCKETS = 3


@dataclass(frozen=True)
class CommonTicks:
    """The ticks of 1 to `depth` generations of one length with `tokens` condition tokens."""

    request: GenerationRequest
    tokens: int
    depth: int

    @property
    def text(self) -> str:
        """ "1500 frames, 96 tokens"."""
        return f"{self.request.frames} frames, {self.tokens} tokens"

    def generations(self) -> list[GenerationRequest]:
        """Generations to submit at once: one after the other ends, so that every number of them has its ticks."""
        tokens = self.request.conditions[0].tokens
        condition = Condition(np.resize(tokens, (self.tokens, tokens.shape[1])))
        asked = replace(self.request, conditions=(condition,))
        count = min(self.depth, MAX_STEPS // TICKS_PER_SHAPE)
        steps = range(count * TICKS_PER_SHAPE, 0, -TICKS_PER_SHAPE)
        return [replace(asked, id=uuid4().hex, seed=seed, steps=number) for seed, number in enumerate(steps)]


def common_ticks(requests: Iterable[GenerationRequest], bundle: Bundle, deployment: Deployment) -> list[CommonTicks]:
    """The common ticks of generations like `requests`, one of each length, the most common length first.

    None where there is nothing to prepare: ticks on TensorRT are captured, those on TensorRT-RTX also need kernels. As
    many as there may be captured graphs.
    """
    runtime = deployment.runtime
    compiles = deployment.target == "tensorrt-rtx"
    if not (compiles or (deployment.target in PLAN_TARGETS and runtime.capture)):
        return []
    most = runtime.captured_graphs // (2 * runtime.depth)
    found = (
        CommonTicks(request, tokens, runtime.depth)
        for request in requests  # composed as they are taken: there may be many lengths
        for tokens in _token_buckets(request, bundle, deployment)
    )
    return list(islice(found, max(1, most)))


def _token_buckets(request: GenerationRequest, bundle: Bundle, deployment: Deployment) -> list[int]:
    """The smallest values of L; those of the request itself where a batch cannot have padded tokens."""
    if bundle.decoder.inputs.condition_mask is None:
        return [len(request.conditions[0].tokens)]
    ranges = [shape.tokens for shape in deployment.shapes if shape.frames.holds(request.frames)]
    multiples = [deployment.token_multiple * number for number in range(1, NUM_TOKEN_BUCKETS + 1)]
    return sorted({min(max(tokens, ranges[0].min), max(allowed.max for allowed in ranges)) for tokens in multiples})
