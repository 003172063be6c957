"""What is refused, and random numbers by seed and place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.base.errors import RequestError
from runtime.config.planner import PlannerSpec
from runtime.tick.language.sequence import SequenceRequest, SequenceWork, uniform

SPEC = PlannerSpec.model_validate(
    {
        "graph": "planner.onnx",
        "tokenizer": "tokenizer.json",
        "vocabulary": 50,
        "end_token": 1,
        "capacity": 64,
        "inputs": {"past": ["k", "v"]},
        "outputs": {"present": ["k2", "v2"]},
        "codes": {"prompt": "", "groups": [{"first": 10, "count": 5}]},
    }
)
GOOD = SequenceRequest("a", (1, 2, 3), 20)


def test_a_sequence_that_fits_is_taken_with_a_prompt_per_row() -> None:
    GOOD.check(SPEC)
    assert GOOD.prompts == ((1, 2, 3),)
    guided = replace(GOOD, guidance=2.0, negative=(4,))
    guided.check(SPEC)
    assert guided.prompts == ((1, 2, 3), (4,))
    assert SequenceWork(GOOD).steps == 20


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"prompt": ()}, "prompt has 0 tokens"),
        ({"prompt": (1, 50)}, "expected some of 0 to 49"),
        ({"guidance": 2.0}, "negative has 0 tokens"),
        ({"max_tokens": 0}, "max_tokens >= 1"),
        ({"temperature": -1.0}, "temperature 0 to 10"),
        ({"top_p": 0.0}, "top_p above 0"),
        ({"max_tokens": 55}, "has room for 54 behind"),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError, match=what):
        replace(GOOD, **changes).check(SPEC)


def test_a_ring_takes_sequences_without_an_end() -> None:
    ring = SPEC.model_copy(update={"window": 20})
    SequenceRequest("a", tuple([5] * 500)).check(ring)


def test_random_numbers_are_even_exact_in_float32_and_differ_by_seed_and_place() -> None:
    found = np.array([[uniform(seed, place) for place in range(2000)] for seed in (0, 1, 2**63)])
    assert (found == found.astype(np.float32)).all()
    assert found.min() >= 0
    assert found.max() < 1
    assert abs(found.mean() - 0.5) < 0.02
    assert len(np.unique(found)) > 5990
    counts = np.histogram(found[0], 10, (0, 1))[0]
    assert ((counts > 140) & (counts < 260)).all()
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.06
    assert uniform(7, 3) == uniform(7, 3) != uniform(7, 4)


def test_the_generator_is_splitmix64() -> None:
    """Its published first outputs for the seed 1234567, of which the first seeds ours."""
    from runtime.tick.language import sequence

    gamma = 0x9E3779B97F4A7C15
    outputs = [sequence._mix((1234567 + (place + 1) * gamma) % 2**64) for place in range(5)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
