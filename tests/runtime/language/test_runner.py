"""Sequences in the tick loop: tokens as the formulas say, neighbours that do not touch each other, every exit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.backends import FEW_VARIANTS
from helpers.generations import Inbox
from helpers.tiny_planner import VOCABULARY, reference_logits, tiny_weights

from runtime.language.sequence import SequenceRequest
from runtime.tick.loop import TickLoop

WEIGHTS = tiny_weights()
LINEAR: dict[str, Any] = {"capacity": 128, "window": 0}
RING: dict[str, Any] = {"capacity": 64, "window": 40}


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist())


GUIDED = {"negative": tokens_of(9, 5), "guidance": 2.0, "temperature": 0.7}


def sequence(name: str, prompt: int = 20, **changes: Any) -> SequenceRequest:
    """A sequence whose prompt and seed depend on its name."""
    number = sum(map(ord, name))
    values = {"prompt": tokens_of(number, prompt), "max_tokens": 24, "seed": number, **changes}
    return SequenceRequest(id=name, **values)


def run(loop: TickLoop, *requests: SequenceRequest) -> Inbox:
    inbox = Inbox()
    for request in requests:
        loop.submit_sequence(request, inbox)
    while loop.tick() is not None:
        pass
    return inbox


def greedy(request: SequenceRequest, window: int = 0) -> list[int]:
    """The likeliest tokens, from whole sequences in float64."""
    new: list[int] = []
    while len(new) < request.max_tokens:
        logits = [reference_logits(WEIGHTS, np.array([*prompt, *new]), window)[-1] for prompt in request.prompts]
        guided = logits[-1] + request.guidance * (logits[0] - logits[-1])
        new.append(int(np.argmax(guided)))
    return new


@pytest.mark.parametrize("changes", [{}, {"prompt": 1}, {"prompt": 17}, {"prompt": 33}, GUIDED], ids=str)
def test_greedy_tokens_are_those_of_the_whole_sequence(changes: dict[str, Any], loops: Loops) -> None:
    request = sequence("a", **{**changes, "temperature": 0})
    assert run(loops(planner=LINEAR, more=FEW_VARIANTS), request).latents("a").tolist() == greedy(request)


def test_a_ring_sees_the_last_window(loops: Loops) -> None:
    request = sequence("a", 70, temperature=0, max_tokens=60)
    assert run(loops(planner=RING, more=FEW_VARIANTS), request).latents("a").tolist() == greedy(request, 40)
